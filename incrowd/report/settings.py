"""Settings and versions: all that may be handed on, and the settings in which runs differ."""

import json
from collections.abc import Sequence
from typing import Any

from incrowd.report.figure import facts, plain_table
from incrowd.report.numbers import UNKNOWN
from incrowd.report.plain import Shown
from incrowd.report.svg import NOTHING, Markup, joined, tag

_LONGEST = 300
_APART = "What tells the runs apart"
_ALIKE = "The runs have the same settings, as far as these may be shown."


def settings(shown: Sequence[Shown]) -> Markup:
    """The settings of one run; of several the differences, and all settings folded in."""
    runs = [one for one in shown if one.settings]
    if not runs:
        return NOTHING
    if len(runs) == 1:
        return _sections(runs[0])
    each = [_flat(one) for one in runs]
    keys = dict.fromkeys(key for flat in each for key in flat)
    apart = [key for key in keys if len({flat.get(key, "") for flat in each}) > 1]
    table = NOTHING
    if apart:
        rows = [[tag("code", key), *(flat.get(key, UNKNOWN) for flat in each)] for key in apart]
        table = plain_table(["Setting", *(one.name for one in runs)], rows, name=_APART)
    folded = (tag("details", tag("summary", one.name), _sections(one)) for one in runs)
    return joined([tag("p", _APART if apart else _ALIKE), table, *folded])


def versions(shown: Sequence[Shown], *, own: str) -> Markup:
    """The version that made each run, and the one that made the page."""
    made = {f"Run {one.name}": f"incrowd {one.version}" for one in shown if one.version}
    return facts(made | {"This page": f"incrowd {own}"})


def spelt(value: Any) -> str:
    """A setting as text."""
    said = UNKNOWN if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"


def _flat(one: Shown) -> dict[str, str]:
    return {
        f"{section}.{key}": spelt(value) for section, values in one.settings.items() for key, value in values.items()
    }


def _sections(one: Shown) -> Markup:
    stated = {
        section: {key: spelt(value) for key, value in values.items() if value is not None}
        for section, values in one.settings.items()
    }
    parts = (
        tag("div", tag("h3", section), facts(values), class_="settings") for section, values in stated.items() if values
    )
    return tag("div", *parts, class_="columns")
