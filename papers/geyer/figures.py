"""Figures 1 and 2 of Geyer, Klein and Nabi (2017): what they plot, as data and as pictures."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import checks
from harness.pictures import RED, axes, dress, files, logarithmic
from harness.results import columns
from harness.seeds import Entry, Say, means, repeated, silent
from incrowd import Budget
from incrowd.data import Split
from papers.geyer.kept import Kept
from papers.geyer.measure import EPSILON, PLAIN_ROW, ROWS, Curve, check_rows, curve
from papers.geyer.paper import CONSTANTS
from papers.geyer.plain import Plain, PlainRound, learn_plainly


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What to measure, and on which data; `plain` is how the federation without privacy learns.

    Edge cases: a number of clients that is no row of the paper, or a number of seeds that is not positive: refused.
    """

    split: Split
    rows: Sequence[int] = (100, 1000)
    seeds: int = 1
    epsilon: float = EPSILON
    plain: Plain = field(default_factory=Plain)
    kept: Kept | None = None
    say: Say = field(default=silent, repr=False)

    def __post_init__(self) -> None:
        checks.count(seeds=self.seeds)
        checks.positive(epsilon=self.epsilon)
        check_rows(self.rows)

    def figure1(self) -> list[Entry]:
        """Accuracy over the rounds, one curve for each row and one without privacy. Means over the seeds."""
        return [*(self._private(clients) for clients in self.rows), self._plain()]

    def figure2(self) -> Entry:
        """Accuracy, between-client variance V_c and update scale U_s over the rounds of the federation without privacy.

        V_c and U_s read every client's update, so only a simulation may look at them.
        """
        several = self._plain_rounds()
        return {
            "clients": self.plain.clients,
            "rounds": [one.round for one in several[0]],
            "accuracy": means([[one.accuracy for one in rounds] for rounds in several]),
            "between_client_variance": means(
                [[one.seen.between_client_variance for one in rounds] for rounds in several]
            ),
            "update_scale": means([[one.seen.update_scale for one in rounds] for rounds in several]),
            "seeds": self.seeds,
            "simulation_only": True,
        }

    def _private(self, clients: int) -> Entry:
        row, setup = ROWS[clients], CONSTANTS[clients]
        plan = setup.promise(clients, Budget(epsilon=self.epsilon, delta=row.delta))
        self.say(f"{clients} clients: {plan.rounds} rounds")

        def follow(seed: int) -> Curve:
            kept = self.kept
            return curve(setup, plan, self.split, seed=seed) if kept is None else kept.curve(setup, plan, seed=seed)

        def told(points: Curve) -> str:
            return f"accuracy {points[-1].accuracy:.4f}"

        curves = repeated(follow, seeds=self.seeds, told=told, say=self.say).runs
        accuracies = means([[point.accuracy for point in points] for points in curves])
        return {
            "clients": clients,
            "epsilon": self.epsilon,
            "epsilon_honest": plan.price.epsilon,
            "delta": row.delta,
            "rounds": [point.round for point in curves[0]],
            "accuracy": accuracies,
            "ended": {"round": plan.rounds, "accuracy": accuracies[-1]},
            "paper_accuracy": row.accuracy,
            "paper_rounds": row.rounds,
            "seeds": self.seeds,
        }

    def _plain(self) -> Entry:
        several = self._plain_rounds()
        return {
            "clients": self.plain.clients,
            "epsilon": None,
            "epsilon_honest": None,
            "delta": None,
            "rounds": [one.round for one in several[0]],
            "accuracy": means([[one.accuracy for one in rounds] for rounds in several]),
            "ended": None,
            "paper_accuracy": PLAIN_ROW.accuracy,
            "paper_rounds": PLAIN_ROW.rounds,
            "seeds": self.seeds,
        }

    def _plain_rounds(self) -> list[list[PlainRound]]:
        self.say(f"{self.plain.clients} clients without privacy: {self.plain.rounds} rounds")
        return [list(learn_plainly(self.plain, self.split, seed=seed)) for seed in range(self.seeds)]


def plot_figure1(folder: Path, curves: Sequence[Entry]) -> list[str]:
    """The curves in a picture; a dot marks where a budget ended, a hollow square where the paper's curve does."""
    paths = files(folder, "geyer-figure1")
    with axes(*paths, height=4.2) as (panel,):
        for one in curves:
            label = f"{one['clients']:,} clients" + ("" if one["epsilon"] else ", no privacy")
            look: dict[str, Any] = {} if one["epsilon"] else {"color": "black", "linestyle": "--"}
            (line,) = panel.plot(one["rounds"], one["accuracy"], label=label, **look)
            colour = line.get_color()
            if one["ended"] is not None:
                panel.plot(one["ended"]["round"], one["ended"]["accuracy"], "o", color=colour)
            panel.plot(
                one["paper_rounds"], one["paper_accuracy"], "s", markersize=10, markerfacecolor="none", color=colour
            )
        panel.plot([], [], "o", color="grey", label="the budget ends")
        panel.plot([], [], "s", markersize=10, markerfacecolor="none", color="grey", label="the paper's end")
        logarithmic(panel, "x")
        panel.set_ylim(0, 1)
        dress(panel, "communication rounds", "accuracy on the test examples", loc="lower right")
    return [str(path) for path in paths]


def plot_figure2(folder: Path, series: Entry) -> list[str]:
    """Accuracy, V_c, U_s, and how many times U_s V_c is."""
    paths = files(folder, "geyer-figure2")
    variances, scales = series["between_client_variance"], series["update_scale"]
    shown = {
        "accuracy on the test examples": series["accuracy"],
        "between-client variance V_c": variances,
        "update scale U_s": scales,
        "V_c / U_s": [variance / scale for variance, scale in zip(variances, scales, strict=True)],
    }
    with axes(*paths, columns=2, rows=2, height=3.0) as panels:
        for panel, (label, values) in zip(panels, shown.items(), strict=True):
            panel.plot(series["rounds"], values, color=RED if "/" in label else None)
            logarithmic(panel, "x" if values is series["accuracy"] else "xy")
            dress(panel, "communication rounds", label, title="SIMULATION, without privacy")
    return [str(path) for path in paths]


def ended(curves: Sequence[Entry]) -> list[Entry]:
    """The end of each curve, a row each."""
    names = ("clients", "epsilon", "epsilon_honest", "paper_accuracy", "paper_rounds", "seeds")
    ends = [one | {"rounds": one["rounds"][-1], "accuracy": one["accuracy"][-1]} for one in curves]
    return columns(ends, ("rounds", "accuracy", *names))


def sampled(series: Entry, *, rows: int = 12) -> list[Entry]:
    """A few rounds of figure 2, a row each."""
    names = ("rounds", "accuracy", "between_client_variance", "update_scale")
    every = max(1, len(series["rounds"]) // rows)
    return [{name: series[name][place] for name in names} for place in range(0, len(series["rounds"]), every)]
