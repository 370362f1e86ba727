"""Counts of a silo's records by class and prediction, and the figures of the noised counts."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from incrowd._random import Floats
from incrowd.algorithms.metrics import mean_of_known
from incrowd.errors import DataError
from incrowd.learning import Model
from incrowd.learning.dpsgd.records import Records
from incrowd.learning.execution import one_thread
from incrowd.learning.inputs import calling
from incrowd.learning.modules import known

_TOGETHER = 1  # records in a call of the model: the rounding of a batch depends on its size


@dataclass(frozen=True, kw_only=True, eq=False)
class Counter:
    """Counts a silo's records by label and predicted class: the largest output, or class 1 if a single output is
    positive.

    Guarantee: a record's prediction follows from the record and the weights alone, bit for bit. So one record more or
    less moves the table by 1.

    Edge cases: a module that is not torch's or incrowd's gets a fresh copy for every record.
    """

    model: Model
    records: Records = field(repr=False)

    def __post_init__(self) -> None:
        if self.records.labels.ndim != 1:
            raise DataError("records have several labels each: what is right cannot be counted, leave the counts out")

    def table(self, weights: Floats, *, classes: int) -> Floats:
        """The counts: a row for each label, a column for each predicted class and one for all other predictions.

        Private: only `RecordRun.report` may take it.
        """
        found = np.zeros((classes, classes + 1))
        predicted = self._predicted(weights).clamp(max=classes)
        np.add.at(found, (self.records.labels.cpu().long().numpy(), predicted.numpy()), 1.0)
        return found

    def _predicted(self, weights: Floats) -> torch.Tensor:
        """The predicted class of each record, which goes through the model alone."""
        records = self.records
        module = self.model.with_weights(weights)
        forgets = all(map(known, module.modules()))
        predicted = torch.zeros(len(records), dtype=torch.int64)
        with one_thread(), torch.no_grad():
            for rows in torch.split(torch.arange(len(records), device=records.device), _TOGETHER):
                outputs = calling(module, records.features)(records.take(rows)[0])
                predicted[rows] = outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()
                module = module if forgets else self.model.with_weights(weights)
        return predicted

    def rehearsal(self, records: int) -> "Counter":
        """The same counter over synthetic records."""
        return Counter(model=self.model, records=self.records.made_up(records))


def figures(table: Floats, *, std: float) -> dict[str, Any]:
    """Accuracy, recall and F1 of a noised table of counts, with noise of this standard deviation in each number.

    `accuracy_std` is the standard deviation that the noise gives the accuracy, to first order; it says nothing about
    new records. Negative counts count as 0, except in the table.

    Edge cases: a figure with the denominator 0 is None.
    """
    counts = np.maximum(table, 0.0)
    classes = len(counts)
    right, held, predicted = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)[:classes]
    total = float(counts.sum())
    accuracy = _ratio(float(right.sum()), total)
    recall = [_ratio(float(a), float(b)) for a, b in zip(right, held, strict=True)]
    f1 = [_ratio(2 * float(a), float(b + c)) for a, b, c in zip(right, held, predicted, strict=True)]
    spread = None if accuracy is None else accuracy_std(accuracy, total, cells=table.size, right=classes) * std
    return {
        "records": total,
        "accuracy": accuracy,
        "accuracy_std": spread,
        "balanced_accuracy": mean_of_known(recall),
        "macro_f1": mean_of_known(f1),
        "recall": recall,
        "f1": f1,
        "noise_std": std,
        "table": table.tolist(),
    }


def accuracy_std(accuracy: float, total: float, *, cells: int, right: int) -> float:
    """The accuracy's standard deviation for noise of 1 in each cell: the derivative is (1 - a) / n in a right cell, and
    a / n in the others.
    """
    return math.sqrt(right * (1 - accuracy) ** 2 + (cells - right) * accuracy**2) / total


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
