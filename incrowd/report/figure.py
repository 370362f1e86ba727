"""Tables of the page, lists of facts, and curves over the rounds."""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec

from incrowd.report import numbers
from incrowd.report.svg import NOTHING, Markup, alone, joined, tag
from incrowd.runs.plots import COLOURS, picture

ROWS = 100
"""So many rows has the table behind a figure, at most; a longer one has every so many of them, and says so."""

Spot = tuple[float, float]

_NUMERIC = re.compile(r"[-\d.,·%\s\u00a0\u202f\u2013\u207b\u2070\u00b9\u00b2\u00b3\u2074-\u2079]*")
"""What a cell of a column of numbers holds."""

_DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A curve by its name. `style` is its colour and dash: a run has the same in every figure."""

    name: str
    points: tuple[Spot, ...]
    style: int = 0


@dataclass(frozen=True, kw_only=True)
class GuideLine:
    """A line across the figure at a value: `x`, or `y`; with its label."""

    label: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, kw_only=True)
class RoundFigure:
    """A figure over the rounds: its key, title, text, and its upright axis."""

    key: str
    title: str
    about: str
    axis: str
    spelt: Callable[[float], str] = numbers.number
    log: bool = False

    def drawn(self, curves: Sequence[Curve], *, lines: Sequence[GuideLine] = ()) -> Markup:
        """The figure with its values in a table behind it. Edge cases: without matplotlib the table alone."""
        known = tuple(one for one in curves if one.points)
        shown = NOTHING
        if find_spec("matplotlib") is not None:
            content = base64.b64encode(_drawn(self.axis, known, tuple(lines), log=self.log)).decode()
            shown = alone("img", src=f"data:image/png;base64,{content}", alt=f"{self.title}. {self.about}")
        behind = tag("details", tag("summary", "Values as a table"), self._table(known), class_="behind")
        caption = tag("figcaption", self.title)
        return tag("figure", caption, tag("p", self.about, class_="about"), shown, behind, id=f"over-{self.key}")

    def _table(self, curves: Sequence[Curve]) -> Markup:
        each = [dict(one.points) for one in curves]
        values = sorted({value for one in each for value in one})
        kept = values[:: max(1, -(-len(values) // ROWS))]
        rows = [[numbers.count(at), *("" if at not in one else self.spelt(one[at]) for one in each)] for at in kept]
        headings = ["Rounds", *(one.name or self.axis for one in curves)]
        return plain_table(headings, rows, name="Values as a table", left_out=len(values) - len(kept))


def plain_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, name: str, kind: str = "", left_out: int = 0
) -> Markup:
    """A table that scrolls by itself; columns of numbers end where their headings end."""
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
    left = tag("p", f"{numbers.count(left_out)} more rows are left out here.", class_="about") if left_out else NOTHING
    return tag("div", inside, left, class_="scroll", tabindex="0", role="region", aria_label=name)


def facts(values: Mapping[str, str]) -> Markup:
    """Names and their values, as a list."""
    return tag("dl", *(joined([tag("dt", name), tag("dd", value)]) for name, value in values.items()), class_="facts")


@lru_cache(maxsize=64)
def _drawn(axis: str, curves: tuple[Curve, ...], lines: tuple[GuideLine, ...], *, log: bool) -> bytes:
    """The picture (PNG); a live page draws one that has not changed only once."""
    with picture("png", height=3.2, dpi=110) as (panel, content):
        for one in curves:
            style, colour = _DASHES[one.style % len(_DASHES)], COLOURS[one.style % len(COLOURS)]
            marker = "o" if len(one.points) <= ROWS // 2 else None
            panel.plot(*zip(*one.points, strict=True), style, color=colour, marker=marker, markersize=3, label=one.name)
        for line in lines:
            draw, at = (panel.axvline, line.x) if line.y is None else (panel.axhline, line.y)
            draw(at or 0.0, color="#444444", linestyle="--", linewidth=1, label=line.label)
        if log:
            panel.set_yscale("log", nonpositive="mask")
        panel.locator_params(axis="x", integer=True)
        panel.set_xlabel("rounds")
        panel.set_ylabel(axis)
        panel.grid(visible=True, alpha=0.25)
        if len(curves) + len(lines) > 1:
            panel.legend(fontsize="small")
    return content.getvalue()
