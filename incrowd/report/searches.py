"""A search: its settings side by side, from axis to axis, and as a table with the best on top."""

import math
from collections.abc import Sequence
from typing import Any

from incrowd.report.facts import spelt
from incrowd.report.figure import figure, plain_table
from incrowd.report.pictures import Dimension, parallel
from incrowd.report.plain import Shown
from incrowd.report.scales import Scale
from incrowd.report.svg import NOTHING, Markup, joined, tag, text
from incrowd.report.words import Wording
from incrowd.runs.search_report import Row

_ROWS = 60
_DRAWN = 400
_NAMES = 8


def searches(shown: Sequence[Shown], words: Wording) -> Markup:
    """Every search that is over, with what its choice cost."""
    return joined(_search(one, words, place=place) for place, one in enumerate(shown) if one.search is not None)


def _search(one: Shown, words: Wording, *, place: int) -> Markup:
    found = one.search or {}
    if not one.over:
        return tag("p", words("search.running"))
    rows: list[Row] = sorted(found["rows"], key=_merit, reverse=True)
    select = found.get("select")
    kind = words.plain(f"search.{select if select in ('private', 'public') else 'all'}")
    said = tag("p", words("search.about", count=words.count(found.get("settings_compared")), kind=kind))
    if not rows:
        return said
    what = "accuracy" if any(row.get("accuracy") is not None for row in rows) else "loss"
    keys = list(rows[0]["settings"])
    chart = NOTHING
    if len(rows) > 1 and keys:
        chart = figure(
            words,
            key=f"search-{place}",
            title=words.plain("search.title"),
            about=words.plain("search.how"),
            chart=_parallel(rows[:_DRAWN], keys, what, words),
            wide=True,
        )
    return said + chart + _table(rows, keys, words)


def _parallel(rows: Sequence[Row], keys: Sequence[str], what: str, words: Wording) -> Markup:
    dimensions = [_dimension(key, [row["settings"].get(key) for row in rows], words) for key in keys]
    names = [what] if all(_as_asked(row) for row in rows) else ["epsilon", what]  # no axis comes twice
    measured = [
        _dimension(words.plain(name), [row.get(name) for row in rows], words, share=name == "accuracy")
        for name in names
    ]
    merits = [row.get(what) for row in rows]
    known = [value for value in merits if value is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    shades = [_shade(value, low, high, up=what == "accuracy") for value in merits]
    return parallel([*dimensions, *measured], shades=shades, best=0, name=words.plain("search.title"))


def _as_asked(row: Row) -> bool:
    """Whether epsilon is a setting, which the run spent."""
    asked, spent = row["settings"].get("privacy.epsilon"), row.get("epsilon")
    return isinstance(asked, int | float) and spent is not None and math.isclose(asked, spent, rel_tol=1e-3)


def _dimension(name: str, values: Sequence[Any], words: Wording, *, share: bool = False) -> Dimension:
    """Numbers as they are, or by their logarithms where they span a lot; others side by side under their names. A
    `share` is spelt as one of a hundred.
    """
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == sum(value is not None for value in values) and numbers:
        low, high = min(numbers), max(numbers)
        if high - low < 1e-3 * abs(high):  # as good as the same
            low = high = (low + high) / 2
            numbers = [high]
        scale = Scale(low=low, high=high, start=0.0, end=1.0, log=low > 0 and high >= 10 * low)
        marks = sorted(set(numbers)) if len(set(numbers)) <= _NAMES else list(scale.ticks)
        spelling = words.percent if share else words.number
        said = {spelling(mark): scale(mark) for mark in marks if scale.low <= mark <= scale.high}
        ticks = [(place, name) for name, place in said.items()]
        return Dimension(
            name=name, places=[None if value is None else scale(float(value)) for value in values], ticks=_apart(ticks)
        )
    labels = list(dict.fromkeys(spelt(value) for value in values))
    gap = 1 / max(len(labels) - 1, 1)
    places = [labels.index(spelt(value)) * gap for value in values]
    return Dimension(
        name=name, places=places, ticks=_apart([(place * gap, label) for place, label in enumerate(labels)])
    )


def _apart(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Those that do not lie on each other."""
    kept: list[tuple[float, str]] = []
    for at, said in ticks:
        if not kept or at - kept[-1][0] >= 0.07:
            kept.append((at, said))
    return kept


def _table(rows: Sequence[Row], keys: Sequence[str], words: Wording) -> Markup:
    headings = [
        text("#"),
        *(tag("code", text(key)) for key in keys),
        *map(words, ("accuracy", "loss", "epsilon", "rounds")),
    ]
    body = [
        [
            text(str(number)),
            *(_value(row["settings"].get(key), words) for key in keys),
            text(words.percent(row.get("accuracy"), 2)),
            text(words.number(row.get("loss"))),
            text(words.epsilon(row.get("epsilon"))),
            text(words.count(row.get("rounds"))),
        ]
        for number, row in enumerate(rows[:_ROWS], start=1)
    ]
    left = len(rows) - _ROWS
    note = tag("p", words("table.left_out", count=words.count(left)), class_="quiet") if left > 0 else NOTHING
    return plain_table(headings, body, name=words.plain("search"), kind="ranked") + note


def _value(value: Any, words: Wording) -> Markup:
    return text(words.number(value) if isinstance(value, float) else spelt(value))


def _merit(row: Row) -> tuple[float, float]:
    accuracy, loss = row.get("accuracy"), row.get("loss")
    return (float("-inf") if accuracy is None else accuracy), (float("-inf") if loss is None else -loss)


def _shade(value: float | None, low: float, high: float, *, up: bool) -> int:
    if value is None or high <= low:
        return 0
    share = (value - low) / (high - low)
    return min(7, int(8 * (share if up else 1 - share)))
