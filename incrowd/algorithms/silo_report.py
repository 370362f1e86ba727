"""What a silo's noised table says of a model: made of the table alone, so it costs nothing more."""

import math
from typing import Any

import numpy as np

from incrowd._random import Floats


def figures(table: Floats, *, std: float) -> dict[str, Any]:
    """Figures of a table [class, said], whose last column is for what is no class, with noise of this deviation in each
    number.

    `accuracy_std` is how far noise alone puts the accuracy from the silo's own, to first order; it says nothing of
    records that the silo does not hold. What noise has made negative counts as 0 in all but the table.

    Edge cases: a figure that is then divided by nothing is None.
    """
    counts = np.maximum(table, 0.0)
    classes = len(counts)
    right, held, said = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)[:classes]
    total = float(counts.sum())
    accuracy = _share(float(right.sum()), total)
    recall = [_share(float(a), float(b)) for a, b in zip(right, held, strict=True)]
    f1 = [_share(2 * float(a), float(b + c)) for a, b, c in zip(right, held, said, strict=True)]
    return {
        "records": total,
        "accuracy": accuracy,
        "accuracy_std": None
        if accuracy is None
        else _deviation(accuracy, total, cells=table.size, right=classes) * std,
        "balanced_accuracy": _mean(recall),
        "macro_f1": _mean(f1),
        "recall": recall,
        "f1": f1,
        "noise_std": std,
        "table": table.tolist(),
    }


def _deviation(accuracy: float, total: float, *, cells: int, right: int) -> float:
    """Of a ratio, per deviation in each number: (1 - a) / n for a number that is right, a / n for the others."""
    return math.sqrt(right * (1 - accuracy) ** 2 + (cells - right) * accuracy**2) / total


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
