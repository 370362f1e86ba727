"""The page: one file that opens from a disk, loads nothing and asks nobody."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from incrowd import __version__
from incrowd.errors import ConfigError
from incrowd.report import audits, ledgers, parties, pools, promise, result, rounds, searches, settings
from incrowd.report.plain import Shown
from incrowd.report.svg import NOTHING, Markup, joined, tag, text

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
"""The sections of a page, in order: name and heading. A section that has nothing to show is left out."""

_FOOTER = (
    "One file that loads nothing. It holds what may be handed on and nothing else: no paths, no seeds, no days. Made "
    f"with incrowd {__version__}."
)


def page(shown: Sequence[Shown], *, state: str | None = None) -> str:
    """The whole page. A live one says how it stands (`state`), and asks its own server again and again.

    Guarantee: the same for the same; nothing in it is loaded from anywhere, no script but its own runs, and whatever a
    name, a setting or a file holds is shown as text. Without scripts everything can be seen, printed and read.

    Edge cases: nothing to show: `ConfigError`.
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
    """The content of each section of the page, by its id, but for its heading."""
    found = {
        "result": result.result(shown),
        "meaning": promise.meaning(shown),
        "statement": promise.statements(shown),
        "rounds": rounds.rounds(shown),
        "search": searches.searches(shown),
        "pool": pools.pools(shown),
        "silos": parties.silos(shown),
        "noise": rounds.noise(shown),
        "inside": rounds.inside(shown),
        "evaluation": parties.evaluation(shown),
        "audit": audits.audits(shown),
        "ledger": ledgers.ledgers(shown, live=live),
        "settings": settings.settings(shown),
        "versions": settings.versions(shown, own=__version__),
    }
    return {key: found[key] for key in SECTIONS if found[key]}


def static(name: str) -> str:
    """A file that is written into the page."""
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
    """A script or a style as the policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
