"""Pictures of what was measured. The ending of a file (png, svg, pdf) chooses its format.

Kinds have Okabe and Ito's colours, which people with any sight of colours tell apart, and a kind of line each, for
print. What is in order, such as numbers, goes from dark to light.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from incrowd import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("png", "svg")
SIMULATED = "SIMULATION: seeded noise"

BLUE, RED, GREEN, ORANGE, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9"
COLOURS = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY)
LINES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2)))
SHADES = (0.0, 0.87)  # of viridis; what is lighter is not seen on white

_LOOK: dict[Any, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "legend.fontsize": "small",
    "lines.linewidth": 1.6,
    "pdf.fonttype": 42,  # letters as letters, which journals ask for
    "svg.fonttype": "none",  # letters again: short, and to be found and read aloud
    "svg.hashsalt": "incrowd",  # the same picture is the same file
}
_WIDEST = 10.0  # inches: wider ones are too small to read on a page
_FEW = 200
"""A logarithmic axis over no more than this has ticks at 1, 2, 5; over more, at powers of ten."""
_PATH = re.compile(rb'(?<= d=")[^"]*')
_INDENT = re.compile(rb"\n +")
_TAIL = re.compile(rb"(\.\d)\d+")
_BLANK = re.compile(rb"\s*([MLQCZ]|$)\s*")
_UNDATED = MappingProxyType({".svg": {"Date": None}, ".pdf": {"CreationDate": None}})


def files(folder: Path, name: str) -> list[Path]:
    """The files of one picture in a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    return [folder / f"{name}.{ending}" for ending in FORMATS]


@contextmanager
def axes(*paths: Path, columns: int = 1, rows: int = 1, height: float = 4.0) -> "Iterator[list[Axes]]":
    """Empty axes, row by row, each row so high; what is drawn on them is in all the files when the block ends.

    Guarantee: no file says when it was drawn.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.rcsetup import cycler
    except ImportError as error:
        remedy = "pip install 'incrowd[plots]' draws pictures"
        raise ConfigError(field="plot", value=str(paths[0]), remedy=remedy) from error
    with rc_context({**_LOOK, "axes.prop_cycle": cycler(color=COLOURS) + cycler(linestyle=LINES)}):
        figure = Figure(figsize=(min(1 + 4.5 * columns, _WIDEST), height * rows), layout="constrained")
        yield list(figure.subplots(rows, columns, squeeze=False).ravel())
        for path in paths:
            try:
                picture = BytesIO()
                ending = path.suffix.removeprefix(".") or "png"
                figure.savefig(picture, dpi=150, format=ending, metadata=_UNDATED.get(path.suffix))
                path.write_bytes(_shorter(picture.getvalue()) if ending == "svg" else picture.getvalue())
            except (OSError, ValueError) as error:
                remedy = f"name a writable .png, .svg or .pdf ({error})"
                raise ConfigError(field="plot", value=str(path), remedy=remedy) from error


def _shorter(picture: bytes) -> bytes:
    """An SVG without indents, and whose lines are exact to a tenth of a point, not to a millionth."""
    return _PATH.sub(lambda path: _BLANK.sub(rb"\1", _TAIL.sub(rb"\1", path[0])), _INDENT.sub(b"\n", picture))


def logarithmic(panel: "Axes", names: str = "xy") -> None:
    """Sets the scales of these directions; their ticks are numbers as people write them, 1, 2, 5, 10."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for name in names:
        panel.set(**{f"{name}scale": "log"})
        axis = panel.xaxis if name == "x" else panel.yaxis
        first, last = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if last < _FEW * first else (1,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}" if value >= 1 else f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def shades(count: int) -> Sequence[dict[str, Any]]:
    """A look for each curve of a series in order, from dark to light."""
    from matplotlib import colormaps

    first, last = SHADES
    places = [first + (last - first) * number / max(count - 1, 1) for number in range(count)]
    return [{"color": colormaps["viridis"](place), "linestyle": "-"} for place in places]


def kinds(count: int) -> Sequence[dict[str, Any]]:
    """A look for each curve of several kinds: after the sixth they come again."""
    return [
        {"color": COLOURS[number % len(COLOURS)], "linestyle": LINES[number % len(LINES)]} for number in range(count)
    ]


def dress(panel: "Axes", x: str = "", y: str = "", *, title: str = SIMULATED, **legend: Any) -> None:
    """What every panel has: names of its axes, a title, and a legend where curves have names."""
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.set_title(title)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(**legend)
