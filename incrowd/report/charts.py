"""Charts as SVG, which can be seen, printed and read without a script; colours and dashes are the style sheet's.

A curve of any length is at most a few points for each column of pixels, and one path: how much there is to draw does
not grow with the run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from incrowd.report.scales import Scale, Spot, limits, picked, thinned
from incrowd.report.svg import NOTHING, Markup, alone, joined, number, tag, text

WIDTH, HEIGHT = 440, 264
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 14, 30, 42
_COLUMNS = WIDTH - _LEFT - _RIGHT
_MARKED = 12
COLOURS, DASHES = 7, 4

Spelt = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class ChartAxis:
    """What is along one side: its name, how its values are spelt, and where it begins and ends if that is given.

    At its ticks they are spelt as `marked` says, where that is shorter.
    """

    label: str
    spelt: Spelt
    marked: Spelt | None = None
    low: float | None = None
    high: float | None = None
    log: bool = False
    whole: bool = False
    from_zero: bool = False


@dataclass(frozen=True, kw_only=True)
class Series:
    """A curve by its name; with `band` between two others, as `steps`, or as `dots` alone. `style` tells it apart."""

    name: str
    points: Sequence[Spot]
    style: int = 0
    band: tuple[Sequence[Spot], Sequence[Spot]] | None = None
    steps: bool = False
    dots: bool = False


@dataclass(frozen=True, kw_only=True)
class GuideLine:
    """A line across the chart at a value: `x`, or `y`; with what it is."""

    label: str
    x: float | None = None
    y: float | None = None
    strong: bool = False


@dataclass(frozen=True, kw_only=True)
class PlotFrame:
    """The two scales of a chart."""

    x: Scale
    y: Scale

    def at(self, point: Spot) -> Spot:
        """A point in pixels."""
        return self.x(point[0]), self.y(point[1])


def line_chart(
    series: Sequence[Series], *, x: ChartAxis, y: ChartAxis, lines: Sequence[GuideLine] = (), name: str = ""
) -> Markup:
    """Curves over one axis, and lines that they are to be seen against.

    Guarantee: no extreme of a curve is lost, however long it is; every value is inside of the chart.

    Edge cases: no points: the axes alone.
    """
    frame = _frame(series, x, y, lines)
    guides = [_line(frame, one) for one in lines]
    parts = [_axes(frame, x, y), *(drawn for drawn, _ in guides), *(_series(frame, one) for one in series)]
    parts += [label for _, label in guides]  # no curve goes through a word
    return _svg(joined(parts), name=name, plot=(_TOP, HEIGHT - _BOTTOM))


def place_of(series: Sequence[Series], *, x: ChartAxis) -> Callable[[float], float]:
    """Where a value is along the chart that `line_chart` draws of the same."""
    return _scale([point[0] for one in series for point in one.points], x, start=_LEFT, end=WIDTH - _RIGHT)


def legend(series: Sequence[Series]) -> Markup:
    """What each curve is, in its colour, dash and mark; nothing of a single one."""
    if len(series) < 2:
        return NOTHING
    items = [tag("li", swatch(one.style, dots=one.dots), tag("span", text(one.name))) for one in series]
    return tag("ul", *items, class_="legend")


def swatch(style: int, *, dots: bool = False) -> Markup:
    """A short piece of a curve."""
    drawn = NOTHING if dots else alone("path", d="M1 7H33", class_=f"line {_classes(style)}")
    mark = alone("path", d=_mark(style, 17.0, 7.0), class_=f"mark {_classes(style)}")
    return tag("svg", drawn, mark, viewBox="0 0 34 14", class_="swatch", aria_hidden="true")


def _frame(series: Sequence[Series], x: ChartAxis, y: ChartAxis, lines: Sequence[GuideLine]) -> PlotFrame:
    across = [point[0] for one in series for point in one.points]
    up = [point[1] for one in series for point in one.points]
    up += [point[1] for one in series for side in one.band or () for point in side]
    up += [line.y for line in lines if line.y is not None]
    return PlotFrame(
        x=_scale(across, x, start=_LEFT, end=WIDTH - _RIGHT),
        y=_scale(up, y, start=HEIGHT - _BOTTOM, end=_TOP, room=0.06),
    )


def _scale(values: Sequence[float], axis: ChartAxis, *, start: float, end: float, room: float = 0.0) -> Scale:
    found = [value for value in values if value > 0] if axis.log else list(values)
    low, high = (
        (min(found, default=0.1), max(found, default=1.0))
        if axis.log
        else limits(found, from_zero=axis.from_zero, room=room)
    )
    return Scale(
        low=low if axis.low is None else axis.low,
        high=high if axis.high is None else axis.high,
        start=start,
        end=end,
        log=axis.log,
        whole=axis.whole,
    )


def _axes(frame: PlotFrame, x: ChartAxis, y: ChartAxis) -> Markup:
    grid, labels = [], []
    bottom, left, right = HEIGHT - _BOTTOM, _LEFT, WIDTH - _RIGHT
    for value in frame.y.ticks:
        at = frame.y(value)
        grid.append(f"M{left} {number(at)}H{right}")
        labels.append(tag("text", text((y.marked or y.spelt)(value)), x=left - 7, y=at + 4, class_="tick end"))
    for value in frame.x.ticks:
        at = frame.x(value)
        grid.append(f"M{number(at)} {bottom}v4")
        labels.append(tag("text", text((x.marked or x.spelt)(value)), x=at, y=bottom + 18, class_="tick middle"))
    return joined(
        [
            alone("path", d="".join(grid), class_="grid"),
            alone("path", d=f"M{left} {bottom}H{right}", class_="edge"),
            *labels,
            tag("text", text(y.label), x=2, y=14, class_="label"),
            tag("text", text(x.label), x=right, y=HEIGHT - 5, class_="label end"),
        ]
    )


def _line(frame: PlotFrame, line: GuideLine) -> tuple[Markup, Markup]:
    """A line, and what it is."""
    kind = "reference strong" if line.strong else "reference"
    if line.y is not None:
        at = frame.y(line.y)
        drawn = alone("path", d=f"M{_LEFT} {number(at)}H{WIDTH - _RIGHT}", class_=kind)
        above = at - 5 if at > _TOP + 12 else at + 13
        if line.strong:  # what grows towards it is far from it on the left
            return drawn, tag("text", text(line.label), x=_LEFT + 6, y=above, class_="note")
        return drawn, tag("text", text(line.label), x=WIDTH - _RIGHT - 2, y=above, class_="note end")
    at = frame.x(line.x or 0.0)
    drawn = alone("path", d=f"M{number(at)} {_TOP}V{HEIGHT - _BOTTOM}", class_=kind)
    right = at < WIDTH / 2
    place = "note" if right else "note end"
    beside = at + (5 if right else -5)
    return drawn, tag("text", text(line.label), x=beside, y=HEIGHT - _BOTTOM - 7, class_=place)


def _series(frame: PlotFrame, one: Series) -> Markup:
    classes, points = _classes(one.style), thinned(one.points, columns=_COLUMNS)
    if not points:
        return NOTHING
    parts = []
    if one.band is not None:
        low, high = (thinned(side, columns=_COLUMNS) for side in one.band)
        area = f"{_path(frame, low)}L{_path(frame, list(reversed(high)))[1:]}Z"
        parts.append(alone("path", d=area, class_=f"band {classes}"))
    if not one.dots:
        parts.append(alone("path", d=_path(frame, points, steps=one.steps), class_=f"line {classes}"))
    shown = points if one.dots or len(points) <= _MARKED else [points[place] for place in picked(len(points), 6)]
    marks = "".join(_mark(one.style, *frame.at(point)) for point in shown)
    parts.append(alone("path", d=marks, class_=f"mark {classes}"))
    return joined(parts)


def _path(frame: PlotFrame, points: Sequence[Spot], *, steps: bool = False) -> str:
    said, before = list[str](), ""
    for x, y in map(frame.at, points):
        if not said:
            said.append(f"M{number(x)} {number(y)}")
        elif steps:
            said.append(f"H{number(x)}" if number(y) == before else f"H{number(x)}V{number(y)}")
        else:
            said.append(f"L{number(x)} {number(y)}")
        before = number(y)
    return "".join(said)


def _mark(style: int, x: float, y: float) -> str:
    """A small shape around a point: one for each dash, so that curves differ by more than their colours."""
    x, y = round(x, 1), round(y, 1)
    shapes = (
        f"M{number(x - 3)} {number(y)}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z",
        f"M{number(x - 2.8)} {number(y - 2.8)}h5.6v5.6h-5.6z",
        f"M{number(x)} {number(y - 3.8)}l3.6 6.4h-7.2z",
        f"M{number(x)} {number(y - 4)}l4 4l-4 4l-4 -4z",
    )
    return shapes[style % DASHES]


def _classes(style: int) -> str:
    return f"s{style % COLOURS} d{style % DASHES}"


def _svg(content: Markup, *, name: str, plot: tuple[float, float]) -> Markup:
    """A chart; `plot` is where the cursor of the page's script goes from and to."""
    return tag(
        "svg",
        tag("title", text(name)) if name else NOTHING,
        content,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        class_="chart",
        role="img",
        aria_label=name or None,
        data_plot=f"{number(plot[0])} {number(plot[1])}",
    )
