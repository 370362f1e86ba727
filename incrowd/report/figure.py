"""A figure of the page: a chart with its name, what is what, and the table of its values, one under the other."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from incrowd.report import numbers
from incrowd.report.charts import ChartAxis, GuideLine, Series, legend, line_chart, place_of
from incrowd.report.scales import picked
from incrowd.report.svg import NOTHING, Markup, joined, tag

ROWS = 100
"""So many rows has the table behind a figure, at most; a longer one has every so many of them, and says so."""

_NUMERIC = re.compile(r"[-\d.,·%\s\u00a0\u202f\u2013\u207b\u2070\u00b9\u00b2\u00b3\u2074-\u2079]*")
"""What a cell of a column of numbers holds."""


@dataclass(frozen=True, kw_only=True)
class FigureTable:
    """Rows of texts under their headings; `places` are where each row is along the chart, if it is."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    places: Sequence[float] = ()
    left_out: int = 0


def figure(*, key: str, title: str, chart: Markup, about: str = "", more: Markup = NOTHING,
           table: FigureTable | None = None, wide: bool = False) -> Markup:  # fmt: skip
    """A figure that can be reached with the keyboard, with its table folded in behind it."""
    note = tag("p", about, class_="about", id=f"{key}-about") if about else NOTHING
    behind = NOTHING
    if table is not None:
        behind = tag("details", tag("summary", "Values as a table"), table_of(table), class_="behind")
    return tag(
        "figure",
        tag("figcaption", title, id=f"{key}-name"),
        note,
        more,
        tag("div", chart, class_="pan") if wide else chart,
        tag("output", class_="read", hidden=True),
        behind,
        id=key,
        class_="figure wide" if wide else "figure",
        tabindex="0",
        role="group",
        aria_labelledby=f"{key}-name",
        aria_describedby=f"{key}-about" if about else None,
    )


def curves(*, key: str, title: str, about: str, series: Sequence[Series], x: ChartAxis, y: ChartAxis,
           lines: Sequence[GuideLine] = ()) -> Markup:  # fmt: skip
    """A figure of curves; its cursor goes along the rows of its table."""
    chart = line_chart(series, x=x, y=y, lines=lines, name=f"{title}. {about}")
    table = _table(series, x=x, y=y)
    return figure(key=key, title=title, about=about, more=legend(series), chart=chart, table=table)


def table_of(table: FigureTable) -> Markup:
    """The table of a figure, which scrolls by itself where it is too wide."""
    kinds = _kinds(table.headings, table.rows)
    head = _head(table.headings, kinds)
    body = []
    for number, row in enumerate(table.rows):
        cells = (tag("td", one, class_=kind) for one, kind in zip(row[1:], kinds[1:], strict=True))
        place = round(table.places[number], 1) if table.places else None
        body.append(tag("tr", tag("th", row[0], scope="row"), *cells, data_x=place))
    left = NOTHING
    if table.left_out:
        left = tag("p", f"{numbers.count(table.left_out)} more rows are left out here.", class_="about")
    inside = tag("table", tag("thead", head), tag("tbody", *body))
    return tag("div", inside, left, class_="scroll", tabindex="0", role="region", aria_label="Values as a table")


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, kind: str = "", name: str) -> Markup:
    """A table that is seen at once; columns of numbers end where their headings end."""
    kinds = _kinds(headings, rows)
    head = _head(headings, kinds)
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(tag("td", one, class_=kind) for one, kind in zip(row[1:], kinds[1:], strict=True)),
        )
        for row in rows
    ]
    inside = tag("table", tag("thead", head), tag("tbody", *body), class_=kind or None)
    return tag("div", inside, class_="scroll", tabindex="0", role="region", aria_label=name)


def facts(values: Mapping[str, str]) -> Markup:
    """Names and their values, as a list."""
    return tag("dl", *(joined([tag("dt", name), tag("dd", value)]) for name, value in values.items()), class_="facts")


def _head(headings: Sequence[str], kinds: Sequence[str | None]) -> Markup:
    cells = (tag("th", one, scope="col", class_=kind) for one, kind in zip(headings, kinds, strict=True))
    return tag("tr", *cells)


def _kinds(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str | None]:
    """The class of each column: of numbers, or none. The first names its row."""
    columns = [[row[place] for row in rows] for place in range(len(headings))]
    numeric = [any(cells) and all(_NUMERIC.fullmatch(cell) for cell in cells) for cells in columns]
    return [None, *("number" if one else None for one in numeric[1:])]


def _table(series: Sequence[Series], *, x: ChartAxis, y: ChartAxis) -> FigureTable:
    each = [dict(one.points) for one in series]
    values = sorted({value for one in each for value in one})
    kept = [values[place] for place in picked(len(values), ROWS)]
    place: Callable[[float], float] = place_of(series, x=x)
    rows = [[x.spelt(value), *("" if value not in one else y.spelt(one[value]) for one in each)] for value in kept]
    return FigureTable(
        headings=[x.label, *(one.name or y.label for one in series)],
        rows=rows,
        places=[place(value) for value in kept],
        left_out=len(values) - len(kept),
    )
