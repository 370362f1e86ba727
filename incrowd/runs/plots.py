"""Pictures of plans, in one file whose ending (png, svg, pdf) is its format."""

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

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours that the colour-blind can tell apart (Okabe and Ito)."""

_OVER = ("rounds", "epsilon", "clients", "delta", "cohort")
_LOOK: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # letters as letters, which journals ask for
    "svg.hashsalt": "incrowd",  # the same picture is the same file
}
_UNDATED = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


@contextmanager
def picture(ending: str, *, height: float = 4.0, dpi: int = 200) -> "Iterator[tuple[Axes, BytesIO]]":
    """Empty axes, and the file in memory, which has everything drawn on them when the block ends.

    Guarantee: the file does not say when it was drawn.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_LOOK):
        figure, content = Figure(figsize=(5.5, height), layout="constrained"), BytesIO()
        yield figure.subplots(), content
        figure.savefig(content, dpi=dpi, format=ending, metadata=_UNDATED[f".{ending}"])


def plot_plans(path: Path, plans: Sequence[Plan], *, weights: int = 1) -> None:
    """The noise-to-signal ratio of the mean that budgets buy, over the first quantity with several values.

    There is a curve for each combination of the others. Plans of one noise have the rounds that it allows instead.
    """
    points = [_point(plan, weights) for plan in plans]
    differ = [name for name in _OVER if len({point[name] for point in points}) > 1]
    up = "noise" if "rounds" not in differ or len({point["multiplier"] for point in points}) > 1 else "rounds"
    over = next((name for name in differ if name != up), "rounds")
    apart = [name for name in differ if name not in (over, up)]
    curves: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for point in points:
        curves[", ".join(_named(name, point[name]) for name in apart)].append((point[over], point[up]))
    noise = "noise of the mean, in clip bounds" if weights == 1 else f"noise to signal of the mean, {weights:,} weights"
    _check(path)
    with picture(path.suffix.removeprefix(".")) as (panel, content):
        for label, curve in curves.items():
            panel.loglog(*zip(*sorted(curve), strict=True), marker="o", label=label)
        panel.set_xlabel(over)
        panel.set_ylabel("rounds" if up == "rounds" else noise)
        panel.grid(visible=True, which="both", alpha=0.3)
        if len(curves) > 5:  # beside the curves
            panel.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
        elif apart:
            panel.legend()
        fixed = [_named(name, points[0][name]) for name in ("epsilon", "clients", "delta") if name not in differ]
        panel.set_title(", ".join(fixed), fontsize=10)
    try:
        _files.write(path, content.getvalue())
    except OSError as error:
        remedy = f"name a writable .png, .svg or .pdf ({error})"
        raise ConfigError(field="plot", value=str(path), remedy=remedy) from error


def _check(path: Path) -> None:
    """Refuse a file that cannot be drawn."""
    remedy = None
    if find_spec("matplotlib") is None:
        remedy = "pip install 'incrowd[plots]' draws pictures"
    elif path.suffix not in _UNDATED:
        remedy = f"name a file that ends in {', '.join(_UNDATED)}"
    elif not path.parent.is_dir():
        remedy = "its folder is not there: make it first"
    if remedy is not None:
        raise ConfigError(field="plot", value=str(path), remedy=remedy)


def _point(plan: Plan, weights: int) -> dict[str, Any]:
    """A plan as a place in the picture."""
    point = row(plan, weights=weights)
    return {name: point[name] for name in ("rounds", "cohort", "delta")} | {
        "clients": plan.config.members,
        "epsilon": plan.budget.epsilon,
        "noise": point["noise_to_signal"],
        "multiplier": point["noise_multiplier"],
    }


def _named(name: str, value: float) -> str:
    return f"{value:g} clients" if name == "clients" else f"{name} {value:g}"
