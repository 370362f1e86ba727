"""Silos in pictures: what they learn over the rounds, and what that has cost so far."""

from collections.abc import Sequence
from pathlib import Path

from harness.pictures import BLUE, LINES, axes, dress, files, shades
from harness.seeds import Entry


def plot_silos(folder: Path, runs: Sequence[Entry], published: Sequence[Entry]) -> list[str]:
    """Accuracy after each round, a curve a run; epsilon so far, with the fewest silos, beside what the published
    schedule comes to, and the budgets; gives the names of the files.
    """
    paths = files(folder, "fedn-silos")
    fewest = min(one["silos"] for one in runs)
    epsilons = sorted({one["epsilon"] for one in runs}, reverse=True)
    looks = dict(zip(epsilons, shades(len(epsilons)), strict=True))
    kinds = {(one["network"], one["silos"]): None for one in runs}
    lines = dict(zip(kinds, LINES * len(kinds), strict=False))
    with axes(*paths, columns=2) as (left, right):
        for one in runs:
            rounds = range(1, one["rounds"] + 1)
            label = f"{one['network']}, {one['silos']} silos, epsilon {one['epsilon']:g}"
            look = {**looks[one["epsilon"]], "linestyle": lines[one["network"], one["silos"]]}
            left.plot(rounds, one["accuracy_by_round"], label=label, **look)
        for epsilon in epsilons:
            ours = next(one for one in runs if (one["silos"], one["epsilon"]) == (fewest, epsilon))
            theirs = next(one for one in published if (one["silos"], one["epsilon"]) == (fewest, epsilon))
            rounds = range(1, ours["rounds"] + 1)
            right.plot(rounds, ours["epsilon_by_round"], label=f"epsilon {epsilon:g}", **looks[epsilon])
            look = {**looks[epsilon], "linestyle": ":"}
            right.plot(rounds, theirs["epsilon_by_round"], label="the published schedule", **look)
            right.axhline(epsilon, color=BLUE, linewidth=0.8)
        dress(left, "rounds", "accuracy on the test examples", title="SIMULATION: seeded noise", loc="lower right")
        dress(right, "rounds", "epsilon so far", title=f"{fewest} silos; thin lines: budgets", loc="upper left")
    return [str(path) for path in paths]
