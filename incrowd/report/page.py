"""The page: one file that opens from a disk, loads nothing and asks nobody, in any of the catalogue's languages."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from incrowd import __version__
from incrowd.errors import ConfigError
from incrowd.report import audits, books, facts, over_rounds, parties, pools, promise, searches
from incrowd.report.plain import Shown
from incrowd.report.svg import NOTHING, Markup, joined, tag, text
from incrowd.report.words import Wording

SECTIONS = (
    "result", "meaning", "statement", "rounds", "search", "pool", "silos", "noise", "inside", "evaluation", "audit",
    "ledger", "settings", "versions",
)  # fmt: skip
"""The sections of a page, in order; one that has nothing to show is left out."""


def page(shown: Sequence[Shown], *, language: str = "en", live: bool = False) -> str:
    """The whole page. A `live` one says how it stands in an element of its own, and may ask its own server.

    Guarantee: the same for the same; nothing in it is loaded from anywhere, no script but its own runs, and whatever a
    name, a setting or a file holds is shown as text. Without scripts everything can be seen, printed and read.

    Edge cases: nothing to show, or an unknown language: `ConfigError`.
    """
    if not shown:
        raise ConfigError(field="runs", value=[], remedy="name the folder of at least one run")
    words = Wording(language)
    style, script = static("report.css"), static("report.mjs")
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        f"{'connect-src ' + chr(39) + 'self' + chr(39) + '; ' if live else ''}base-uri 'none'; form-action 'none'"
    )
    title = words.plain("title.one" if len(shown) == 1 else "title.several")
    head = joined(
        [
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{text(policy)}">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'),
            tag("title", text(f"{title} · {shown[0].data}")),
            Markup(f"<style>{style}</style>"),
        ]
    )
    filled = _named(shown, words, live=live)
    body = joined(
        [
            tag("a", words("skip"), href="#main", class_="skip"),
            _header(shown, words, title, live=live),
            tag("nav", _contents(filled, words), aria_label=words.plain("contents")),
            tag("main", *(_section(key, content, words) for key, content in filled.items()), id="main", tabindex="-1"),
            tag("footer", tag("p", words("footer", version=__version__))),
            Markup(f'<script type="module">{script}</script>'),
        ]
    )
    return f'<!doctype html>\n<html lang="{words.language}">\n<head>{head}</head>\n<body>{body}</body>\n</html>\n'


def sections(shown: Sequence[Shown], *, language: str, live: bool = False) -> dict[str, str]:
    """What is inside of each section of the page of the same, by its id, but for its heading.

    A live page swaps what is in `#ID > .content`, and reloads where a section is new.
    """
    return {key: str(content) for key, content in _named(shown, Wording(language), live=live).items()}


def static(name: str) -> str:
    """A file that is written into the page."""
    return (resources.files("incrowd.report") / "static" / name).read_text(encoding="utf-8")


def _named(shown: Sequence[Shown], words: Wording, *, live: bool) -> dict[str, Markup]:
    found = {
        "result": promise.result(shown, words),
        "meaning": promise.meaning(shown, words),
        "statement": promise.caveats(shown, words),
        "rounds": over_rounds.rounds(shown, words),
        "search": searches.searches(shown, words),
        "pool": pools.pools(shown, words),
        "silos": parties.silos(shown, words),
        "noise": over_rounds.noise(shown, words),
        "inside": over_rounds.inside(shown, words),
        "evaluation": parties.evaluation(shown, words),
        "audit": audits.audits(shown, words),
        "ledger": books.ledgers(shown, words, live=live),
        "settings": facts.settings(shown, words),
        "versions": facts.versions(shown, words, own=__version__),
    }
    return {key: found[key] for key in SECTIONS if found[key]}


def _header(shown: Sequence[Shown], words: Wording, title: str, *, live: bool) -> Markup:
    data = ", ".join(dict.fromkeys(one.data for one in shown))
    kinds = ", ".join(dict.fromkeys(words.plain(f"kind.{one.kind}") for one in shown))
    name = shown[0].name if len(shown) == 1 else words.plain("runs.count", count=len(shown))
    state = tag("p", id="live", role="status", aria_live="polite") if live else NOTHING
    themes = joined(
        tag("button", words(f"theme.{theme}"), type="button", data_theme=theme, aria_pressed="false")
        for theme in ("auto", "light", "dark")
    )
    return tag(
        "header",
        tag(
            "div",
            tag("p", words("kicker"), class_="kicker"),
            tag("h1", text(title)),
            tag("p", text(f"{data} · {name} · {kinds}"), class_="quiet"),
            state,
        ),
        tag("div", themes, class_="themes", role="group", aria_label=words.plain("theme"), hidden=True),
    )


def _contents(filled: dict[str, Markup], words: Wording) -> Markup:
    return tag("ul", *(tag("li", tag("a", words(f"nav.{key}"), href=f"#{key}")) for key in filled))


def _section(key: str, content: Markup, words: Wording) -> Markup:
    head = tag("h2", words(f"head.{key}"), id=f"{key}-head")
    return tag("section", head, tag("div", content, class_="content"), id=key, aria_labelledby=f"{key}-head")


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
