"""The backend: clients one after the other, in the same memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import incrowd.learning.backends.fast.kernel as kernel
from incrowd._random import Floats
from incrowd.learning.backends.backend import Backend, ClientRound, Task
from incrowd.learning.backends.fast.memory import Memory, Numbers, Space, Stack, zeros
from incrowd.learning.contributions import Contributions


class StackContributions(Contributions):
    """Contributions in the layout of the clients' weights. Edge cases: they hold until the next clients are trained."""

    layout: Memory

    def __init__(self, clients: tuple[int, ...], layout: Memory, rows: Numbers, squares: Floats) -> None:
        self.clients, self.layout, self._numbers, self._squares = clients, layout, rows, squares

    @property
    def size(self) -> int:
        """See `Contributions.size`."""
        return self.layout.numbers

    @property
    def changes(self) -> Tensor:
        """See `Contributions.changes`: a copy."""
        return torch.from_numpy(np.stack([self.layout.flat(row) for row in self.numbers]))

    def rough_squares(self) -> Floats:
        """See `Contributions.rough_squares`."""
        return self._squares

    def empty_total(self) -> Tensor:
        """See `Contributions.empty_total`."""
        return torch.zeros(self.layout.size)

    def add_steps(self, total: Tensor, some: slice, divisors: Tensor) -> None:
        """See `Contributions.add_steps`."""
        kernel.add_steps(self.numbers[some], divisors.numpy()[some, 0], total.numpy())

    def flat(self, total: Tensor) -> Numbers:
        """See `Contributions.flat`."""
        return self.layout.flat(total.numpy())


_NARROW, _DENSE_NARROW, _DENSE_WIDE = 64, 0.6, 0.35
"""Pairs are faster up to a share of nonzero numbers: the first, up to so many outputs of the first layer, else the
second; measured."""
_FEW, _CACHED = 25, 2**18  # clients who are trained in one go at most, and numbers of their updates
_ROWS = 4096  # examples that are searched at a time


class Fast(Backend):
    """Trains clients on a stack of layers.

    Guarantee: a client's update is computed from its own examples alone, and they alone decide whether zeros are
    skipped. Its memory begins at a cache line, so that the order of summation never changes.
    """

    def __init__(self, task: Task, stack: Stack) -> None:
        self.takes = task.everyone
        self._task, self._memory, local = task, Memory(stack), task.local
        several = max(1, min(_FEW, _CACHED // self._memory.size))
        self.at_once = min(several, task.execution.chunk or several)
        self._rows = zeros(self.at_once, self._memory.size)
        self._table: NDArray[Any] = task.data.features.flatten(1).numpy()
        self._labels: NDArray[Any] = task.data.labels.numpy()
        self._sparse = self._mostly_zero()
        self._examples = self._pairs()
        self._plain = local.plain and not stack.pictures
        self._settings = kernel.Settings(
            rate=np.float32(local.learning_rate),
            momentum=np.float32(local.momentum),
            weight_decay=np.float32(local.weight_decay),
            proximal=np.float32(local.proximal),
            plain=self._plain,
            change=np.float32(-local.learning_rate if self._plain else 1),
            loss=stack.loss,
            together=self._memory.together,
        )
        self._no_offset = zeros(stack.layers[-1].after[0])
        self._spaces: dict[bool, tuple[int, Space]] = {}
        self._start: tuple[Tensor, Numbers] | None = None
        self._compile()

    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `Backend.train`."""
        rows = self._rows[: len(clients)]
        squares = np.array([self._train(weights, one, row) for one, row in zip(clients, rows, strict=True)])
        return [StackContributions(tuple(one.client for one in clients), self._memory, rows, squares)]

    def _train(self, weights: Tensor, one: ClientRound, out: Numbers) -> float:
        positions, sizes = one.batches.positions, one.batches.sizes
        if sizes.min() < positions.shape[1]:
            positions = positions[np.arange(positions.shape[1]) < sizes[:, None]]
        rows = self._task.data.examples(one.client)[positions.ravel()].astype(np.int64)
        return self._trained(weights, one.client, rows, sizes, out)

    def _trained(
        self, weights: Tensor, client: int, rows: NDArray[np.int64], sizes: NDArray[Any], out: Numbers
    ) -> float:
        offset, sparse, batch = self._task.offset(client), bool(self._sparse[client]), int(sizes.max(initial=1))
        batches = kernel.Batches(
            rows=rows,
            labels=self._labels[rows].astype(np.float32),
            sizes=sizes,
            offset=self._no_offset if offset is None else offset.numpy(),
        )
        space, start = self._space(batch, sparse=sparse), self._arranged(weights)
        return kernel.train(self._examples, space, self._settings, start, batches, sparse, out)

    def _compile(self) -> None:
        """Train on no examples, so that forked processes have the machine code."""
        none = np.zeros(0, np.int64)
        self._trained(self._task.model.weights, 0, none, none, self._rows[0])
        kernel.add_steps(self._rows[:0], np.zeros(0, np.float32), self._rows[0])
        self._start = None

    def _mostly_zero(self) -> NDArray[np.bool_]:
        """Choose the clients whose examples become pairs, each by its own numbers."""
        data, first = self._task.data, self._memory.stack.layers[0]
        if self._memory.stack.pictures or data.offset != 0:
            return np.zeros(data.present, bool)
        share = _DENSE_NARROW if first.after[0] <= _NARROW else _DENSE_WIDE
        totals = np.append(0, np.cumsum(_counts(self._table)[data.indices]))[data.offsets]
        found: NDArray[np.bool_] = np.diff(totals) <= share * self._table.shape[1] * np.diff(data.offsets)
        return found

    def _pairs(self) -> kernel.Examples:
        """The examples, those of sparse clients as pairs, too."""
        data, table = self._task.data, self._table
        wanted = np.zeros(len(table), bool)
        wanted[data.indices[np.repeat(self._sparse, np.diff(data.offsets))]] = True
        starts = np.append(0, np.cumsum(_counts(table) * wanted)) if wanted.any() else np.zeros(1, np.int64)
        places = np.empty(starts[-1], np.uint16 if table.shape[1] <= 2**16 else np.uint32)
        numbers = np.empty(starts[-1], table.dtype)
        for begin in range(0, len(table) if len(numbers) else 0, _ROWS):
            rows = table[begin : begin + _ROWS]
            there = np.nonzero((rows != 0) & wanted[begin : begin + _ROWS, None])
            part = slice(starts[begin], starts[begin + len(rows)])
            places[part], numbers[part] = there[1], rows[there]
        return kernel.Examples(table, starts, places, numbers, np.float32(data.scale), np.float32(data.offset))

    def _arranged(self, weights: Tensor) -> Numbers:
        """The weights that all clients of a round start from, as the kernel has them."""
        if self._start is None or self._start[0] is not weights:
            self._start = weights, self._memory.arranged(weights)
        return self._start[1]

    def _space(self, batch: int, *, sparse: bool) -> Space:
        """Memory for such a batch; the same again, because it is in the cache."""
        kept = self._spaces.get(sparse)
        if kept is None or kept[0] < batch:
            kept = batch, self._memory.space(batch, sparse=sparse, plain=self._plain)
            self._spaces[sparse] = kept
        return kept[1]


def _counts(table: NDArray[Any]) -> NDArray[np.int64]:
    """The number of nonzero numbers of each row."""
    parts = [np.count_nonzero(table[begin : begin + _ROWS], axis=1) for begin in range(0, len(table), _ROWS)]
    return np.concatenate([np.zeros(0, np.int64), *parts])
