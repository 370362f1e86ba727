"""Which way the gradients of records go: what the model is decides, and what this processor does with it."""

from weakref import WeakSet

from torch import Tensor

from incrowd.learning.execution import Execution
from incrowd.learning.gradients.ghost import Ghost, alone
from incrowd.learning.gradients.one_by_one import OneByOne
from incrowd.learning.gradients.replayed import Replayed
from incrowd.learning.gradients.side_by_side import SideBySide, way_of
from incrowd.learning.gradients.sums import RecordGradients
from incrowd.learning.losses import Loss
from incrowd.learning.models import Model
from incrowd.learning.modules import working_copy
from incrowd.learning.program import compile_program
from incrowd.learning.records import Records
from incrowd.privacy.mechanism.steps import RecordTraining


def _most_at_once(expected_batch: float) -> int:
    """Records for a block that holds a whole batch nearly always, and is not much larger."""
    return int(expected_batch + 4 * expected_batch**0.5) + 8


_NOTING: "WeakSet[GradientWays]" = WeakSet()
"""Whose block is noted: one at a time, however many silos are simulated."""


class GradientWays:
    """The ways that there are for a model and such records, of which only shapes and types are read."""

    def __init__(self, model: Model, loss: Loss, records: Records, execution: Execution) -> None:
        self.model, self.loss, self.records, self.execution = model, loss, records, execution
        self._program = compile_program(model.module, loss, records)
        self._replayed: tuple[object, RecordGradients] | None = None

    def gradients(self, weights: Tensor, training: RecordTraining) -> RecordGradients:
        """The fastest, at weights that may change from step to step."""
        if weights.device.type != "cpu":
            return self._there(weights, training)  # pragma: no cover - where there is one
        parameters, rows = self.model.by_parameter(weights), training.physical_batch
        if self._program is not None and alone(self._program, rows=rows, device=weights.device):
            return Ghost(self._program, parameters, rows=rows)
        return self._pictured(parameters, rows) or self._one_or_several(weights, training)

    def _there(self, weights: Tensor, training: RecordTraining) -> RecordGradients:
        """The same on an accelerator: what was noted is for the weights in this place, and kept while they are."""
        kind = weights.data_ptr(), training.physical_batch, training.expected_batch
        if self._replayed is None or self._replayed[0] != kind:
            for holder in list(_NOTING):  # what is noted keeps memory of the device that nobody else can have
                holder._replayed = None
            _NOTING.clear()
            self._replayed = kind, self._noted(weights, training)
            _NOTING.add(self)
        return self._replayed[1]

    def _noted(self, weights: Tensor, training: RecordTraining) -> RecordGradients:
        device, rows = weights.device, min(training.physical_batch, _most_at_once(training.expected_batch))
        if self._program is not None and alone(self._program, rows=rows, device=device):
            ghost = Ghost(self._program, self.model.by_parameter(weights), rows=rows, blockwise=True)
            return Replayed(ghost, device)
        found = self._one_or_several(weights, training)
        return Replayed(found, device) if isinstance(found, SideBySide) else found

    def _pictured(self, parameters: list[Tensor], rows: int) -> RecordGradients | None:
        """The way for convolutions."""
        from incrowd.learning.gradients import pictures
        from incrowd.learning.paths.fast.layers import layers_of

        stack, loss = layers_of(self.model.module, self.loss, self.records), self.loss.canonical
        parts = None if stack is None or loss is None or not stack.pictures else pictures.parts_of(stack, loss)
        if parts is None:
            return None
        rows = pictures.records_together(parts[0].layers, rows)
        if not alone(parts[1], rows=rows, device=parameters[0].device):
            return None
        return pictures.Pictured(*parts, parameters, rows=rows)

    def _one_or_several(self, weights: Tensor, training: RecordTraining) -> RecordGradients:
        """The ways for any module."""
        parameters = self.model.by_parameter(weights)
        way = way_of(self.model, self.loss, self.records, self.execution, training)
        if way is not None:
            return SideBySide(way, parameters)
        module = working_copy(self.model.module, weights.device)
        return OneByOne(module, parameters, self.loss, rows=training.physical_batch)
