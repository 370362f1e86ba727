"""The rounds: how good the model was after each, what that cost, where the budget ends, and the noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from incrowd.report import numbers
from incrowd.report.charts import ChartAxis, GuideLine, Series
from incrowd.report.figure import curves, plain_table
from incrowd.report.numbers import UNKNOWN
from incrowd.report.plain import Shown
from incrowd.report.scales import Spot
from incrowd.report.svg import NOTHING, Markup, joined, tag


@dataclass(frozen=True)
class RoundFigure:
    """A figure over the rounds: its key, title, text, and the name of its upright axis."""

    key: str
    title: str
    about: str
    axis: str


_ACCURACY = RoundFigure(
    "accuracy", "How good the model is", "Measured after each round on examples that no party holds.",
    "Accuracy on public test examples",
)  # fmt: skip
_LOSS = RoundFigure(
    "loss", "How good the model is", "Measured after each round on examples that no party holds; lower is better.",
    "Loss on public test examples",
)  # fmt: skip
_EPSILON = RoundFigure(
    "epsilon",
    "What it has cost",
    "What all rounds so far cost together, and where the budget ends. No round begins that would go beyond.",
    "Epsilon spent, at most",
)
_NOISES = (
    RoundFigure(
        "cohort", "How many clients are asked",
        "Expected number of clients in each round, as planned before the first.", "Clients expected in a round",
    ),
    RoundFigure(
        "multiplier", "How much noise is planned",
        "Standard deviation of the noise, in units of the largest contribution.", "Noise multiplier",
    ),
    RoundFigure(
        "clip", "The clip", "The largest norm of a contribution that enters.", "Clip: the largest norm that counts",
    ),
    RoundFigure(
        "noise-std", "The noise that was added", "On the sum of the contributions of a round.",
        "Standard deviation of the noise",
    ),
)  # fmt: skip
_DIAGNOSTICS = {
    "between_client_variance": RoundFigure(
        "between-client-variance", "How much clients differ (V_c)",
        "Variance of each weight over the cohort, before clipping, averaged over the weights.",
        "V_c: variance between clients",
    ),
    "update_scale": RoundFigure(
        "update-scale", "How far they agree (U_s)",
        "Squared mean of each weight over the cohort, before clipping, averaged over the weights.",
        "U_s: scale of the update",
    ),
    "noise_to_signal": RoundFigure(
        "noise-to-signal", "Noise against signal",
        "Norm of the noise over the norm of the mean contribution, estimated from the release.", "Noise over signal",
    ),
}  # fmt: skip
_CLIPPED = RoundFigure(
    "fraction-clipped", "How many were clipped", "Share of the contributions whose norm was above the clip.",
    "Contributions above the clip",
)  # fmt: skip
_INSIDE = "Only a simulation of public data may look at single contributions. A run in earnest shows none of this."
_NORMS = "L2 norms of the contributions before clipping: the median, the middle half as a band, and the largest."


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
        every = [
            Series(name=one.name, points=_noises_of(one)[which], style=place, steps=which < 2)
            for place, one in enumerate(runs)
        ]
        if any(len({value for _, value in one.points}) > 1 for one in every):
            figures.append(_figure(form, every, _axis(form, numbers.number, from_zero=True)))
    table = plain_table(headings, rows, name="As planned before the first round")
    return table + (tag("div", *figures, class_="grid") if figures else NOTHING)


def inside(shown: Sequence[Shown]) -> Markup:
    """Diagnostics of simulations of public data: how alike contributions are, their norms, noise to signal."""
    runs = [one for one in shown if any(row["simulation"] for row in one.rounds)]
    if not runs:
        return NOTHING
    figures = []
    for key, form in _DIAGNOSTICS.items():
        found = [_series(one, place, _seen(key)) for place, one in enumerate(runs)]
        if any(one.points for one in found):
            figures.append(_figure(form, found, _axis(form, lambda value: numbers.number(value, 2), log=True)))
    figures += [_norms(one, place=place, several=len(runs) > 1) for place, one in enumerate(runs)]
    clipped = [_series(one, place, _seen("fraction_clipped")) for place, one in enumerate(runs)]
    if any(share for one in clipped for _, share in one.points):
        axis = ChartAxis(label=_CLIPPED.axis, spelt=lambda value: numbers.percent(value, 0), low=0.0, high=1.0)
        figures.append(_figure(_CLIPPED, clipped, axis))
    return tag("p", _INSIDE, class_="warning") + tag("div", *figures, class_="grid")


def _measured(runs: Sequence[Shown]) -> Markup:
    shares = any(row["accuracy"] is not None for one in runs for row in one.rounds)
    form = _ACCURACY if shares else _LOSS
    series = [_series(one, place, lambda row: row[form.key]) for place, one in enumerate(runs)]
    spelt: Callable[[float], str] = numbers.percent if shares else numbers.number
    known = {spelt(one.baseline): one.baseline for one in runs if one.baseline is not None}
    lines = [GuideLine(label=f"Baseline: {said}", y=value) for said, value in list(known.items())[:2]]
    if not shares:
        return _figure(form, series, _axis(form, spelt), lines=lines)
    values = [value for one in series for _, value in one.points]
    digits = 0 if max(values, default=1.0) - min(values, default=0.0) > 0.05 else 1
    axis = ChartAxis(
        label=form.axis,
        spelt=spelt,
        marked=lambda value: numbers.percent(value, digits),
        high=min(1.0, max(values, default=1.0) + 0.05),
    )
    return _figure(form, series, axis, lines=lines)


def _epsilon(runs: Sequence[Shown]) -> Markup:
    series = [
        Series(name=one.name, points=[(0.0, 0.0), *_points(one, lambda row: row["epsilon"])], style=place, steps=True)
        for place, one in enumerate(runs)
    ]
    budgets = sorted({one.budget for one in runs if one.budget is not None})
    lines = [GuideLine(label=f"budget {numbers.epsilon(value)}", y=value, strong=True) for value in budgets[:3]]
    end = _spent_at(runs[0]) if len(runs) == 1 else None
    if end is not None:
        lines.append(GuideLine(label=f"the budget ends: round {numbers.count(end)}", x=float(end)))
    return _figure(_EPSILON, series, _axis(_EPSILON, numbers.number, from_zero=True), lines=lines)


def _spent_at(one: Shown) -> int | None:
    """The last round: the last planned one, or the one with which a silo's budget was spent before."""
    if one.budget is None or one.kind != "silos":
        return one.planned
    found = next((row["round"] + 1 for row in one.rounds if row["epsilon"] >= 0.999 * one.budget), None)
    return found if found is not None else one.planned


