"""What happened from round to round: how good the model was, what that cost, and where the budget ends."""

from collections.abc import Callable, Sequence
from typing import Any

from incrowd.report.charts import ChartAxis, GuideLine, Series
from incrowd.report.figure import curves, plain_table
from incrowd.report.plain import Shown
from incrowd.report.scales import Spot
from incrowd.report.svg import NOTHING, Markup, joined, tag, text
from incrowd.report.words import UNKNOWN, Wording


def rounds(shown: Sequence[Shown], words: Wording) -> Markup:
    """Accuracy (or loss) and epsilon over the rounds, of all runs on the same axes."""
    runs = [one for one in shown if one.rounds]
    if not runs:
        return NOTHING
    figures = [_measured(runs, words), _epsilon(runs, words)]
    lost = [one for one in runs if any(row["lost"] for row in one.rounds)]
    note = joined(
        tag("p", words("rounds.lost", name=one.name, count=sum(row["lost"] for row in one.rounds)), class_="quiet")
        for one in lost
    )
    return tag("div", *figures, class_="grid") + note


def noise(shown: Sequence[Shown], words: Wording) -> Markup:
    """The clip, the cohort and the noise: a line for each run, and a figure of whatever changes from round to round."""
    runs = [one for one in shown if one.schedule or any(row["noise_std"] is not None for row in one.rounds)]
    if not runs:
        return NOTHING
    keys = ("run", "rounds", "cohort", "multiplier", "clip_norm", "noise_std")
    rows = [[text(one.name), *map(text, _terms(one, words))] for one in runs]
    table = plain_table([words(key) for key in keys], rows, name=words.plain("planned"))
    figures = []
    for key, series in _noises(runs).items():
        if any(_moves(one.points) for one in series):
            axis = ChartAxis(label=words.plain(key), spelt=words.number, from_zero=True)
            figures.append(_figure(words, _TITLES[key], series, axis))
    return table + (tag("div", *figures, class_="grid") if figures else NOTHING)


_TITLES = {"cohort": "cohort", "multiplier": "multiplier", "noise_std": "noise-std", "clip_norm": "clip"}


def _noises(runs: Sequence[Shown]) -> dict[str, list[Series]]:
    """What may change from round to round, by its name."""
    each = list(enumerate(runs))
    return {
        "cohort": [Series(name=one.name, points=_steps(one, "cohort"), style=at, steps=True) for at, one in each],
        "multiplier": [
            Series(name=one.name, points=_steps(one, "noise_multiplier"), style=at, steps=True) for at, one in each
        ],
        "noise_std": [_series(one, at, lambda row: row["noise_std"]) for at, one in each],
        "clip_norm": [_series(one, at, lambda row: row["clip_norm"]) for at, one in each],
    }


def _terms(one: Shown, words: Wording) -> list[str]:
    """Rounds, cohort, noise and clip: a number, or from which to which."""
    planned = words.count(one.planned)
    found = [[point[1] for point in series[0].points] for series in _noises([one]).values()]
    cohort, multiplier, std, clip = ([min(values), max(values)] if values else [] for values in found)
    spelt = [
        UNKNOWN
        if not ends
        else words.number(ends[0])
        if ends[0] == ends[1]
        else f"{words.number(ends[0])} \u2013 {words.number(ends[1])}"
        for ends in (cohort, multiplier, clip, std)
    ]
    return [planned, *spelt]


def inside(shown: Sequence[Shown], words: Wording) -> Markup:
    """What only simulations of public data may look at: how alike contributions are, their norms, noise to signal."""
    runs = [one for one in shown if any(row["simulation"] for row in one.rounds)]
    if not runs:
        return NOTHING
    figures = []
    for key, log in (("between_client_variance", True), ("update_scale", True), ("noise_to_signal", True)):
        found = [_series(one, place, _seen(key)) for place, one in enumerate(runs)]
        if any(one.points for one in found):
            axis = ChartAxis(label=words.plain(key), spelt=lambda value: words.number(value, 2), log=log)
            figures.append(_figure(words, key.replace("_", "-"), found, axis))
    figures += [_norms(one, words, place=place, of=len(runs)) for place, one in enumerate(runs)]
    clipped = [_series(one, place, _seen("fraction_clipped")) for place, one in enumerate(runs)]
    if any(point[1] for one in clipped for point in one.points):
        axis = ChartAxis(
            label=words.plain("fraction_clipped"), spelt=lambda value: words.percent(value, 0), low=0.0, high=1.0
        )
        figures.append(_figure(words, "fraction-clipped", clipped, axis))
    return tag("p", words("inside.only"), class_="warning") + tag("div", *figures, class_="grid")


