"""The page that asks for the token: it takes it from the end of the address, which no server and no log ever sees."""

from incrowd.report.page import digest, static
from incrowd.report.svg import Markup, joined, tag, text
from incrowd.report.words import Wording


def entry(language: str, *, wrong: bool = False) -> str:
    """The page. It says nothing of what is watched."""
    words = Wording(language)
    style, script = static("report.css"), static("entry.mjs")
    policy = (
        f"default-src 'none'; style-src {digest(style)}; script-src {digest(script)}; base-uri 'none'; "
        "form-action 'self'"
    )
    form = tag(
        "form",
        tag("label", words("entry.token"), for_="token"),
        tag("input", id="token", name_="token", type="password", autocomplete="off", required=True, autofocus=True),
        tag("button", words("entry.enter"), type="submit"),
        action="/enter",
        method="post",
    )
    said = tag("p", words("entry.wrong"), role="alert") if wrong else Markup("")
    head = joined(
        [
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{text(policy)}">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'),
            tag("title", words("entry.title")),
            Markup(f"<style>{style}</style>"),
        ]
    )
    body = tag("main", tag("h1", words("entry.title")), tag("p", words("entry.why")), said, form, class_="entry")
    return (
        f'<!doctype html>\n<html lang="{words.language}">\n<head>{head}</head>\n<body>{body}'
        f'<script type="module">{script}</script></body>\n</html>\n'
    )
