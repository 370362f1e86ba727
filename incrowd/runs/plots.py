"""Pictures. Each function writes one file, whose ending (png, svg, pdf) chooses the format."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from incrowd.errors import ConfigError
from incrowd.privacy.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

    from incrowd.runs.database import Record


@contextmanager
def axes(path: Path, *, columns: int = 1, rows: int = 1, height: float = 4.0) -> "Iterator[list[Axes]]":
    """Empty axes, row by row, each row so high; what is drawn on them is in the file when the block ends."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            field="plot", value=str(path), remedy="pip install 'incrowd[plots]' draws pictures"
        ) from error
    figure = Figure(figsize=(1 + 4.5 * columns, height * rows), layout="constrained")
    yield list(figure.subplots(rows, columns, squeeze=False).ravel())
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigError(
            field="plot", value=str(path), remedy=f"name a writable .png, .svg or .pdf ({error})"
        ) from error


def draw_plans(path: Path, plans: Sequence[Plan]) -> None:
    """What a budget buys: the noise of one released number of the mean, in clip bounds, over the rounds planned."""
    lines: dict[float, list[tuple[int, float]]] = defaultdict(list)
    for plan in plans:
        last = plan.config.schedule.steps[-1]
        lines[last.cohort].append((plan.rounds, last.noise_multiplier / last.cohort))
    budget = plans[0].budget
    with axes(path) as (panel,):
        for cohort, points in sorted(lines.items()):
            panel.loglog(*zip(*sorted(points), strict=True), marker="o", label=f"cohort {cohort:g}")
        panel.set_xlabel("rounds")
        panel.set_ylabel("noise of the mean, in clip bounds")
        panel.set_title(f"{plans[0].config.clients} clients, epsilon {budget.epsilon:g}, delta {budget.delta:g}")
        panel.grid(visible=True, which="both", alpha=0.3)
        panel.legend()


def draw_curve(path: Path, records: "Sequence[Record]", *, simulated: bool) -> None:
    """Accuracy (or loss) and epsilon over the rounds of a run; a simulation is marked, a lost round is left out."""
    measured = [record for record in records if record.loss is not None and not record.lost]
    what = "accuracy" if any(record.accuracy is not None for record in measured) else "loss"
    curves = (
        (f"{what} on the server's test set", [(record.round + 1, getattr(record, what)) for record in measured]),
        ("epsilon, at most", [(0, 0.0), *((record.round + 1, record.epsilon) for record in records)]),
    )
    with axes(path, columns=2, height=3.5) as panels:
        for panel, (label, points) in zip(panels, curves, strict=True):
            panel.plot([x for x, _ in points], [y for _, y in points], marker=".")
            panel.set_xlabel("rounds")
            panel.set_ylabel(label)
            panel.locator_params(axis="x", integer=True)
            panel.grid(visible=True, alpha=0.3)
            if simulated:
                panel.set_title("SIMULATION: seeded noise")