def _noises_of(one: Shown) -> list[list[Spot]]:
    """The points of each of `_NOISES`."""
    planned = [_steps(one, key) for key in ("cohort", "noise_multiplier")]
    return [*planned, _points(one, lambda row: row["clip_norm"]), _points(one, lambda row: row["noise_std"])]


def _from_to(points: Sequence[Spot]) -> str:
    """A number, or from which to which."""
    values = [value for _, value in points]
    if not values:
        return UNKNOWN
    ends = dict.fromkeys((min(values), max(values)))
    return " \u2013 ".join(map(numbers.number, ends))


def _steps(one: Shown, key: str) -> list[Spot]:
    found, at = [], 1
    for step in one.schedule:
        last = at + step["rounds"] - 1
        found += [(float(at), step[key])] + ([(float(last), step[key])] if last > at else [])
        at = last + 1
    return found


def _norms(one: Shown, *, place: int, several: bool) -> Markup:
    seen = [row for row in one.rounds if row["simulation"] and row["simulation"].get("norms")]

    def norm(which: int) -> list[Spot]:
        return [(row["round"] + 1.0, row["simulation"]["norms"][which]) for row in seen]

    series = [
        Series(name="median, and the middle half", points=norm(2), style=0, band=(norm(1), norm(3))),
        Series(name="largest", points=norm(4), style=1),
        Series(name="clip", points=_points(one, lambda row: row["clip_norm"]), style=6),
    ]
    form = RoundFigure(f"norms-{place}", "Norms against the clip" + f" · {one.name}" * several, _NORMS, "Norm")
    return _figure(form, series, _axis(form, numbers.number, log=True))


def _figure(form: RoundFigure, series: Sequence[Series], y: ChartAxis, *, lines: Sequence[GuideLine] = ()) -> Markup:
    known = [one for one in series if one.points]
    x = ChartAxis(label="Rounds", spelt=numbers.count, low=0.0, whole=True)
    return curves(key=f"over-{form.key}", title=form.title, about=form.about, series=known, x=x, y=y, lines=lines)


def _axis(form: RoundFigure, spelt: Callable[[float], str], *, log: bool = False, from_zero: bool = False) -> ChartAxis:
    return ChartAxis(label=form.axis, spelt=spelt, log=log, from_zero=from_zero)


def _series(one: Shown, place: int, value: Callable[[Any], float | None]) -> Series:
    return Series(name=one.name, points=_points(one, value), style=place)


def _points(one: Shown, value: Callable[[Any], float | None]) -> list[Spot]:
    found = ((row["round"] + 1.0, value(row)) for row in one.rounds)
    return [(at, measured) for at, measured in found if measured is not None]


def _seen(key: str) -> Callable[[Any], float | None]:
    def value(row: Any) -> float | None:
        found = (row["simulation"] or {}).get(key)
        return None if found is None else float(found)

    return value
