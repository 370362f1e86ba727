"""Pictures that are no curves: a hundred guesses, bars, a strip of many values, cells, settings side by side."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from incrowd.report.charts import COLOURS
from incrowd.report.scales import Scale
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


def _person(x: float, y: float) -> str:
    """Head and shoulders."""
    head = f"M{x - 3:g} {y - 5:g}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z"
    return head + f"M{x - 6:g} {y + 8:g}v-3a6 6 0 0 1 12 0v3z"


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
