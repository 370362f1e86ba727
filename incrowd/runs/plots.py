"""Pictures. Each function writes one file, whose ending (png, svg, pdf) chooses the format."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from incrowd import _files
from incrowd.errors import ConfigError
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.planner import row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes


_WHAT_IFS = ("epsilon", "clients", "delta")
_PANELS = 4
_TICKS = 8
_INSIDE = 5  # so many names of curves leave room for the curves
_NOISE = "noise of the mean, in clip bounds"
_RATIO = "noise to signal of the mean"


_LOOK: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # letters as letters, which journals ask for
    "svg.hashsalt": "incrowd",  # the same picture is the same file
}
_UNDATED = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


@contextmanager
def axes(path: Path, *, columns: int = 1, rows: int = 1, height: float = 4.0) -> "Iterator[list[Axes]]":
    """Empty axes, row by row, each row so high; what is drawn on them is in the file when the block ends."""
    if find_spec("matplotlib") is None:
        raise ConfigError(field="plot", value=str(path), remedy="pip install 'incrowd[plots]' draws pictures")
    _check_picture(path)
    try:
        with picture(path.suffix.removeprefix("."), columns=columns, rows=rows, height=height) as (panels, content):
            yield panels
        _files.write(path, content.getvalue())
    except OSError as error:
        remedy = f"name a writable .png, .svg or .pdf ({error})"
        raise ConfigError(field="plot", value=str(path), remedy=remedy) from error


@contextmanager
def picture(
    ending: str, *, columns: int = 1, rows: int = 1, height: float = 4.0, dpi: int = 200
) -> "Iterator[tuple[list[Axes], BytesIO]]":
    """Empty axes, and the file in memory, which has what is drawn on them when the block ends.

    Guarantee: the file does not say when it was drawn.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_LOOK):
        figure, content = Figure(figsize=(1 + 4.5 * columns, height * rows), layout="constrained"), BytesIO()
        yield list(figure.subplots(rows, columns, squeeze=False).ravel()), content
        figure.savefig(content, dpi=dpi, format=ending, metadata=_UNDATED[f".{ending}"])


def _check_picture(path: Path) -> None:
    """A picture can be written there: said before it is drawn, and nothing is left lying about."""
    if path.suffix not in _UNDATED:
        raise ConfigError(field="plot", value=str(path), remedy=f"name a file that ends in {', '.join(_UNDATED)}")
    if path.is_dir() or not path.parent.is_dir():
        remedy = "it is a folder: name a file" if path.is_dir() else "its folder is not there: make it first"
        raise ConfigError(field="plot", value=str(path), remedy=remedy)


def plot_plans(path: Path, plans: Sequence[Plan], *, weights: int = 1) -> None:
    """What budgets buy: the noise-to-signal ratio of the mean over the rounds planned, or over what else differs.

    There is a curve for each cohort; where epsilon, the number of clients or delta differ, a curve for each of those,
    and a panel for each cohort.
    """
    points = [_point(plan, weights) for plan in plans]
    if len({point["cohort"] for point in points}) > len({point["share"] for point in points}):
        points = [point | {"cohort": f"{point['share']:.3g} of the clients"} for point in points]
    over, up = _over(points), "noise"
    if not _differ(points, "multiplier") and _differ(points, "rounds"):
        up = "rounds"  # how many a given noise allows
    what_ifs = [name for name in _WHAT_IFS if name != over and _differ(points, name)]
    cohorts = list(dict.fromkeys(point["cohort"] for point in points))
    panels = cohorts if what_ifs and over != "cohort" and len(cohorts) <= _PANELS else [None]
    with axes(path, columns=len(panels)) as several:
        for panel, cohort in zip(several, panels, strict=True):
            shown = [point for point in points if cohort in (None, point["cohort"])]
            apart = [*what_ifs, *(["cohort"] if cohort is None and over != "cohort" else [])]
            _plot_plans(panel, shown, (over, up), apart)
            panel.set_ylabel(up if up == "rounds" else _NOISE if weights == 1 else f"{_RATIO}, {weights:,} weights")
            fixed = [_named(name, points[0][name]) for name in _WHAT_IFS if not _differ(points, name)]
            panel.set_title(", ".join([*fixed, *([] if cohort is None else [_named("cohort", cohort)])]), fontsize=10)


def _plot_plans(
    panel: "Axes", points: Sequence[dict[str, Any]], directions: tuple[str, str], apart: Sequence[str]
) -> None:
    over, up = directions
    curves: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for point in points:
        label = ", ".join(_named(name, point[name]) for name in apart)
        curves[label].append((point[over], point[up]))
    for label, curve in curves.items():
        panel.loglog(*zip(*sorted(curve), strict=True), marker="o", label=label)
    values = sorted({point[over] for point in points})
    if len(values) <= _TICKS:
        panel.set_xticks(values, [f"{value:g}" for value in values])
        panel.set_xticks([], minor=True)
    panel.set_xlabel(over)
    panel.grid(visible=True, which="both", alpha=0.3)
    if len(curves) > _INSIDE:
        panel.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    elif apart:
        panel.legend()


def _point(plan: Plan, weights: int) -> dict[str, Any]:
    """A plan as a place in the picture."""
    point = row(plan, weights=weights)
    names = ("rounds", "cohort", "delta")
    return {name: point[name] for name in names} | {
        "share": point["sampling_prob"],
        "clients": plan.config.members,
        "epsilon": plan.budget.epsilon,
        "noise": point["noise_to_signal"],
        "multiplier": point["noise_multiplier"],
    }


def _over(points: Sequence[dict[str, Any]]) -> str:
    """What the curves run over: the first that takes several values where all else is the same.

    Rounds are no part of all else: those that a given noise allows differ with everything.
    """
    names = ("rounds", *_WHAT_IFS, "cohort")
    for name in names:
        others = [each for each in names if each not in {name, "rounds"}]
        if len({tuple(point[each] for each in others) for point in points}) < len(points):
            return name
    return "rounds"


def _differ(points: Sequence[dict[str, Any]], name: str) -> bool:
    return len({point[name] for point in points}) > 1


def _named(name: str, value: Any) -> str:
    text = f"{value:g}" if isinstance(value, int | float) else value
    return f"{text} clients" if name == "clients" else f"{name} {text}"
