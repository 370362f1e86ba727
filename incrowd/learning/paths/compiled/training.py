"""Clients trained by compiled loops: their examples, weights and batches as the loops want them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incrowd.learning.batches import Batches
from incrowd.learning.contributions import Contributions
from incrowd.learning.deltas import FlatDelta, WeightDelta
from incrowd.learning.losses import CROSS_ENTROPY, LOGISTIC, POISSON, SQUARED, Canonical
from incrowd.learning.paths.compiled import kernel, layout
from incrowd.learning.paths.compiled.deltas import LOOPS, ApartDelta
from incrowd.learning.paths.path import ClientRound, TrainingPath, TrainingTask
from incrowd.learning.program import Program
from incrowd.learning.store import ClientTensors

_FEW = 25  # of a cohort of 100 two processes get as many
_ROWS = 4096  # examples that are searched at a time

_MEANS: dict[Canonical | None, int] = {
    CROSS_ENTROPY.canonical: kernel.SOFTMAX,
    LOGISTIC.canonical: kernel.SIGMOID,
    SQUARED.canonical: kernel.IDENTITY,
    POISSON.canonical: kernel.EXP,
}


class Compiled(TrainingPath):
    """Trains clients with a program, one after the other in one call.

    The examples of `sparse` clients are held as pairs of what is not zero; others' are made such pairs when they train,
    which they do where that is `little` work.

    Guarantee: what a client learns, and the bits of its norm, do not depend on who else is in the call.
    """

    def __init__(
        self, task: TrainingTask, program: Program, sparse: NDArray[np.bool_], little: NDArray[np.bool_]
    ) -> None:
        data = task.data
        self.takes = sparse | little
        # One client's first weight may stay where it is, which spares the caches a lot; else calls take a while.
        self.at_once = 1 if program.wide else min(_FEW, task.execution.chunk or _FEW)
        self._task = task
        self._program = program
        self._store = task.store(sparing=True)
        self._features: NDArray[Any] = data.features.flatten(1).numpy()
        self._labels = data.labels.numpy()  # of the same memory, in which other clients' may be by and by
        self._scale, self._rate = np.float32(data.scale), np.float32(task.local.learning_rate)
        self._loss = _MEANS[program.loss]
        self._layers = layout.table_of(program)
        self._objective = self._objective_of(_pairs(self._features, _rows_of(data, sparse)), self._labels)
        self._held = sparse
        self._workspace: kernel.Workspace | None = None
        self._start: tuple[Tensor, NDArray[np.float32]] | None = None
        self._compile()

    def kind(self, client: int) -> int:
        """See `TrainingPath.kind`: those whose examples are held as pairs, and those whose are not."""
        return int(self._held[client])

    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `TrainingPath.train`. Edge cases: what is given holds until the next call."""
        numbers, several = tuple(one.client for one in clients), [one.batches for one in clients]
        own = [self._store.data.examples(client) for client in numbers]
        if self._held[numbers[0]]:
            objective = self._objective
            rows = [examples[batches.positions] for examples, batches in zip(own, several, strict=True)]
            used = [self._store.used_by(client) for client in numbers]
        else:
            objective, rows = self._gathered(own, several)
            used = [np.arange(self._features.shape[1])] * len(numbers)
        steps = kernel.ClientSteps(
            rows=_filled(rows, np.int64),
            sizes=_filled([batches.sizes for batches in several], np.int64),
            used=_filled(used, np.int64),
            counts=np.array([len(features) for features in used]),
            offsets=self._offsets(numbers),
        )
        apart = self._program.wide
        space, start = self._space(max(batches.width for batches in several)), self._arranged(weights)
        flat = torch.empty(len(numbers), sum(layout.sizes_of(self._program)[int(apart) :]))
        kernel.train(objective, space, start, steps, flat.numpy(), int(apart))
        rest = FlatDelta(flat, LOOPS)
        return [Contributions(numbers, [ApartDelta(space, used[0]), rest] if apart else [rest])]

    def _objective_of(self, examples: kernel.Pairs, labels: NDArray[Any]) -> kernel.Objective:
        return kernel.Objective(examples, labels.astype(np.float32), self._scale, self._rate, self._loss)

    def _compile(self) -> None:
        """Train nobody, so that processes that are forked from this one find the machine code ready."""
        space, none = self._space(1), np.zeros(0, np.int64)
        nobody = kernel.ClientSteps(
            rows=none.reshape(0, 1, 1),
            sizes=none.reshape(0, 1),
            used=none.reshape(0, 1),
            counts=none,
            offsets=self._offsets(()),
        )
        kernel.train(self._objective, space, space.weights, nobody, np.zeros((0, 1), np.float32), 0)
        deltas: list[WeightDelta] = [FlatDelta(torch.zeros(1, 1), LOOPS)]
        if self._program.wide:
            deltas.append(ApartDelta(space, none))
        for delta in deltas:
            LOOPS.run_squares(delta, slice(None))
            LOOPS.add_steps(delta.empty_total(torch.float32), delta, slice(None), np.ones(1))

    def _offsets(self, clients: Sequence[int]) -> NDArray[np.float32]:
        """What each client adds to its outputs."""
        offsets = np.zeros((len(clients), self._program.layers[-1].outputs), np.float32)
        for place, client in zip(offsets, clients, strict=True):
            offset = self._task.offset(client)
            if offset is not None:
                place[:] = offset.numpy()
        return offsets

    def _gathered(
        self, own: Sequence[NDArray[Any]], several: Sequence[Batches]
    ) -> tuple[kernel.Objective, list[NDArray[np.int64]]]:
        """The examples of some clients, zeros and all, one after the other; and which rows their batches take."""
        rows = np.concatenate(own)
        width = self._features.shape[1]
        examples = kernel.Pairs(
            starts=np.arange(len(rows) + 1) * width,
            places=np.tile(np.arange(width, dtype=_kind_of(width)), len(rows)),
            numbers=self._features[rows].ravel(),
        )
        firsts = np.cumsum([0, *map(len, own)])
        places = [first + batches.positions for first, batches in zip(firsts, several, strict=False)]
        return self._objective_of(examples, self._labels[rows]), places

    def _arranged(self, weights: Tensor) -> NDArray[np.float32]:
        """Flat weights as they lie in memory for training. The last ones are kept: a cohort starts from the same."""
        if self._start is None or self._start[0] is not weights:
            self._start = weights, layout.arranged(self._program, self._layers, weights)
        return self._start[1]

    def _space(self, width: int) -> kernel.Workspace:
        """Memory for training in batches of at most `width` examples; the same again, because it is in the cache."""
        if self._workspace is None or len(self._workspace.everyone) < width:
            self._workspace = layout.workspace(self._layers, width)
        return self._workspace


