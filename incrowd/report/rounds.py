"""The rounds: how good the model was after each, what that cost, where the budget ends, and the noise."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from incrowd.report import numbers
from incrowd.report.figure import Curve, GuideLine, RoundFigure, Spot, plain_table
from incrowd.report.numbers import UNKNOWN
from incrowd.report.plain import Shown
from incrowd.report.svg import NOTHING, Markup, joined, tag

_MEASURED = "Measured after each round on examples that no party holds"
_ACCURACY = RoundFigure(key="accuracy", title="How good the model is", about=f"{_MEASURED}.",
                        axis="Accuracy on public test examples", spelt=numbers.percent)  # fmt: skip
_LOSS = RoundFigure(key="loss", title="How good the model is", about=f"{_MEASURED}; lower is better.",
                    axis="Loss on public test examples")  # fmt: skip
_EPSILON = RoundFigure(
    key="epsilon",
    title="What it has cost",
    about="What all rounds so far cost together, and where the budget ends. No round begins that would go beyond.",
    axis="Epsilon spent, at most",
)
_NOISES = tuple(
    RoundFigure(key=key, title=title, about=about, axis=axis)
    for key, title, about, axis in (
        ("cohort", "How many clients are asked",
         "Expected number of clients in each round, as planned before the first.", "Clients expected in a round"),
        ("multiplier", "How much noise is planned",
         "Standard deviation of the noise, in units of the largest contribution.", "Noise multiplier"),
        ("clip", "The clip", "The largest norm of a contribution that enters.", "Clip: the largest norm that counts"),
        ("noise-std", "The noise that was added", "On the sum of the contributions of a round.",
         "Standard deviation of the noise"),
    )
)  # fmt: skip
_DIAGNOSTICS = {
    "between_client_variance": RoundFigure(
        key="between-client-variance", title="How much clients differ (V_c)", axis="V_c: variance between clients",
        about="Variance of each weight over the cohort, before clipping, averaged over the weights.", log=True,
    ),
    "update_scale": RoundFigure(
        key="update-scale", title="How far they agree (U_s)", axis="U_s: scale of the update", log=True,
        about="Squared mean of each weight over the cohort, before clipping, averaged over the weights.",
    ),
    "noise_to_signal": RoundFigure(
        key="noise-to-signal", title="Noise against signal", axis="Noise over signal", log=True,
        about="Norm of the noise over the norm of the mean contribution, estimated from the release.",
    ),
    "fraction_clipped": RoundFigure(
        key="fraction-clipped", title="How many were clipped", axis="Contributions above the clip",
        about="Share of the contributions whose norm was above the clip.", spelt=numbers.percent,
    ),
}  # fmt: skip
_INSIDE = "Only a simulation of public data may look at single contributions. A run in earnest shows none of this."
_NORMS = "L2 norms of the contributions before clipping: the quartiles, and the largest."
_QUANTILES = {1: "first quartile", 2: "median", 3: "third quartile", 4: "largest"}

Value = Callable[[Any], float | None]


def rounds(shown: Sequence[Shown]) -> Markup:
    """Accuracy (or loss) and epsilon over the rounds, of all runs on the same axes."""
    runs = [one for one in shown if one.rounds]
    if not runs:
        return NOTHING
    lost = [(one.name, sum(row["lost"] for row in one.rounds)) for one in runs]
    notes = (
        tag("p", f"{name}: {count} rounds were paid for and then lost in a crash; nothing of them was used.",
            class_="quiet")
        for name, count in lost if count
    )  # fmt: skip
    return joined([tag("div", _measured(runs), _epsilon(runs), class_="grid"), *notes])


def noise(shown: Sequence[Shown]) -> Markup:
    """The clip, the cohort and the noise: a line for each run, and a figure of each that changes."""
    runs = [one for one in shown if one.schedule or any(row["noise_std"] is not None for row in one.rounds)]
    if not runs:
        return NOTHING
    rows = [[one.name, numbers.count(one.planned), *map(_from_to, _noises_of(one))] for one in runs]
    headings = ["Run", "Rounds", *(each.axis for each in _NOISES)]
    figures = []
    for which, form in enumerate(_NOISES):
        curves = [Curve(name=one.name, points=_noises_of(one)[which], style=place) for place, one in enumerate(runs)]
        if any(len({value for _, value in one.points}) > 1 for one in curves):
            figures.append(form.drawn(curves))
    return plain_table(headings, rows, name="As planned before the first round") + tag("div", *figures, class_="grid")


def inside(shown: Sequence[Shown]) -> Markup:
    """Diagnostics of simulations of public data: how alike contributions are, their norms, noise to signal."""
    runs = [one for one in shown if any(row["simulation"] for row in one.rounds)]
    if not runs:
        return NOTHING
    figures = []
    for key, form in _DIAGNOSTICS.items():
        curves = _curves(runs, _seen(key))
        if any(value for one in curves for _, value in one.points):
            figures.append(form.drawn(curves))
    figures += _norms(runs)
    return tag("p", _INSIDE, class_="warning") + tag("div", *figures, class_="grid")


def _measured(runs: Sequence[Shown]) -> Markup:
    form = _ACCURACY if any(row["accuracy"] is not None for one in runs for row in one.rounds) else _LOSS
    known = {form.spelt(one.baseline): one.baseline for one in runs if one.baseline is not None}
    lines = [GuideLine(label=f"Baseline: {said}", y=value) for said, value in list(known.items())[:2]]
    return form.drawn(_curves(runs, lambda row: row[form.key]), lines=lines)


def _epsilon(runs: Sequence[Shown]) -> Markup:
    curves = [
        Curve(name=one.name, points=((0.0, 0.0), *_points(one, lambda row: row["epsilon"])), style=place)
        for place, one in enumerate(runs)
    ]
    budgets = sorted({one.budget for one in runs if one.budget is not None})
    lines = [GuideLine(label=f"budget {numbers.epsilon(value)}", y=value) for value in budgets[:3]]
    end = _spent_at(runs[0]) if len(runs) == 1 else None
    if end is not None:
        lines.append(GuideLine(label=f"the budget ends: round {numbers.count(end)}", x=float(end)))
    return _EPSILON.drawn(curves, lines=lines)


def _spent_at(one: Shown) -> int | None:
    """The last round: the last planned one, or the one with which a silo's budget was spent before."""
    if one.budget is None or one.kind != "silos":
        return one.planned
    found = next((row["round"] + 1 for row in one.rounds if row["epsilon"] >= 0.999 * one.budget), None)
    return found if found is not None else one.planned


