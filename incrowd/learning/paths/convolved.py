"""The path for convolutions: matrix products of copied windows, compiled loops for all else, and no work on zeros."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from incrowd.learning.batches import side_by_side
from incrowd.learning.contributions import Contributions
from incrowd.learning.convolved.layers import Convolutions, convolutions_of
from incrowd.learning.deltas import FlatDelta
from incrowd.learning.paths.path import ClientRound, TrainingPath, TrainingTask

if TYPE_CHECKING:
    from incrowd.learning.convolved.net import Net


def make(task: TrainingTask) -> TrainingPath | None:
    """The path, if the model is convolutions with Linear layers on top, and nothing but a gradient makes a step."""
    if task.on_accelerator or not task.local.plain:
        return None
    table = convolutions_of(task.model.module, task.loss, task.data)
    return None if table is None else Convolved(task, table)


class Convolved(TrainingPath):
    """Trains clients one after the other, in the same memory.

    Guarantee: what one client learns is computed from its examples alone: a block has only examples of one batch, and
    all that a step reads was written by it, or by an earlier step of the same client.
    """

    def __init__(self, task: TrainingTask, table: Convolutions) -> None:
        self.takes = task.everyone
        self.at_once = task.execution.chunk or 1
        self._task = task
        self._table = table
        self._store = task.store(sparing=False)
        self._net: Net | None = None

    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `TrainingPath.train`."""
        return [Contributions((one.client,), [self._train(weights, one)]) for one in clients]

    def _train(self, weights: Tensor, one: ClientRound) -> FlatDelta:
        feed = self._store.feed([one.client], side_by_side([one.batches]))
        width = feed.batches.width
        net, offset = self._room_for(width), self._task.offset(one.client)
        net.begin(self._task.model.by_parameter(weights))
        targets = self._table.loss.target(feed.labels[0], self._table.dense[-1].outputs)
        for step, size in enumerate(feed.batches.sizes[0].tolist()):
            rows = slice(step * width, step * width + size)
            if size:
                examples = feed.examples(0, slice(rows.start, rows.start + width))[:size]
                net.step(examples, targets[rows], self._task.local.learning_rate / size, offset)
        return FlatDelta(net.changes()[None])

    def _room_for(self, examples: int) -> "Net":
        """The layers, with memory for so many examples, or as many as are looked at together."""
        from incrowd.learning.convolved.net import Net, rows_of  # numba takes a while to start

        rows = min(examples, rows_of(self._table))
        if self._net is None or self._net.rows < rows:
            self._net = Net(self._table, rows)
        return self._net
