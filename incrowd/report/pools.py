"""A pool of draw and discard: what came in, how far its instances are apart, what three adversaries learn."""

from collections.abc import Mapping, Sequence
from typing import Any

from incrowd.report.figure import plain_table
from incrowd.report.plain import Shown
from incrowd.report.svg import NOTHING, Markup, joined, tag, text
from incrowd.report.words import Wording

_WEIGHTS = 30


def pools(shown: Sequence[Shown], words: Wording) -> Markup:
    """Every pool, as its own server shows it."""
    found = [(one, one.pool) for one in shown if one.pool is not None]
    return joined(
        (tag("h3", text(one.name)) if len(shown) > 1 else NOTHING) + _pool(pool, words) for one, pool in found
    )


def _pool(pool: Mapping[str, Any], words: Wording) -> Markup:
    spread = pool.get("spread") or {}
    turned = pool.get("turned_away") or {}
    rows = [
        [words("pool.accepted"), text(words.count(pool.get("accepted")))],
        *(
            [words("pool.turned", why=name.replace("_", " ")), text(words.count(count))]
            for name, count in turned.items()
        ),
        [words("pool.repeated"), text(words.count(pool.get("repeated", 0)))],
        [words("pool.instances"), text(words.count(pool.get("instances")))],
        [words("pool.size"), text(words.count(pool.get("size")))],
        [words("pool.spread"), text(f"{words.number(spread.get('measured'))} ({words.number(spread.get('theory'))})")],
        [words("pool.fingerprint"), tag("code", text(pool.get("fingerprint", "")))],
    ]
    figures = plain_table([words("pool.what"), words("value")], rows, name=words.plain("pool"))
    told = tag(
        "details", tag("summary", words("statement.original")), tag("pre", text(pool.get("statement", "")), lang="en")
    )
    return figures + _adversaries(pool, words) + _weights(pool, words) + told


def _adversaries(pool: Mapping[str, Any], words: Wording) -> Markup:
    views = pool.get("adversaries") or []
    if not views:
        return NOTHING
    rows = [
        [
            tag("span", text(view.get("adversary", "")), lang="en"),
            tag("span", text(view.get("sees", "")), lang="en"),
            text(words.epsilon(view.get("epsilon"))),
            text(words.number(view.get("delta"))),
            tag("span", text(view.get("meaning", "")), lang="en"),
        ]
        for view in views
    ]
    headings = [words(key) for key in ("pool.adversary", "pool.sees", "epsilon", "delta", "pool.meaning")]
    table = plain_table(headings, rows, name=words.plain("pool.adversaries"), kind="wordy")
    return tag("h3", words("pool.adversaries")) + table


def _weights(pool: Mapping[str, Any], words: Wording) -> Markup:
    weights = (pool.get("weights") or [])[:_WEIGHTS]
    if not weights:
        return NOTHING
    rows = [[text(one["feature"]), text(one["output"]), text(words.number(one["weight"]))] for one in weights]
    headings = [words(key) for key in ("pool.feature", "pool.output", "pool.weight")]
    table = plain_table(headings, rows, name=words.plain("pool.weights"))
    return tag("details", tag("summary", words("pool.weights")), table)