def _norms(runs: Sequence[Shown]) -> Iterator[Markup]:
    for place, one in enumerate(runs):
        curves = [
            Curve(name=name, points=_points(one, _seen("norms", at)),
                  style=at)
            for at, name in _QUANTILES.items()
        ]  # fmt: skip
        curves.append(Curve(name="clip", points=_points(one, lambda row: row["clip_norm"]), style=0))
        title = "Norms against the clip" + f" · {one.name}" * (len(runs) > 1)
        yield RoundFigure(key=f"norms-{place}", title=title, about=_NORMS, axis="Norm", log=True).drawn(curves)


def _noises_of(one: Shown) -> list[tuple[Spot, ...]]:
    """The points of each of `_NOISES`."""
    planned = [tuple(_steps(one, key)) for key in ("cohort", "noise_multiplier")]
    return [*planned, _points(one, lambda row: row["clip_norm"]), _points(one, lambda row: row["noise_std"])]


def _from_to(points: Sequence[Spot]) -> str:
    """A number, or from which to which."""
    values = [value for _, value in points]
    return " \u2013 ".join(map(numbers.number, dict.fromkeys((min(values), max(values))))) if values else UNKNOWN


def _steps(one: Shown, key: str) -> Iterator[Spot]:
    at = 1
    for step in one.schedule:
        last = at + step["rounds"] - 1
        yield from dict.fromkeys(((float(at), step[key]), (float(last), step[key])))
        at = last + 1


def _curves(runs: Sequence[Shown], value: Value) -> list[Curve]:
    return [Curve(name=one.name, points=_points(one, value), style=place) for place, one in enumerate(runs)]


def _points(one: Shown, value: Value) -> tuple[Spot, ...]:
    found = ((row["round"] + 1.0, value(row)) for row in one.rounds)
    return tuple((at, measured) for at, measured in found if measured is not None)


def _seen(key: str, at: int | None = None) -> Value:
    """What a simulation saw of a round."""

    def seen(row: Any) -> float | None:
        found: Any = (row["simulation"] or {}).get(key)
        value = found if at is None or found is None else found[at]
        return None if value is None else float(value)

    return seen
