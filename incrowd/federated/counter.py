"""What a silo counts of its own records: private, and for noised counts alone."""

from dataclasses import dataclass, field

import torch

from incrowd._random import Floats
from incrowd.learning import Model
from incrowd.learning.records import Reader, Records


@dataclass(frozen=True, kw_only=True, eq=False)
class Counter:
    """Counts a silo's records, and those to whose class a model gives the largest output, a `batch` at a time."""

    model: Model
    records: Records = field(repr=False)
    batch: int = 1000

    def count(self, weights: Floats) -> tuple[int, int]:
        """How many records the silo holds, and how many of them weights get right. Private: for `Permit.counts`."""
        module, reader, right = self.model.with_weights(weights), Reader(self.records, self.batch), 0
        with torch.no_grad():
            for rows in torch.split(torch.arange(len(self.records)), self.batch):
                features, labels = reader.take(rows)
                right += int((module(features).argmax(1) == labels).sum())
        return len(self.records), right

    def rehearsal(self, records: int) -> "Counter":
        """The same on so many records that are made up."""
        return Counter(model=self.model, records=self.records.made_up(records), batch=self.batch)
