"""Pictures of what was measured. The ending of a file (png, svg, pdf) chooses its format."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from incrowd import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("png", "svg")
SIMULATED = "SIMULATION: seeded noise"


def files(folder: Path, name: str) -> list[Path]:
    """The files of one picture in a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    return [folder / f"{name}.{ending}" for ending in FORMATS]


@contextmanager
def axes(*paths: Path, columns: int = 1, rows: int = 1, height: float = 4.0) -> "Iterator[list[Axes]]":
    """Empty axes, row by row, each row so high; what is drawn on them is in all the files when the block ends."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        remedy = "pip install 'incrowd[plots]' draws pictures"
        raise ConfigError(field="plot", value=str(paths[0]), remedy=remedy) from error
    figure = Figure(figsize=(1 + 4.5 * columns, height * rows), layout="constrained")
    yield list(figure.subplots(rows, columns, squeeze=False).ravel())
    for path in paths:
        try:
            picture = BytesIO()
            figure.savefig(picture, dpi=150, format=path.suffix.removeprefix(".") or "png")
            path.write_bytes(picture.getvalue())
        except (OSError, ValueError) as error:
            remedy = f"name a writable .png, .svg or .pdf ({error})"
            raise ConfigError(field="plot", value=str(path), remedy=remedy) from error


def dress(panel: "Axes", x: str = "", y: str = "", *, title: str = SIMULATED, **legend: Any) -> None:
    """What every panel has: names of its axes, a title, a grid, and a legend where curves have names."""
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.set_title(title)
    panel.grid(visible=True, alpha=0.3)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(**legend)
