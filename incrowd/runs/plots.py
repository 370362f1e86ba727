"""Pictures: a run's rounds, and plans. Each function writes one file, whose ending (png, svg, pdf) is its format."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from incrowd import _files
from incrowd.errors import ConfigError
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.planner import row
from incrowd.privacy.statement import rounded_up
from incrowd.runs.folder import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours that the colour-blind can tell apart (Okabe and Ito)."""

_OVER = ("rounds", "epsilon", "clients", "delta", "cohort")
_INSIDE = 5  # so many names of curves leave room for the curves
_MARKED = 40  # so many points can be told apart
_LOOK: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # letters as letters, which journals ask for
    "svg.hashsalt": "incrowd",  # the same picture is the same file
}
_UNDATED = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


@contextmanager
def axes(path: Path, *, columns: int = 1, height: float = 4.0) -> "Iterator[list[Axes]]":
    """Empty axes side by side; everything drawn on them is in the file when the block ends."""
    if find_spec("matplotlib") is None:
        raise ConfigError(field="plot", value=str(path), remedy="pip install 'incrowd[plots]' draws pictures")
    if path.suffix not in _UNDATED:
        raise ConfigError(field="plot", value=str(path), remedy=f"name a file that ends in {', '.join(_UNDATED)}")
    if path.is_dir() or not path.parent.is_dir():
        remedy = "it is a folder: name a file" if path.is_dir() else "its folder is not there: make it first"
        raise ConfigError(field="plot", value=str(path), remedy=remedy)
    try:
        with picture(path.suffix.removeprefix("."), columns=columns, height=height) as (panels, content):
            yield panels
        _files.write(path, content.getvalue())
    except OSError as error:
        remedy = f"name a writable .png, .svg or .pdf ({error})"
        raise ConfigError(field="plot", value=str(path), remedy=remedy) from error


@contextmanager
def picture(
    ending: str, *, columns: int = 1, height: float = 4.0, dpi: int = 200
) -> "Iterator[tuple[list[Axes], BytesIO]]":
    """Empty axes, and the file in memory, which has everything drawn on them when the block ends.

    Guarantee: the file does not say when it was drawn.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_LOOK):
        figure, content = Figure(figsize=(1 + 4.5 * columns, height), layout="constrained"), BytesIO()
        yield list(figure.subplots(1, columns, squeeze=False).ravel()), content
        figure.savefig(content, dpi=dpi, format=ending, metadata=_UNDATED[f".{ending}"])


def plot_run(path: Path, settings: Mapping[str, Any], summary: Mapping[str, Any], records: Sequence[Record]) -> Path:
    """Accuracy (or loss) and epsilon over the rounds of one run, with the baseline, data, promise and unit."""
    what = "accuracy" if summary["accuracy"] is not None else "loss"
    kept = [record for record in records if not record.lost]
    unit = settings["config"]["privacy"]["unit"]
    title = (
        f"{summary['data']}, {summary['clients']} {'silos' if unit == 'record' else 'clients'}, "
        f"ε = {rounded_up(summary['epsilon'])}, δ = {_power(summary['delta'])}, for one {unit}"
    )
    with axes(path, columns=2, height=3.4) as (left, right):
        for panel, name, start in ((left, what, []), (right, "epsilon", [(0, 0.0)])):
            found = [(one.round + 1, getattr(one, name)) for one in kept if getattr(one, name) is not None]
            points = start + found
            marker = "o" if len(points) <= _MARKED else None
            panel.plot([at for at, _ in points], [value for _, value in points], color=COLOURS[0], marker=marker)
            panel.set_xlim(0, max((at for at, _ in points), default=1) * 1.02)
            panel.locator_params(axis="x", integer=True)
            panel.set_xlabel("rounds")
            panel.set_ylabel(f"{what} on the test set" if panel is left else "ε spent, at most")
            panel.grid(visible=True, alpha=0.25)
        right.set_ylim(bottom=0)
        if (least := baseline(summary)) is not None:
            always = "always the most frequent class" if what == "accuracy" else "always the mean"
            left.axhline(least, color="#666666", linestyle="--", label=f"{always}: {least:.3g}")
            left.legend(fontsize="small")
        left.figure.suptitle(f"{title}\nSIMULATION: seeded noise" if summary["simulated"] else title, fontsize="medium")
    return path


def _power(value: float) -> str:
    """A number, as a power of ten where it is one."""
    exponent = round(math.log10(value)) if value > 0 else 0
    if exponent >= -1 or not math.isclose(value, 10.0**exponent):
        return f"{value:g}"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def baseline(summary: Mapping[str, Any]) -> float | None:
    """The score of a constant prediction, in the measure that is drawn."""
    metrics = summary["metrics"] or {}
    found: Mapping[str, Any] = metrics.get("baseline") or {}
    if summary["accuracy"] is not None:
        accuracy = found.get("accuracy")
        return None if accuracy is None else float(accuracy)
    if found.get("mse") is None or not metrics.get("mse") or summary["loss"] is None:
        return None
    share = summary["loss"] / metrics["mse"]  # the squared loss is half of it
    return float(share * found["mse"]) if math.isclose(share, 0.5, rel_tol=1e-3) else None


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
    with axes(path) as (panel,):
        for label, curve in curves.items():
            panel.loglog(*zip(*sorted(curve), strict=True), marker="o", label=label)
        panel.set_xlabel(over)
        panel.set_ylabel("rounds" if up == "rounds" else noise)
        panel.grid(visible=True, which="both", alpha=0.3)
        if len(curves) > _INSIDE:
            panel.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
        elif apart:
            panel.legend()
        fixed = [_named(name, points[0][name]) for name in ("epsilon", "clients", "delta") if name not in differ]
        panel.set_title(", ".join(fixed), fontsize=10)


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
