"""Markup, element by element, with numbers as people read them and tables. Every text stays text."""

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from incrowd.privacy.statement import rounded_up

UNKNOWN = "\u2013"
"""Stands for an unknown number."""

_SPACE = "\u00a0"  # no line breaks there
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_POWER = re.compile(r"(?<=\d)\^(-?\d+)")
_MINUS = re.compile(r"(?<!\S)-(?=\d)")
_NUMERIC = re.compile(r"[-\d.,·%\s\u00a0\u202f\u2013\u207b\u2070\u00b9\u00b2\u00b3\u2074-\u2079]*")


class Markup(str):
    """Finished markup. Joining escapes every string that is no `Markup`."""

    __slots__ = ()

    def __add__(self, other: str) -> "Markup":
        return joined([self, other])


def text(value: object) -> Markup:
    """Escape a value and drop unprintable characters. Guarantee: no part of the result is markup."""
    shown = "".join(one if one.isprintable() or one in "\n\t\u00a0\u202f" else " " for one in str(value))
    return Markup(html.escape(shown, quote=True))


def joined(parts: Iterable[str]) -> Markup:
    """Join parts. Guarantee: parts that are no `Markup` are escaped."""
    return Markup("".join(part if isinstance(part, Markup) else text(part) for part in parts))


NOTHING = Markup("")


def tag(name: str, *content: str, **attributes: object) -> Markup:
    """Make an element. Guarantee: content that is no `Markup`, and every attribute, is escaped.

    An attribute that is None is left out, one that is True has no value; `class_` and `data_x` become class and data-x.
    """
    spelt = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    return Markup(f"<{name}{spelt}/>" if name == "img" else f"<{name}{spelt}>{joined(content)}</{name}>")


def _attribute(name: str, value: object) -> str:
    spelt = name.rstrip("_").replace("_", "-")
    return f" {spelt}" if value is True else f' {spelt}="{text(value)}"'


def plain_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, name: str, kind: str = "", left_out: int = 0
) -> Markup:
    """Make a scrolling table; columns of numbers are aligned right."""
    columns = [[row[place] for row in rows] for place in range(len(headings))]
    numeric = [any(cells) and all(_NUMERIC.fullmatch(cell) for cell in cells) for cells in columns]
    kinds = [None, *("number" if one else None for one in numeric[1:])]
    head = tag("tr", *(tag("th", one, scope="col", class_=its) for one, its in zip(headings, kinds, strict=True)))
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(tag("td", one, class_=its) for one, its in zip(row[1:], kinds[1:], strict=True)),
        )
        for row in rows
    ]
    inside = tag("table", tag("thead", head), tag("tbody", *body), class_=kind or None)
    left = tag("p", f"{count(left_out)} more rows are left out here.", class_="about") if left_out else NOTHING
    return tag("div", inside, left, class_="scroll", tabindex="0", role="region", aria_label=name)


def facts(values: Mapping[str, str]) -> Markup:
    """Make a list of names and values."""
    return tag("dl", *(joined([tag("dt", name), tag("dd", value)]) for name, value in values.items()), class_="facts")


def folded(summary: str, *content: str, **attributes: object) -> Markup:
    """Make content that a reader unfolds."""
    return tag("details", tag("summary", summary), *content, **attributes)


def number(value: float | None, digits: int = 3) -> str:
    """Write a number with this many significant digits."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value and not 1e-4 <= abs(value) < 1e7:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        short = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        power = "10" + str(int(exponent)).translate(_RAISED)
        return power if short == "1" else f"{short}·{power}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    spelt = f"{value:,.{places}f}"
    return spelt.rstrip("0").rstrip(".") if "." in spelt else spelt


def count(value: float | None) -> str:
    """Write a whole number; a fractional mean keeps four digits."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value - round(value)) < 1e-9 else number(value, 4)


def percent(share: float | None, digits: int = 1) -> str:
    """Write a share in percent."""
    return UNKNOWN if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f}{_SPACE}%"


def percent_at_most(share: float) -> str:
    """Write an upper bound in percent. Guarantee: it is rounded up."""
    return f"{rounded_up(100 * share)}{_SPACE}%"


def epsilon_text(value: float | None) -> str:
    """Write an epsilon in four digits. Guarantee: it is rounded up."""
    return UNKNOWN if value is None else rounded_up(value)


def typeset(sentence: str) -> str:
    """Raise the powers of a sentence and print its minus signs."""
    return _MINUS.sub("\u2212", _POWER.sub(lambda found: found[1].translate(_RAISED), sentence))
