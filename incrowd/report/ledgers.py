"""Ledgers line by line, each with the hash that binds it to all lines before it."""

from collections.abc import Mapping, Sequence
from typing import Any

from incrowd.report import numbers
from incrowd.report.figure import facts, plain_table
from incrowd.report.plain import Shown
from incrowd.report.svg import NOTHING, Markup, joined, tag

_LINES = 12
_LEDGERS = 40
_ALL = 20_000
_ABOUT = (
    "Every line was on disk before anything was released for it. Each hash binds a line to all lines before it: "
    "the keeper of the last hash can tell whether any line was changed. Days, labels and places are left out."
)
_PROBLEMS = {
    "unreadable": "The ledger cannot be read from here, or is not intact: ask its keeper.",
    "another": "The ledger in that place is another one: ask its keeper.",
}
_KINDS = {"terms": "terms", "reserve": "reserved", "charge": "charged", "release": "given back"}

Book = Mapping[str, Any]


def ledgers(shown: Sequence[Shown], *, live: bool = False) -> Markup:
    """The ledgers of all runs: their terms, their first and last lines, and all lines folded in.

    Of very many ledgers the first are shown; a `live` page has no folded lines, which would come anew each time.
    """
    books = [(one, book) for one in shown for book in one.ledgers]
    if not books:
        return NOTHING
    parts = [tag("p", _ABOUT, class_="quiet")]
    for place, (one, book) in enumerate(books[:_LEDGERS]):
        name = " · ".join([one.name] * (len(shown) > 1) + [book["party"]] * bool(book["party"]))
        found = _book(book, live=live)
        if len(books) > 2:
            parts.append(tag("details", tag("summary", name or one.name), found, id=f"book-{place}"))
        else:
            parts += [tag("h3", name) if name else NOTHING, found]
    if len(books) > _LEDGERS:
        parts.append(
            tag("p", f"{numbers.count(len(books) - _LEDGERS)} more ledgers are left out here.", class_="quiet")
        )
    return joined(parts)


def _book(book: Book, *, live: bool) -> Markup:
    if book["problem"] is not None:
        return tag("p", _PROBLEMS[book["problem"]], class_="warning")
    terms = {
        "Data": book["data"],
        "Budget": f"ε = {numbers.epsilon(book['budget'])}, δ = {numbers.number(book['delta'])}",
        "Spent": f"epsilon {numbers.epsilon(book['epsilon'])}, by all that is charged there",
        "Lines": numbers.count(len(book["lines"])),
        "Last hash": tag("code", book["head"]),
    }
    if book["epsilon"] is None:
        del terms["Spent"]
    lines = book["lines"]
    seen = lines if len(lines) <= 2 * _LINES else [*lines[:_LINES], None, *lines[-_LINES:]]
    table = plain_table(("Line", "What", "Event", "Times", "Hash"), [_row(line) for line in seen], name="Ledger",
                        kind="book")  # fmt: skip
    rest = NOTHING
    if len(seen) < len(lines) and not live:
        all_lines = "\n".join(_plain(line) for line in lines[:_ALL])
        rest = tag("details", tag("summary", f"All {numbers.count(len(lines))} lines"), tag("pre", all_lines))
    return joined([facts(terms), table, rest])


def _row(line: Book | None) -> list[str]:
    if line is None:
        return ["…"] * 5
    others = line["kind"] == "charge" and line["own"] is False
    marks = ["seeded"] * bool(line["seeded"]) + ["another run"] * others
    kind = _kind(line)
    what = kind if line["round"] is None else f"{kind} · round {line['round'] + 1}"
    chips = [tag("span", mark, class_="chip text") for mark in marks]
    times = numbers.count(line["count"]) if line["count"] else ""
    return [numbers.count(line["position"]), joined([what, *chips]), line["event"], times, tag("code", line["hash"])]


def _kind(line: Book) -> str:
    return _KINDS.get(line["kind"], str(line["kind"]))


def _plain(line: Book) -> str:
    number = "" if line["round"] is None else f" {line['round'] + 1}"
    count = f" x {line['count']}" if line["count"] > 1 else ""
    return f"{line['position']:>6}  {line['hash']}  {_kind(line)}{number}  {line['event']}{count}"
