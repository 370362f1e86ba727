"""The path: clients one after the other."""

from collections.abc import Sequence

from torch import Tensor

from incrowd.learning.batches import side_by_side
from incrowd.learning.contributions import Contributions
from incrowd.learning.deltas import WeightDelta
from incrowd.learning.paths.fused.layers import StackTable
from incrowd.learning.paths.fused.stack import Stack
from incrowd.learning.paths.path import ClientRound, TrainingPath, TrainingTask
from incrowd.learning.paths.turned import Turned


class Fused(TrainingPath):
    """Trains clients with a stack of layers, one after the other.

    Guarantee: what one client learns is computed from its examples alone, in matrices of its own that begin where
    torch's memory does, so that a processor goes the same way whoever was trained before.
    """

    def __init__(self, task: TrainingTask, table: StackTable) -> None:
        from incrowd.learning.paths.fused import first_loops, loops  # numba takes a while to start

        self.takes = task.everyone
        self.at_once = task.execution.chunk or 1
        self._task = task
        self._table = table
        self._store = task.store(sparing=True, folding=True, apart=table.wide and task.local.plain)
        self._turned = Turned()
        self._start: tuple[Tensor, Sequence[Tensor]] | None = None
        loops.ready()
        first_loops.ready()

    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `TrainingPath.train`."""
        return [Contributions((one.client,), self._train(weights, one)) for one in clients]

    def _train(self, weights: Tensor, one: ClientRound) -> list[WeightDelta]:
        feed = self._store.feed([one.client], side_by_side([one.batches]))
        first, *others = self._parameters(weights)
        if self._table.wide or feed.columns is not None:
            first = self._turned.of(first).t()
        offset = self._task.offset(one.client)
        return Stack(self._table, [first, *others], feed, self._task.local, offset=offset).train()

    def _parameters(self, weights: Tensor) -> Sequence[Tensor]:
        """Views of what all clients of a round start from."""
        if self._start is None or self._start[0] is not weights:
            self._start = weights, self._task.model.by_parameter(weights)
        return self._start[1]
