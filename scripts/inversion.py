"""Make the picture of docs/audit.md, what a curious server reads out of an update: `python -m scripts.inversion`.

A simulation of the embedded digits: 100 clients, a softmax regression on pixels, the first of five rounds.
"""

from incrowd._random import Floats
from incrowd.audit.inversion import Inverted, inverted
from incrowd.runs.client_work import assemble
from incrowd.runs.plots import axes
from incrowd.runs.settings import parse
from scripts._common import ROOT

CLIENT, SEED = 3, 1


def read(*, epsilon: float, place: str) -> Inverted:
    """What is read with the noise added here or there."""
    config = parse(
        {
            "data": {"clients": 100},
            "model": {"kind": "linear", "bias": False},
            "local": {"learning_rate": 1.0},
            "privacy": {"epsilon": epsilon, "delta": 1e-3, "rounds": 5, "place": place},
            "run": {"randomness": "seeded", "seed": SEED},
        }
    )
    return inverted(assemble(config), client=CLIENT, seed=SEED)


def main() -> None:
    """Draw, and say how alike."""
    central, local = read(epsilon=8.0, place="central"), read(epsilon=8.0, place="local")
    rows: list[tuple[str, Floats]] = [
        ("the client's digits", central.originals),
        (f"its update, without noise: {central.alike[0]:.2f}", central.from_update),
        (f"its update, with noise of its own: {local.alike[0]:.2f}", local.from_update),
        (f"the released mean of 100 clients: {central.alike[1]:.2f}", central.from_release),
    ]
    count = len(central.classes)
    with axes(ROOT / "docs/_static/inversion.png", columns=1, rows=len(rows), height=1.0) as places:
        for place, (name, pictures) in zip(places, rows, strict=True):
            scaled = [(one - one.min()) / max(float(one.max() - one.min()), 1e-12) for one in pictures]
            for column, picture in enumerate(scaled):
                place.imshow(picture, cmap="gray_r", extent=(1.1 * column, 1.1 * column + 1, 0, 1), vmin=0, vmax=1)
            place.set(xlim=(-0.05, 1.1 * count), ylim=(-0.02, 1.02), xticks=[], yticks=[])
            place.set_title(name, loc="left", fontsize=9)
            place.spines[:].set_visible(False)
    for name, _ in rows:
        print(name)


if __name__ == "__main__":
    main()
