"""What came out of a search: which run is best, and a table."""

import csv
import math
from collections.abc import Sequence
from io import StringIO
from typing import Any

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


def _merit(row: Row) -> tuple[float, float]:
    accuracy, loss = row.get("accuracy"), row.get("loss")
    return -math.inf if accuracy is None else accuracy, -math.inf if loss is None else -loss