def _filled(several: Sequence[NDArray[Any]], kind: type[np.int64]) -> NDArray[np.int64]:
    """Arrays side by side, filled up with zeros, which nobody looks at."""
    shape = np.max([one.shape for one in several], axis=0)
    filled = np.zeros((len(several), *shape), kind)
    for place, one in zip(filled, several, strict=True):
        place[tuple(map(slice, one.shape))] = one
    return filled


def _rows_of(data: ClientTensors, clients: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which rows are examples of these clients."""
    rows = np.zeros(len(data.features), bool)
    rows[data.indices[np.repeat(clients, np.diff(data.offsets))]] = True
    return rows


def _kind_of(width: int) -> type[np.uint16 | np.uint32]:
    return np.uint16 if width <= 2**16 else np.uint32


def _pairs(table: NDArray[Any], wanted: NDArray[np.bool_]) -> kernel.Pairs:
    """What is not zero in the rows of a table that are wanted; the others count as empty."""
    starts = np.append(0, np.cumsum(np.count_nonzero(table, axis=1) * wanted))
    places = np.empty(starts[-1], _kind_of(table.shape[1]))
    numbers = np.empty(starts[-1], table.dtype)
    for begin in range(0, len(table), _ROWS):
        rows = table[begin : begin + _ROWS]
        part = slice(starts[begin], starts[begin + len(rows)])
        there = np.nonzero((rows != 0) & wanted[begin : begin + _ROWS, None])
        places[part], numbers[part] = there[1], rows[there]
    return kernel.Pairs(starts, places, numbers)