def _measured(runs: Sequence[Shown], words: Wording) -> Markup:
    what = "accuracy" if any(row["accuracy"] is not None for one in runs for row in one.rounds) else "loss"
    series = [_series(one, place, lambda row: row[what]) for place, one in enumerate(runs)]
    spelt: Callable[[float], str] = words.percent if what == "accuracy" else words.number
    known = {spelt(one.baseline): one.baseline for one in runs if one.baseline is not None}
    lines = [
        GuideLine(label=words.plain("named", name=words.plain("baseline"), value=said), y=value)
        for said, value in list(known.items())[:2]
    ]
    high = max((point[1] for one in series for point in one.points), default=1.0)
    axis = ChartAxis(
        label=words.plain(f"test.{what}"),
        spelt=spelt,
        marked=_marked(words, series) if what == "accuracy" else None,
        high=min(1.0, high + 0.05) if what == "accuracy" else None,
    )
    return _figure(words, what, series, axis, lines=lines)


def _marked(words: Wording, series: Sequence[Series]) -> Callable[[float], str]:
    """Shares at ticks, which are far from each other where the shares are."""
    values = [point[1] for one in series for point in one.points]
    digits = 0 if max(values, default=1.0) - min(values, default=0.0) > 0.05 else 1
    return lambda value: words.percent(value, digits)


def _epsilon(runs: Sequence[Shown], words: Wording) -> Markup:
    series = [
        Series(name=one.name, points=[(0.0, 0.0), *_points(one, lambda row: row["epsilon"])], style=place, steps=True)
        for place, one in enumerate(runs)
    ]
    budgets = sorted({one.budget for one in runs if one.budget is not None})
    lines = [
        GuideLine(label=words.plain("budget.line", budget=words.epsilon(value)), y=value, strong=True)
        for value in budgets[:3]
    ]
    ends = [_spent_at(one) for one in runs] if len(runs) == 1 else []
    lines += [
        GuideLine(label=words.plain("budget.ends", round=words.count(at)), x=float(at)) for at in ends if at is not None
    ]
    return _figure(
        words,
        "epsilon",
        series,
        ChartAxis(label=words.plain("epsilon.axis"), spelt=words.number, from_zero=True),
        lines=lines,
    )


def _spent_at(one: Shown) -> int | None:
    """The round with which the budget is used up: the last that is planned; a silo may have used its own up before."""
    if one.budget is None or one.kind != "silos":
        return one.planned
    found = next((row["round"] + 1 for row in one.rounds if row["epsilon"] >= 0.999 * one.budget), None)
    return found if found is not None else one.planned


def _steps(one: Shown, key: str) -> list[Spot]:
    found, at = [], 1
    for step in one.schedule:
        last = at + step["rounds"] - 1
        found += [(float(at), step[key])] + ([(float(last), step[key])] if last > at else [])
        at = last + 1
    return found


def _norms(one: Shown, words: Wording, *, place: int, of: int) -> Markup:
    seen = [row for row in one.rounds if row["simulation"] and row["simulation"].get("norms")]

    def norm(which: int) -> list[Spot]:
        return [(row["round"] + 1.0, row["simulation"]["norms"][which]) for row in seen]

    series = [
        Series(name=words.plain("norms.middle"), points=norm(2), style=0, band=(norm(1), norm(3))),
        Series(name=words.plain("norms.largest"), points=norm(4), style=1),
        Series(name=words.plain("clip_norm"), points=_points(one, lambda row: row["clip_norm"]), style=6),
    ]
    axis = ChartAxis(label=words.plain("norms"), spelt=words.number, log=True)
    name = f" · {one.name}" if of > 1 else ""
    return curves(
        words,
        key=f"norms-{place}",
        title=words.plain("norms.title") + name,
        about=words.plain("norms.about"),
        series=series,
        x=_over(words),
        y=axis,
    )


def _figure(
    words: Wording, key: str, series: Sequence[Series], y: ChartAxis, *, lines: Sequence[GuideLine] = ()
) -> Markup:
    known = [one for one in series if one.points]
    return curves(
        words,
        key=f"over-{key}",
        title=words.plain(f"title.{key}"),
        about=words.plain(f"about.{key}"),
        series=known,
        x=_over(words),
        y=y,
        lines=lines,
    )


def _over(words: Wording) -> ChartAxis:
    return ChartAxis(label=words.plain("rounds"), spelt=words.count, low=0.0, whole=True)


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


def _moves(points: Sequence[Spot]) -> bool:
    return len({point[1] for point in points}) > 1
