"""What a silo counts of its own records: private, and for noised counts alone."""

from dataclasses import dataclass, field

import numpy as np
import torch

from incrowd._random import Floats
from incrowd.errors import DataError
from incrowd.learning import Model
from incrowd.learning.arithmetic import one_thread
from incrowd.learning.dpsgd.records import Records
from incrowd.learning.inputs import calling
from incrowd.learning.modules import known

_TOGETHER = 1  # records in a call of the model: several would be rounded by how many they are


@dataclass(frozen=True, kw_only=True, eq=False)
class Counter:
    """Counts a silo's records, and those to whose class a model gives the largest output; of a model with one output
    class 1 is what it says above zero.

    Guarantee: what is said of a record follows from the record and the weights alone, bit for bit. So one record more
    or less moves the table by 1.

    Edge cases: modules that are not torch's or ours get a fresh copy for every record.
    """

    model: Model
    records: Records = field(repr=False)

    def __post_init__(self) -> None:
        if self.records.labels.ndim != 1:
            raise DataError("records have several labels each: what is right cannot be counted, leave the counts out")

    def table(self, weights: Floats, *, classes: int) -> Floats:
        """How many records of each class weights call which: a row for each class, a column for each that is said, and
        one more for what is no class. Private: for `RecordRun.report`.
        """
        found = np.zeros((classes, classes + 1))
        said = self._said(weights).clamp(max=classes)
        np.add.at(found, (self.records.labels.cpu().long().numpy(), said.numpy()), 1.0)
        return found

    def _said(self, weights: Floats) -> torch.Tensor:
        """Which class is said of each record: each goes through the model alone, for what a processor rounds in a batch
        depends on how many there are, and on the place among them.
        """
        records = self.records
        module = self.model.with_weights(weights)
        forgets = all(map(known, module.modules()))
        said = torch.zeros(len(records), dtype=torch.int64)
        with one_thread(), torch.no_grad():
            for rows in torch.split(torch.arange(len(records), device=records.device), _TOGETHER):
                outputs = calling(module, records.features)(records.take(rows)[0])
                said[rows] = outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()
                module = module if forgets else self.model.with_weights(weights)
        return said

    def rehearsal(self, records: int) -> "Counter":
        """The same on so many records that are made up."""
        return Counter(model=self.model, records=self.records.made_up(records))
