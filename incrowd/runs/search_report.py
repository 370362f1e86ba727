"""What came out of a search: which run is best, a table, a picture."""

import csv
import math
from collections.abc import Sequence
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

from incrowd.runs.plots import axes

Row = dict[str, Any]
"""One run: its settings, its accuracy and loss on the validation set, its epsilon, its rounds, its seconds."""


def best_of(rows: Sequence[Row]) -> int | None:
    """The place of the row with the highest accuracy (without one, with the least loss); of equals the first.

    Edge cases: weights that went astray have no loss and come last; without rows there is no best.
    """
    return max(range(len(rows)), key=lambda place: _merit(rows[place]), default=None)


def ranked(rows: Sequence[Row]) -> list[Row]:
    """The rows, the best first."""
    return sorted(rows, key=_merit, reverse=True)


MEASURED = ("accuracy", "loss", "epsilon", "rounds", "seconds", "run")


def table(rows: Sequence[Row], keys: Sequence[str], *, measured: Sequence[str] = MEASURED) -> str:
    """The rows as a CSV file, the best first."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*keys, *measured])
    for row in ranked(rows):
        writer.writerow([*(row["settings"][key] for key in keys), *(row[name] for name in measured)])
    return text.getvalue()


def plot_search(path: Path, rows: Sequence[Row], keys: Sequence[str]) -> str | None:
    """Accuracy (or loss) over each setting, a point for each run; without matplotlib nothing is drawn."""
    if find_spec("matplotlib") is None:
        return None
    what = "loss" if all(row["accuracy"] is None for row in rows) else "accuracy"
    shown = [row for row in ranked(rows) if row[what] is not None]
    with axes(path, columns=len(keys), height=3.5) as panels:
        for panel, key in zip(panels, keys, strict=True):
            values = [row["settings"][key] for row in shown]
            places, labels = _places(values)
            panel.plot(places, [row[what] for row in shown], linestyle="", marker="o", alpha=0.6)
            panel.plot(places[:1], [row[what] for row in shown[:1]], linestyle="", marker="*", markersize=14)
            if labels:
                panel.set_xticks(range(len(labels)), labels)
            elif min(places) > 0 and max(places) >= 10 * min(places):
                panel.set_xscale("log")
            panel.set_xlabel(key)
            panel.set_ylabel(f"{what} on the validation set")
            panel.grid(visible=True, alpha=0.3)
    return str(path)


def _merit(row: Row) -> tuple[float, float]:
    loss = math.inf if row["loss"] is None else row["loss"]
    return (-math.inf if row["accuracy"] is None else row["accuracy"]), -loss


def _places(values: Sequence[Any]) -> tuple[list[float], list[str]]:
    """Where the values belong on an axis: numbers as they are, others side by side under their names."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [float(value) for value in values], []
    labels = list(dict.fromkeys(map(str, values)))
    return [float(labels.index(str(value))) for value in values], labels
