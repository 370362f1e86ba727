"""Pictures that are no curves: a hundred guesses, bars, a strip of many values, cells, settings side by side."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from incrowd.report.charts import COLOURS, Spelt
from incrowd.report.scales import Scale, limits
from incrowd.report.svg import NOTHING, Markup, alone, joined, number, tag, text

_ROW = 38
_LINE = 15.0
_LETTERS = 50
_WIDE = 860.0
_WIDTH = 440
_LEVELS = 8


@dataclass(frozen=True, kw_only=True)
class NamedBar:
    """A value by its name, with how it is spelt, and an interval around it if there is one."""

    name: str
    value: float
    said: str
    style: int = 0
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """One upright axis of `parallel`: its name, a place from 0 to 1 for each row, and what is at which place."""

    name: str
    places: Sequence[float | None]
    ticks: Sequence[tuple[float, str]]


def guesses(right: int, *, name: str) -> Markup:
    """A hundred guesses, ten by ten: those that may be right are full, of which fifty are right by chance alone.

    Edge cases: beyond 0 to 100 the nearest of them.
    """
    right = min(max(right, 0), 100)
    full, chance, wrong = list[str](), list[str](), list[str]()
    for place in range(100):
        x, y = 12 + 24 * (place % 10), 12 + 24 * (place // 10)
        group = chance if place < min(50, right) else full if place < right else wrong
        group.append(_person(x, y))
    parts = [
        alone("path", d="".join(paths), class_=kind)
        for kind, paths in (("person chance", chance), ("person sure", full), ("person wrong", wrong))
        if paths
    ]
    return tag(
        "svg", tag("title", text(name)), *parts, viewBox="0 0 240 240", class_="guesses", role="img", aria_label=name
    )


def bars(
    given: Sequence[NamedBar], *, name: str, line: tuple[float, str] | None = None, most: float | None = None
) -> Markup:
    """Bars from the left, one below the other, and a line that they are to be seen against."""
    values = [bar.value for bar in given] + [bar.interval[1] for bar in given if bar.interval]
    values += [line[0]] if line else []
    top = max([value for value in values if value == value], default=1.0) if most is None else most
    scale = Scale(low=0.0, high=(top or 1.0) * (1.0 if most else 1.02), start=0.0, end=_WIDTH - 74.0)
    parts, top_of = list[Markup](), 0.0
    for bar in given:
        *before, said = _lines(bar.name)
        for early in before:
            parts.append(tag("text", text(early), x=0, y=top_of + 15, class_="tick"))
            top_of += _LINE
        y = top_of + 4.0
        top_of += _ROW
        width = max(scale(min(bar.value, scale.high)), 0.5)
        parts += [
            tag("text", text(said), x=0, y=y + 11, class_="tick"),
            alone("path", d=f"M0 {number(y + 16)}h{number(scale.end)}v11h-{number(scale.end)}z", class_="rail"),
            alone(
                "path",
                d=f"M0 {number(y + 16)}h{number(width)}v11h-{number(width)}z",
                class_=f"bar s{bar.style % COLOURS}",
            ),
            tag("text", text(bar.said), x=_WIDTH, y=y + 26, class_="value end"),
        ]
        if bar.interval is not None:
            low, high = (scale(min(max(side, 0.0), scale.high)) for side in bar.interval)
            left, right, edge = number(low), number(high), number(y + 17)
            whisker = f"M{left} {number(y + 21.5)}H{right}M{left} {edge}v9M{right} {edge}v9"
            parts.append(alone("path", d=whisker, class_="whisker"))
    height = top_of + (22 if line else 4)
    if line is not None:
        at = scale(min(line[0], scale.high))
        parts.append(alone("path", d=f"M{number(at)} 6V{number(height - 16)}", class_="reference strong"))
        side = "note end" if at > _WIDTH / 2 else "note"
        parts.append(tag("text", text(line[1]), x=at, y=height - 3, class_=side))
    return _picture(joined(parts), name, height)


def strip(
    values: Sequence[float], *, name: str, label: str, spelt: Spelt, line: tuple[float, str] | None = None
) -> Markup:
    """Many values as one row of dots, those that are near each other piled up.

    Guarantee: all of them are one path, however many there are.
    """
    low, high = limits([*values, *([line[0]] if line else [])], from_zero=False)
    scale = Scale(low=low, high=high, start=8.0, end=_WIDTH - 8.0)
    piles: dict[int, int] = {}
    for value in sorted(values):
        column = round(scale(value) / 5)
        piles[column] = piles.get(column, 0) + 1
    height, tallest = 150.0, max(piles.values(), default=1)
    rise = min(5.0, (height - 34 - 44) / tallest)
    dots = "".join(
        f"M{number(column * 5.0)} {number(height - 34 - level * rise)}h0"
        for column, count in piles.items()
        for level in range(count)
    )
    parts = [
        alone("path", d=f"M8 {height - 28:g}H{_WIDTH - 8}", class_="edge"),
        alone("path", d=dots, class_="swarm s0"),
    ]
    parts += [tag("text", spelt(tick), x=scale(tick), y=height - 13, class_="tick middle") for tick in scale.ticks]
    parts.append(tag("text", text(label), x=2, y=12, class_="label"))
    if line is not None:
        at = scale(line[0])
        parts.append(alone("path", d=f"M{number(at)} 18V{height - 28:g}", class_="reference strong"))
        side = "note end" if at > _WIDTH / 2 else "note"
        parts.append(tag("text", text(line[1]), x=at + (-5 if at > _WIDTH / 2 else 5), y=28, class_=side))
    return _picture(joined(parts), name, height)


def cells(
    rows: Sequence[tuple[str, Sequence[float | None]]],
    *,
    name: str,
    low: float,
    high: float,
    labels: Sequence[str] = (),
) -> Markup:
    """A row of cells for each name, darker where a value is larger; what is next to its equal is one cell with it.
    `labels` are below the columns.

    Edge cases: None is an empty cell.
    """
    columns = max((len(values) for _, values in rows), default=1)
    left, height, parts = 110.0, 8.0 + 18 * len(rows) + (16 if labels else 0), list[Markup]()
    width = (_WIDTH - left) / max(columns, 1)
    for place, (said, values) in enumerate(rows):
        y = 4.0 + 18 * place
        parts.append(tag("text", text(_cut(said, 15)), x=left - 7, y=y + 12, class_="tick end"))
        start = 0
        for column in range(1, len(values) + 1):
            if column < len(values) and _level(values[column], low, high) == _level(values[start], low, high):
                continue
            level = _level(values[start], low, high)
            across = number((column - start) * width)
            shape = f"M{number(left + start * width)} {number(y)}h{across}v15h-{across}z"
            parts.append(alone("path", d=shape, class_="cell" if level is None else f"cell l{level}"))
            start = column
    for column, label in enumerate(labels):
        at = left + (column + 0.5) * width
        parts.append(tag("text", label, x=at, y=height - 3, class_="tick middle"))
    return _picture(joined(parts), name, height)


def parallel(dimensions: Sequence[Dimension], *, shades: Sequence[int], best: int | None, name: str) -> Markup:
    """A path for each row, from axis to axis; `shades` (0 to 7) colour them, and the best is drawn last and bold.

    Edge cases: a row without a place on some axis has a gap there.
    """
    width, top, bottom = max(_WIDE, 130.0 * len(dimensions)), 44.0, 286.0
    gap = (width - 160) / max(len(dimensions) - 1, 1)
    xs = [70 + gap * place for place in range(len(dimensions))]
    order = sorted(range(len(shades)), key=lambda row: (row == best, shades[row]))
    parts = []
    for row in order:
        path, pen = "", "M"
        for x, dimension in zip(xs, dimensions, strict=True):
            place = dimension.places[row]
            if place is None:
                pen = "M"
                continue
            path += f"{pen}{number(x)} {number(bottom - place * (bottom - top))}"
            pen = "L"
        kind = "thread best" if row == best else f"thread l{shades[row]}"
        parts.append(alone("path", d=path or "M0 0", class_=kind, data_row=row))
    for place, (x, dimension) in enumerate(zip(xs, dimensions, strict=True)):
        parts.append(alone("path", d=f"M{number(x)} {top:g}V{bottom:g}", class_="edge"))
        parts.append(
            tag("text", text(_cut(dimension.name, 20)), x=x, y=12 if place % 2 == 0 else 26, class_="label middle")
        )
        for at, said in dimension.ticks:
            y = bottom - at * (bottom - top)
            parts.append(tag("text", text(_cut(said, 12)), x=x + 6, y=y + 4, class_="tick halo"))
    return _picture(joined(parts), name, 300.0, width=width)


def _person(x: float, y: float) -> str:
    """Head and shoulders."""
    head = f"M{x - 3:g} {y - 5:g}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z"
    return head + f"M{x - 6:g} {y + 8:g}v-3a6 6 0 0 1 12 0v3z"


def _level(value: float | None, low: float, high: float) -> int | None:
    if value is None:
        return None
    return min(max(int(_LEVELS * (value - low) / (high - low)), 0), _LEVELS - 1) if high > low else _LEVELS - 1


def _lines(said: str) -> list[str]:
    """A name in at most three lines, as the width lets it."""
    lines = textwrap.wrap(said, _LETTERS) or [""]
    return lines if len(lines) <= 3 else [*lines[:2], _cut(" ".join(lines[2:]), _LETTERS)]


def _cut(said: str, most: int = 48) -> str:
    return said if len(said) <= most else f"{said[: most - 1]}…"


def _picture(content: Markup, name: str, height: float, *, width: float = _WIDTH) -> Markup:
    return tag(
        "svg",
        tag("title", text(name)) if name else NOTHING,
        content,
        viewBox=f"0 0 {number(width)} {number(height)}",
        class_="chart",
        role="img",
        aria_label=name,
    )
