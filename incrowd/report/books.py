"""Ledgers line by line, each with the hash that binds it to all lines before it."""

from collections.abc import Mapping, Sequence
from typing import Any

from incrowd.report.figure import plain_table
from incrowd.report.plain import Shown
from incrowd.report.svg import NOTHING, Markup, joined, tag, text
from incrowd.report.words import Wording

_LINES = 12
_LEDGERS = 40
_ALL = 20_000

Book = Mapping[str, Any]


def ledgers(shown: Sequence[Shown], words: Wording, *, live: bool = False) -> Markup:
    """What was charged to the ledgers: their terms, their first and last lines, and all lines folded in.

    Of very many ledgers the first are shown; a `live` page has no folded lines, which would come anew each time.
    """
    books = [(one, book) for one in shown for book in one.ledgers]
    if not books:
        return NOTHING
    several = len(shown) > 1
    parts = [tag("p", words("ledger.about"), class_="quiet")]
    for number, (one, book) in enumerate(books[:_LEDGERS]):
        name = " · ".join([one.name] * several + [book["party"]] * bool(book["party"]))
        found = _book(book, words, live=live)
        if len(books) > 2:
            parts.append(tag("details", tag("summary", text(name or one.name)), found, id=f"book-{number}"))
        else:
            parts += [tag("h3", text(name)) if name else NOTHING, found]
    if len(books) > _LEDGERS:
        parts.append(tag("p", words("table.left_out", count=words.count(len(books) - _LEDGERS)), class_="quiet"))
    return joined(parts)


def _book(book: Book, words: Wording, *, live: bool) -> Markup:
    if book["problem"] is not None:
        return tag("p", words(f"ledger.{book['problem']}"), class_="warning")
    spent = NOTHING if book["epsilon"] is None else words("ledger.spent", epsilon=words.epsilon(book["epsilon"]))
    facts = [
        (words("data"), text(book["data"])),
        (words("budget"), text(f"ε = {words.epsilon(book['budget'])}, δ = {words.number(book['delta'])}")),
        (words("spent"), spent),
        (words("ledger.entries"), text(words.count(len(book["lines"])))),
        (words("ledger.head"), tag("code", text(book["head"]))),
    ]
    terms = tag("dl", *(joined([tag("dt", name), tag("dd", value)]) for name, value in facts if value), class_="facts")
    lines = book["lines"]
    seen = lines if len(lines) <= 2 * _LINES else [*lines[:_LINES], None, *lines[-_LINES:]]
    headings = [words(key) for key in ("ledger.line", "ledger.kind", "ledger.event", "ledger.count", "ledger.hash")]
    table = plain_table(headings, [_row(line, words) for line in seen], name=words.plain("ledger"), kind="book")
    rest = NOTHING
    if len(seen) < len(lines) and not live:
        said = "\n".join(_spelt(line, words) for line in lines[:_ALL])
        rest = tag(
            "details", tag("summary", words("ledger.all", count=words.count(len(lines)))), tag("pre", text(said))
        )
    return joined([terms, table, rest])


def _row(line: Book | None, words: Wording) -> list[Markup]:
    if line is None:
        return [text("…")] * 5
    kind = words.plain(f"entry.{line['kind']}") if line["kind"] in _KINDS else line["kind"]
    said = f"{kind} · {words.plain('round')} {line['round'] + 1}" if line["round"] is not None else kind
    seeded = tag("span", words("seeded"), class_="chip text") if line["seeded"] else NOTHING
    others = line["kind"] == "charge" and line["own"] is False
    own = tag("span", words("ledger.others"), class_="chip text") if others else NOTHING
    cells = [words.count(line["position"]), said, line["event"], words.count(line["count"]) if line["count"] else ""]
    marked = [text(cells[0]), joined([text(cells[1]), seeded, own]), text(cells[2]), text(cells[3])]
    return [*marked, tag("code", text(line["hash"]))]


_KINDS = ("terms", "reserve", "charge", "release")


def _spelt(line: Book, words: Wording) -> str:
    kind = words.plain(f"entry.{line['kind']}") if line["kind"] in _KINDS else line["kind"]
    number = "" if line["round"] is None else f" {line['round'] + 1}"
    count = f" x {line['count']}" if line["count"] > 1 else ""
    return f"{line['position']:>6}  {line['hash']}  {kind}{number}  {line['event']}{count}"
