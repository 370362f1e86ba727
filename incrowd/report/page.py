"""The page: one file that opens from a disk, loads nothing and asks nobody."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from incrowd import __version__
from incrowd.errors import ConfigError
from incrowd.report import figures, result, tables
from incrowd.report.markup import NOTHING, Markup, joined, tag, text
from incrowd.report.shown import Shown

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
"""The sections of a page, in order: name and heading. Empty sections are left out."""

_FOOTER = (
    "One file that loads nothing. It holds what may be handed on and nothing else: no paths, no seeds, no days. Made "
    f"with incrowd {__version__}."
)


def page(shown: Sequence[Shown], *, state: str | None = None) -> str:
    """Write the whole page. A live one shows its `state`, and polls its own server.

    Guarantee: equal runs give equal pages. The page loads nothing, runs no script but its own, and shows every name,
    setting and file as text. Without scripts everything can be seen, printed and read.
    """
    if not shown:
        raise ConfigError(field="runs", value=[], remedy="name the folder of at least one run")
    title = "The result, and the promise to each person" if len(shown) == 1 else "Several runs side by side"
    filled = sections(shown, live=state is not None)
    contents = (tag("li", tag("a", SECTIONS[key][0], href=f"#{key}")) for key in filled)
    body = joined(
        [
            tag("a", "To the report", href="#main", class_="skip"),
            _header(shown, title, state),
            tag("nav", tag("ul", *contents), aria_label="Contents"),
            tag("main", *(_section(key, content) for key, content in filled.items()), id="main", tabindex="-1"),
            tag("footer", tag("p", _FOOTER)),
        ]
    )
    return _document(f"{title} · {shown[0].data}", body, script=None if state is None else static("live.mjs"))


def sections(shown: Sequence[Shown], *, live: bool = False) -> dict[str, Markup]:
    """The content of each section, by its id, without its heading."""
    found = {
        "result": result.result(shown),
        "meaning": result.meaning(shown),
        "statement": result.statements(shown),
        "rounds": figures.rounds(shown),
        "search": tables.searches(shown),
        "pool": tables.pools(shown),
        "silos": tables.silos(shown),
        "noise": figures.noise(shown),
        "inside": figures.inside(shown),
        "evaluation": tables.evaluation(shown),
        "audit": tables.audits(shown),
        "ledger": tables.ledgers(shown, live=live),
        "settings": tables.settings(shown),
        "versions": tables.versions(shown, own=__version__),
    }
    return {key: found[key] for key in SECTIONS if found[key]}


def static(name: str) -> str:
    """Read a file that the page contains."""
    return (resources.files("incrowd.report") / "static" / name).read_text(encoding="utf-8")


def _document(title: str, body: Markup, *, script: str | None) -> str:
    style = static("report.css")
    runs = "script-src 'none'" if script is None else f"script-src {_digest(script)}; connect-src 'self'"
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; img-src data:; {runs}; base-uri 'none'; form-action 'none'"
    )
    head = joined(
        [
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{text(policy)}">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'),
            tag("title", title),
            Markup(f"<style>{style}</style>"),
        ]
    )
    ran = "" if script is None else f'<script type="module">{script}</script>'
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>{body}{ran}</body>\n</html>\n'


def _header(shown: Sequence[Shown], title: str, state: str | None) -> Markup:
    data = ", ".join(dict.fromkeys(one.data for one in shown))
    kinds = ", ".join(dict.fromkeys(result.KINDS[one.kind] for one in shown))
    name = shown[0].name if len(shown) == 1 else f"{len(shown)} folders"
    return tag(
        "header",
        tag("p", "Privacy report", class_="kicker"),
        tag("h1", title),
        tag("p", f"{data} · {name} · {kinds}", class_="quiet"),
        NOTHING if state is None else tag("p", state, id="live", role="status"),
    )


def _section(key: str, content: Markup) -> Markup:
    head = tag("h2", SECTIONS[key][1], id=f"{key}-head")
    return tag("section", head, tag("div", content, class_="content"), id=key, aria_labelledby=f"{key}-head")


def _digest(content: str) -> str:
    """Name a script or a style as the policy does."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
