"""What a silo counts of its own records: private, and for noised counts alone."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from incrowd._random import Floats
from incrowd.errors import DataError
from incrowd.learning import Model
from incrowd.learning.inputs import calling
from incrowd.learning.records import Reader, Records


@dataclass(frozen=True, kw_only=True, eq=False)
class Counter:
    """Counts a silo's records, and those to whose class a model gives the largest output, a `batch` at a time; of a
    model with one output class 1 is what it says above zero.
    """

    model: Model
    records: Records = field(repr=False)
    batch: int = 1000

    def __post_init__(self) -> None:
        if self.records.labels.ndim != 1:
            raise DataError("records have several labels each: what is right cannot be counted, leave the counts out")

    def count(self, weights: Floats) -> tuple[int, int]:
        """How many records the silo holds, and how many of them weights get right. Private: for `Permit.counts`."""
        right = sum(int((said == labels).sum()) for said, labels in self._said(weights))
        return len(self.records), right

    def table(self, weights: Floats, *, classes: int) -> Floats:
        """How many records of each class weights call which: a row for each class, a column for each that is said, and
        one more for what is no class. Private: for `reported`.
        """
        found = torch.zeros((classes, classes + 1), dtype=torch.float64)
        for said, labels in self._said(weights):
            one = torch.ones(len(labels), dtype=torch.float64)
            found.index_put_((labels.long(), said.long().clamp(max=classes)), one, accumulate=True)
        return np.asarray(found.numpy(), np.float64)

    def _said(self, weights: Floats) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Which class is said of each record, and which it is, a batch at a time."""
        module, reader = self.model.with_weights(weights), Reader(self.records, self.batch)
        call = calling(module, self.records.features)
        with torch.no_grad():
            for rows in torch.split(torch.arange(len(self.records)), self.batch):
                features, labels = reader.take(rows)
                outputs = call(features)
                yield (outputs.argmax(1) if outputs.shape[1] > 1 else outputs[:, 0] > 0), labels

    def rehearsal(self, records: int) -> "Counter":
        """The same on so many records that are made up."""
        return Counter(model=self.model, records=self.records.made_up(records), batch=self.batch)
