"""The page: one file that opens from a disk and loads nothing."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from incrowd import __version__
from incrowd.errors import ConfigError
from incrowd.report import figures, numbers, result
from incrowd.report.shown import Facts, Shown
from incrowd.runs.folder import ranked

SECTIONS = {
    "result": ("Result", "The result and the promise"),
    "meaning": ("Meaning", "What that means for one person"),
    "statement": ("Promise", "What is promised, and what is not"),
    "rounds": ("Rounds", "From round to round"),
    "search": ("Comparison", "Settings compared"),
    "pool": ("Pool", "The pool"),
    "silos": ("Silos", "The silos"),
    "noise": ("Noise", "Clip, cohort and noise"),
    "inside": ("Inside", "Inside the simulation"),
    "evaluation": ("Evaluation", "On the clients' own examples"),
    "audit": ("Audit", "Attacked on purpose"),
    "ledger": ("Ledger", "The ledger, line by line"),
    "settings": ("Settings", "Settings"),
    "versions": ("Versions", "Versions"),
}
"""The sections of a page, in order: name and heading. Each is a macro in `static/sections.html`."""

LIMITS = {"SILOS": 100, "CLASSES": 30, "RUNS": 60, "WEIGHTS": 30, "LINES": 12, "LEDGERS": 40, "ORIGINALS": 20}
"""A page shows at most so many of them."""

_NAMES, _LONGEST, _ALL = 12, 300, 20_000
_ENTRIES = {"terms": "terms", "reserve": "reserved", "charge": "charged", "release": "given back"}


def page(shown: Sequence[Shown], *, state: str | None = None) -> str:
    """Write the whole page. A live one shows its `state`, and polls its own server.

    Guarantee: equal runs give equal pages. The page loads nothing, runs no script but its own, and shows every name,
    setting and file as text. Without scripts everything can be seen, printed and read.
    """
    if not shown:
        raise ConfigError(field="runs", value=[], remedy="name the folder of at least one run")
    style, script = static("report.css"), None if state is None else static("live.mjs")
    runs = "script-src 'none'" if script is None else f"script-src {_digest(script)}; connect-src 'self'"
    kinds = dict.fromkeys(result.KINDS[one.kind] for one in shown)
    name = shown[0].name if len(shown) == 1 else f"{len(shown)} folders"
    return _templates().get_template("page.html").render(
        title="The result, and the promise to each person" if len(shown) == 1 else "Several runs side by side",
        about=" · ".join([", ".join(dict.fromkeys(one.data for one in shown)), name, ", ".join(kinds)]),
        policy=f"default-src 'none'; style-src {_digest(style)}; img-src data:; {runs}; base-uri 'none'; "
        "form-action 'none'",
        style=Markup(style),  # noqa: S704 - our own file
        script=None if script is None else Markup(script),  # noqa: S704 - our own file
        shown=shown,
        state=state,
        filled=sections(shown, live=state is not None),
    )  # fmt: skip


def sections(shown: Sequence[Shown], *, live: bool = False) -> dict[str, Markup]:
    """The content of each section, by its id, without its heading; empty sections are left out."""
    macros = _templates().get_template("sections.html").module
    written = {key: Markup(getattr(macros, key)(shown, live).strip()) for key in SECTIONS}  # noqa: S704 - of a template
    return {key: content for key, content in written.items() if content}


def static(name: str) -> str:
    """Read a file that the page contains."""
    return (resources.files("incrowd.report") / "static" / name).read_text(encoding="utf-8")


@cache
def _templates() -> Environment:
    """The templates of the page. Guarantee: every value is escaped and stays text."""
    made = Environment(
        autoescape=True,
        finalize=numbers.printable,
        loader=PackageLoader("incrowd.report", "static"),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    made.tests["numeric"] = numbers.is_numeric
    made.filters |= {
        "count": numbers.count,
        "entry": _entry,
        "epsilon": numbers.epsilon_text,
        "listed": lambda names: ", ".join([*names[:_NAMES], *["…"] * (len(names) > _NAMES)]),
        "number": numbers.number,
        "percent": numbers.percent,
        "percent_at_most": numbers.percent_at_most,
        "plain_lines": lambda lines: "\n".join(map(_plain_line, lines[:_ALL])),
        "setting": _setting,
        "stated": lambda values: {key: _setting(value) for key, value in values.items() if value is not None},
        "typeset": numbers.typeset,
    }
    made.globals |= LIMITS | {
        "KINDS": result.KINDS,
        "SECTIONS": SECTIONS,
        "books_of": _books_of,
        "differences": _differences,
        "figures": figures,
        "headline": result.headline,
        "measure": result.measure,
        "odds_of": result.odds_of,
        "one_of": result.one_of,
        "own": __version__,
        "ranked": ranked,
        "simulations": lambda shown: [one for one in shown if any(row["simulation"] for row in one.rounds)],
        "state": result.state,
        "statements": result.statements,
        "values_of": lambda values, keys: [_setting(values.get(key)) for key in keys],
        "warnings": result.warnings,
    }
    return made


def _digest(content: str) -> str:
    """Name a script or a style as the policy does."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _setting(value: Any) -> str:
    """Write the value of a setting or of a measurement."""
    if isinstance(value, float):
        return numbers.number(value)
    words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    words = numbers.UNKNOWN if value is None else words
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}…"


def _differences(runs: Sequence[Shown]) -> dict[str, list[str]]:
    """The settings in which some runs differ, with the value that each run has."""
    each = [
        {f"{section}.{key}": _setting(value) for section, its in one.settings.items() for key, value in its.items()}
        for one in runs
    ]
    rows = {key: [flat.get(key, numbers.UNKNOWN) for flat in each] for flat in each for key in flat}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _books_of(shown: Sequence[Shown]) -> list[tuple[str, Facts]]:
    """All ledgers, each with the names of its run and of its party."""
    several = len(shown) > 1
    return [
        (" · ".join([one.name] * (several or not book["party"]) + [book["party"]] * bool(book["party"])), book)
        for one in shown
        for book in one.ledgers
    ]


def _entry(line: Facts) -> str:
    kind = _ENTRIES.get(line["kind"], str(line["kind"]))
    return kind if line["round"] is None else f"{kind} · round {line['round'] + 1}"


def _plain_line(line: Mapping[str, Any]) -> str:
    times = f" x {line['count']}" if line["count"] > 1 else ""
    return f"{line['position']:>6}  {line['hash']}  {_entry(line)}  {line['event']}{times}"
