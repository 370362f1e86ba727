"""A draw-and-discard pool: what it accepted, how far its instances are apart, and what three adversaries learn."""

from collections.abc import Mapping, Sequence
from typing import Any

from incrowd.report import numbers
from incrowd.report.figure import plain_table
from incrowd.report.plain import Shown
from incrowd.report.svg import NOTHING, Markup, joined, tag

_WEIGHTS = 30
_ADVERSARIES = "Three adversaries, and what each may learn of one contribution"


def pools(shown: Sequence[Shown]) -> Markup:
    """Every pool, as its own server shows it."""
    found = [(one, one.pool) for one in shown if one.pool is not None]
    return joined((tag("h3", one.name) if len(shown) > 1 else NOTHING) + _pool(pool) for one, pool in found)


def _pool(pool: Mapping[str, Any]) -> Markup:
    spread, turned = pool.get("spread") or {}, pool.get("turned_away") or {}
    measured, theory = numbers.number(spread.get("measured")), numbers.number(spread.get("theory"))
    rows = [
        ["Contributions accepted", numbers.count(pool.get("accepted"))],
        *([f"Turned away: {why.replace('_', ' ')}", numbers.count(times)] for why, times in turned.items()),
        ["Came again, and counted once", numbers.count(pool.get("repeated", 0))],
        ["Instances in the pool", numbers.count(pool.get("instances"))],
        ["Weights of the model", numbers.count(pool.get("size"))],
        ["How far instances are apart (theory)", f"{measured} ({theory})"],
        ["Fingerprint of what is asked", tag("code", pool.get("fingerprint", ""))],
    ]
    statement = tag("pre", pool.get("statement", ""))
    folded = tag("details", tag("summary", "The statement itself, word for word"), statement)
    return joined([plain_table(("Figure", "Value"), rows, name="Pool"), _adversaries(pool), _weights(pool), folded])


def _adversaries(pool: Mapping[str, Any]) -> Markup:
    views = pool.get("adversaries") or []
    if not views:
        return NOTHING
    rows = [
        [
            view.get("adversary", ""),
            view.get("sees", ""),
            numbers.epsilon(view.get("epsilon")),
            numbers.number(view.get("delta")),
            view.get("meaning", ""),
        ]
        for view in views
    ]
    headings = ("Adversary", "Sees", "Epsilon", "Delta", "What the figure is")
    return tag("h3", _ADVERSARIES) + plain_table(headings, rows, name=_ADVERSARIES, kind="wordy")


def _weights(pool: Mapping[str, Any]) -> Markup:
    weights = (pool.get("weights") or [])[:_WEIGHTS]
    if not weights:
        return NOTHING
    rows = [[one["feature"], one["output"], numbers.number(one["weight"])] for one in weights]
    table = plain_table(("Feature", "Output", "Weight"), rows, name="The largest weights")
    return tag("details", tag("summary", "The largest weights"), table)
