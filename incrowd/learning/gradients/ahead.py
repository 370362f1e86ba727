"""Records as the frozen layers that a model begins with leave them: each goes through once, the rest is trained."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from incrowd.data.inputs import is_single
from incrowd.learning.execution import Execution
from incrowd.learning.frozen import divided, made_of_one
from incrowd.learning.inputs import chosen, meant
from incrowd.learning.models import Model
from incrowd.learning.modules import remembering_nothing
from incrowd.learning.records import Records
from incrowd.privacy.mechanism.steps import RecordTraining

_MEMORY = 2**30  # bytes of what the layers make that are kept at most
_USES = 4  # how often a record has to take part, on average, to win back that it goes through by itself


class MadeAhead:
    """What frozen layers make of records, computed when a record first takes part, and kept.

    Guarantee: a record goes through by itself, so what is made of it, and the bits of it, follow from the layers and
    the record alone; kept or made again, it is the same.

    Edge cases: of more records than are expected the first are kept that memory is meant for, and the others made again
    each time.
    """

    def __init__(self, records: Records, frozen: nn.Module, rest: nn.Module, shape: tuple[int, ...]) -> None:
        self.model = Model(rest)
        self._records, self._frozen, self._shape = records, frozen, shape
        self._most = _MEMORY // (4 * math.prod(shape))
        count = min(len(records), self._most)
        self._made = torch.empty(count, *shape)
        self._there = torch.zeros(count, dtype=torch.bool)

    @classmethod
    def of(cls, model: Model, records: Records) -> "MadeAhead | None":
        """None where the model does not begin with frozen layers, or where these look along the batch."""
        if records.device.type != "cpu" or not is_single(records.features):
            return None
        frozen, rest = divided(model.module)
        if frozen is None:
            return None
        shape = made_of_one(frozen, records.features, scale=records.scale, offset=records.offset)
        return None if shape is None else cls(records, frozen, rest, shape)

    def of_others(self, records: Records) -> "MadeAhead":
        """The same of other records: nothing was made of these."""
        return MadeAhead(records, self._frozen, self.model.module, self._shape)

    def worth(self, training: RecordTraining, execution: Execution) -> bool:
        """Whether records take part often enough, and as many as are expected can be kept: by public settings, never by
        how many there are.
        """
        steps = max(execution.contributions / training.expected_batch, training.steps)
        expected = training.expected_batch / training.sampling_prob
        return steps * training.sampling_prob >= _USES and expected <= self._most

    @property
    def like(self) -> Records:
        """One record as it is left, of zeros."""
        one = self._records.made_up(1)
        return replace(one, features=torch.zeros(1, *self._shape), scale=1.0, offset=0.0)

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Some records as they are left, and their labels."""
        kept = rows < len(self._made)
        new = rows[kept]
        new = new[~self._there[new]]
        if len(new):
            self._made[new] = self._through(new)
            self._there[new] = True
        features = torch.empty(len(rows), *self._shape)
        features[kept] = self._made.index_select(0, rows[kept])
        if not kept.all():
            features[~kept] = self._through(rows[~kept])
        return features, self._records.labels.index_select(0, rows)

    @torch.no_grad()
    def _through(self, rows: Tensor) -> Tensor:
        records = self._records
        with remembering_nothing(self._frozen, records.device, whose="record"):
            made = [
                self._frozen(meant(chosen(records.features, row), scale=records.scale, offset=records.offset))
                for row in torch.split(rows, 1)
            ]
        return torch.cat(made)
