"""The path: clients one after the other, or on an accelerator several side by side."""

from collections.abc import Sequence

import torch
from torch import Tensor

from incrowd.learning.batches import side_by_side
from incrowd.learning.contributions import Contributions
from incrowd.learning.deltas import WeightDelta
from incrowd.learning.paths.fused.layers import StackTable
from incrowd.learning.paths.fused.stack import Stack
from incrowd.learning.paths.path import ClientRound, TrainingPath, TrainingTask
from incrowd.learning.paths.turned import Turned

_MEMORY = 2**30  # bytes of weights on an accelerator, where more clients at once are better,
_MANY = 256  # up to so many


class Fused(TrainingPath):
    """Trains clients with a stack of layers: one after the other, or on an accelerator several side by side.

    Guarantee: what one client learns is computed from its examples alone, in matrices of its own that begin where
    torch's memory does, so that a processor goes the same way whoever was trained before. Clients side by side have
    equally many examples, so that nobody's batches are filled up because of another.
    """

    def __init__(self, task: TrainingTask, table: StackTable) -> None:
        self.takes = task.everyone
        self._side_by_side = task.on_accelerator
        usual = max(1, min(_MANY, _MEMORY // (4 * task.model.size))) if task.on_accelerator else 1
        self.at_once = task.execution.chunk or usual
        self._task = task
        self._table = table
        apart = table.wide and task.local.plain and not task.on_accelerator
        self._store = task.store(sparing=True, folding=True, apart=apart)
        self._turned = Turned()
        if not task.on_accelerator:
            from incrowd.learning.paths.fused import first_loops, loops  # numba takes a while to start

            loops.ready()
            first_loops.ready()

    def kind(self, client: int) -> int:
        """See `TrainingPath.kind`."""
        return len(self._task.data.examples(client)) if self._side_by_side else 0

    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `TrainingPath.train`."""
        if not self._side_by_side:
            return [Contributions((one.client,), self._train(weights, [one])) for one in clients]
        # Always equally many, because their number may decide on rounding.
        filled = [*clients, *[clients[-1]] * (self.at_once - len(clients))]
        deltas = [delta.part(slice(len(clients))) for delta in self._train(weights, filled)]
        return [Contributions(tuple(one.client for one in clients), deltas)]

    def _train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[WeightDelta]:
        feed = self._store.feed([one.client for one in clients], side_by_side([one.batches for one in clients]))
        first, *others = self._task.model.by_parameter(weights)
        if self._table.wide or feed.columns is not None:
            first = self._turned.of(first).t()
        return Stack(self._table, [first, *others], feed, self._task.local, offset=self._offset(clients)).train()

    def _offset(self, clients: Sequence[ClientRound]) -> Tensor | None:
        offsets = [self._task.offset(one.client) for one in clients]
        several = [one for one in offsets if one is not None]
        return torch.stack(several)[:, None] if several else None
