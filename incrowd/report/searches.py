"""A search: the settings compared, the best on top."""

from collections.abc import Sequence
from typing import Any

from incrowd.report import numbers
from incrowd.report.figure import plain_table
from incrowd.report.plain import Shown
from incrowd.report.settings import spelt
from incrowd.report.svg import Markup, joined, tag
from incrowd.runs.folder import Summary
from incrowd.runs.sweep import ranked

_ROWS = 60


def searches(shown: Sequence[Shown]) -> Markup:
    """Every search that is over, with what its choice cost."""
    return joined(_search(one) for one in shown if one.search is not None)


def _search(one: Shown) -> Markup:
    found = one.search or {}
    if not one.over:
        return tag("p", "It is not over; what it compares is shown when it is.")
    rows = ranked(found["rows"])
    said = tag(
        "p", f"{numbers.count(found.get('settings_compared'))} settings were compared; every run is paid for and shown."
    )
    return said + _table(rows) if rows else said


def _table(rows: Sequence[Summary]) -> Markup:
    keys = list(rows[0]["settings"])
    body = [
        [
            str(place),
            *(_value(row["settings"].get(key)) for key in keys),
            numbers.percent(row.get("accuracy"), 2),
            numbers.number(row.get("loss")),
            numbers.epsilon(row.get("epsilon")),
            numbers.count(row.get("rounds")),
        ]
        for place, row in enumerate(rows[:_ROWS], start=1)
    ]
    headings = ["#", *(tag("code", key) for key in keys), "Accuracy", "Loss", "Epsilon", "Rounds"]
    left = max(len(rows) - _ROWS, 0)
    return plain_table(headings, body, name="Comparison", kind="ranked", left_out=left)


def _value(value: Any) -> str:
    return numbers.number(value) if isinstance(value, float) else spelt(value)
