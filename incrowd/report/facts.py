"""Settings and versions: all that may be handed on, and what tells runs apart."""

import json
from collections.abc import Sequence
from typing import Any

from incrowd.report.figure import plain_table
from incrowd.report.plain import Shown
from incrowd.report.svg import NOTHING, Markup, joined, tag, text
from incrowd.report.words import UNKNOWN, Wording

_LONGEST = 300


def settings(shown: Sequence[Shown], words: Wording) -> Markup:
    """The settings of one run; of several what differs, and all of them folded in."""
    runs = [one for one in shown if one.settings]
    if not runs:
        return NOTHING
    each = [_flat(one) for one in runs]
    keys = list(dict.fromkeys(key for flat in each for key in flat))
    if len(runs) == 1:
        return _sections(runs[0])
    apart = [key for key in keys if len({flat.get(key, "") for flat in each}) > 1]
    headings = [words("setting"), *(text(one.name) for one in runs)]
    table = NOTHING
    if apart:
        rows = [[tag("code", text(key)), *(text(flat.get(key, UNKNOWN)) for flat in each)] for key in apart]
        table = plain_table(headings, rows, name=words.plain("settings.apart"))
    said = tag("p", words("settings.apart" if apart else "settings.same"))
    folded = (tag("details", tag("summary", text(one.name)), _sections(one)) for one in runs)
    return joined([said, table, *folded])


def versions(shown: Sequence[Shown], words: Wording, *, own: str) -> Markup:
    """What made the runs, and what made the page."""
    made = [(one.name, one.version) for one in shown if one.version]
    facts = [(words("versions.run", name=name), text(f"incrowd {version}")) for name, version in made]
    facts.append((words("versions.page"), text(f"incrowd {own}")))
    return tag("dl", *(joined([tag("dt", name), tag("dd", value)]) for name, value in facts), class_="facts")


def spelt(value: Any) -> str:
    """A setting as a reader wants it."""
    said = UNKNOWN if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"


def _flat(one: Shown) -> dict[str, str]:
    return {
        f"{section}.{key}": spelt(value) for section, values in one.settings.items() for key, value in values.items()
    }


def _sections(one: Shown) -> Markup:
    parts = []
    for section, values in one.settings.items():
        stated = {key: value for key, value in values.items() if value is not None}
        if stated:
            pairs = joined(joined([tag("dt", key), tag("dd", spelt(value))]) for key, value in stated.items())
            parts.append(tag("div", tag("h3", text(section)), tag("dl", pairs, class_="facts"), class_="settings"))
    return tag("div", *parts, class_="columns")
