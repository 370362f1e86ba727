"""The compiled path: a client's training is one call of compiled code, which touches no zero.

It is for examples that are mostly zero, and for models so small that calling operations takes longer than their work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from incrowd._random import Floats
from incrowd.learning import kernel
from incrowd.learning.batches import Batches
from incrowd.learning.local import LocalTraining
from incrowd.learning.losses import CROSS_ENTROPY, LOGISTIC, POISSON, SQUARED, Canonical
from incrowd.learning.pieces import FlatPiece, InputPiece, Loops, Piece
from incrowd.learning.program import ACTIVATIONS, Activation, Program
from incrowd.learning.store import ClientTensors, Store
from incrowd.learning.vector import LINE, padded

_ACTIVATIONS: dict[Activation | None, int] = {
    None: kernel.NO_ACTIVATION,
    ACTIVATIONS[nn.ReLU]: kernel.RELU,
    ACTIVATIONS[nn.Tanh]: kernel.TANH,
    ACTIVATIONS[nn.Sigmoid]: kernel.LOGISTIC,
}
_MEANS: dict[Canonical | None, int] = {
    CROSS_ENTROPY.canonical: kernel.SOFTMAX,
    LOGISTIC.canonical: kernel.SIGMOID,
    SQUARED.canonical: kernel.IDENTITY,
    POISSON.canonical: kernel.EXP,
}

_TILE = 128  # outputs; 784 rows of so many still fit into the second cache, several times
_FEW = 25  # of a cohort of 100 two processes get as many
_ROWS = 4096  # examples that are searched at a time


_ITSELF = kernel.Pairs(np.zeros(1, np.int64), np.zeros(1, np.uint32), np.zeros(1, np.float32))


class _Loops:
    """See `Loops`."""

    def run_squares(self, piece: Piece, place: slice) -> Floats:
        if isinstance(piece, ApartPiece):
            return np.array([kernel.squares_of_rows(piece.memory, piece.used)])
        rows = piece.changes.numpy()
        begin, end, _ = place.indices(rows.shape[1])
        sums = np.empty(len(rows))
        kernel.run_squares(rows.reshape(-1), rows.shape[1], begin, end, _ITSELF, sums)
        return sums

    def add_steps(self, total: Tensor, piece: Piece, place: slice, factors: Floats) -> None:
        if isinstance(piece, ApartPiece):
            if factors[0]:
                kernel.add_steps_of_rows(piece.memory, piece.used, float(factors[0]), total.numpy())
            return
        rows = piece.changes.numpy()
        kernel.add_steps(rows, *place.indices(rows.shape[1])[:2], np.ascontiguousarray(factors), total.numpy())


LOOPS = _Loops()


@dataclass(frozen=True)
class Measured:
    """Loops for what an `ApartPiece` held before it was moved, which give the same bits: its squares are known."""

    squares: float

    def run_squares(self, piece: Piece, place: slice) -> Floats:
        """See `Loops.run_squares`."""
        return np.array([self.squares])

    def add_steps(self, total: Tensor, piece: Piece, place: slice, factors: Floats) -> None:
        """See `Loops.add_steps`."""
        if factors[0] and piece.columns is not None:
            kernel.add_steps_at(piece.changes[0].numpy(), piece.columns[0].numpy(), float(factors[0]), total.numpy())


@dataclass(frozen=True, eq=False)
class ApartPiece:
    """What one client changed in a wide first weight, still where it was trained.

    Edge cases: it holds until the next client is trained.
    """

    memory: kernel.Memory
    used: NDArray[np.int64]
    loops: Loops = LOOPS

    @cached_property
    def _rows(self) -> InputPiece:
        inputs, outputs = self.memory.layers[0, [kernel.INPUTS, kernel.OUTPUTS]].tolist()
        rows = torch.empty(1, len(self.used), outputs)
        kernel.copy_rows(self.memory, self.used, rows[0].numpy())
        return InputPiece(rows, None, torch.from_numpy(self.used[None]), inputs)

    @property
    def changes(self) -> Tensor:
        """See `Piece.changes`, a copy."""
        return self._rows.changes

    @property
    def inputs(self) -> int:
        """See `Piece.inputs`."""
        return self._rows.inputs

    @property
    def columns(self) -> Tensor | None:
        """See `Piece.columns`."""
        return self._rows.columns

    @property
    def size(self) -> int:
        """See `Piece.size`."""
        return int(self.memory.layers[0, kernel.INPUTS] * self.memory.layers[0, kernel.OUTPUTS])

    def moved(self) -> InputPiece:
        """The same in memory of its own."""
        squares = float(self.loops.run_squares(self, slice(None))[0])
        rows = self._rows
        return InputPiece(rows.values, None, rows.columns, rows.inputs, Measured(squares))

    def part(self, some: slice) -> Piece:
        """See `Piece.part`."""
        return self if len(range(1)[some]) else self._rows.part(some)

    def empty_total(self, dtype: torch.dtype) -> Tensor:
        """See `Piece.empty_total`."""
        inputs, outputs = self.memory.layers[0, [kernel.INPUTS, kernel.OUTPUTS]].tolist()
        return torch.zeros(inputs, outputs, dtype=dtype)

    def add_to(self, total: Tensor, rows: Tensor) -> None:
        """See `Piece.add_to`."""
        self._rows.add_to(total, rows)


class Sparse:
    """Trains clients with a program, one after the other.

    The examples of `sparse` clients are held as pairs of what is not zero; others' are made such pairs when they train.

    Guarantee: what a client learns, and the bits of its norm, do not depend on who else is in the call.
    """

    def __init__(self, program: Program, store: Store, local: LocalTraining, sparse: NDArray[np.bool_]) -> None:
        data = store.data
        self._program = program
        self._store = store
        self._features: NDArray[Any] = data.features.flatten(1).numpy()
        self._labels = data.labels.numpy().astype(np.float32)
        self._scale, self._rate = np.float32(data.scale), np.float32(local.learning_rate)
        self._loss = _MEANS[local.loss.canonical]
        self._layers = _table(program)
        self._task = self._task_of(_pairs(self._features, _rows_of(data, sparse)), self._labels)
        self._held = sparse
        self._memory: kernel.Memory | None = None
        self._start: tuple[Tensor, NDArray[np.float32]] | None = None
        self._compile()

    def _task_of(self, examples: kernel.Pairs, labels: NDArray[np.float32]) -> kernel.Task:
        return kernel.Task(examples, labels, self._scale, self._rate, self._loss)

    def _compile(self) -> None:
        """Train nobody, so that processes that are forked from this one find the machine code ready."""
        memory, none = self._room(1), np.zeros(0, np.int64)
        nobody = kernel.Group(
            rows=none.reshape(0, 1, 1), sizes=none.reshape(0, 1), used=none.reshape(0, 1), counts=none
        )
        kernel.train(self._task, memory, memory.weights, nobody, np.zeros((0, 1), np.float32), 0)
        for piece in (FlatPiece(torch.zeros(1, 1), LOOPS), ApartPiece(memory, none)):
            LOOPS.run_squares(piece, slice(None))
            LOOPS.add_steps(piece.empty_total(torch.float32), piece, slice(None), np.ones(1))

    @property
    def at_once(self) -> int:
        """How many clients had best come in one call; either all are sparse or none."""
        return 1 if self._program.wide else _FEW

    def holds(self, client: int) -> bool:
        """Whether the client's examples are held as pairs."""
        return bool(self._held[client])

    def train(self, weights: Tensor, group: Sequence[int], several: Sequence[Batches]) -> list[Piece]:
        """Train these clients from the same flat weights."""
        own = [self._store.data.examples(client) for client in group]
        if self._held[group[0]]:
            task, rows = self._task, [own[batches.positions] for own, batches in zip(own, several, strict=True)]
            used = [self._store.used_by(client) for client in group]
        else:
            task, rows = self._gathered(own, several)
            used = [np.arange(self._features.shape[1])] * len(group)
        together = kernel.Group(
            rows=_filled(rows, np.int64),
            sizes=_filled([batches.sizes for batches in several], np.int64),
            used=_filled(used, np.int64),
            counts=np.array([len(features) for features in used]),
        )
        # One client's first weight may stay where it is, which spares the caches a lot.
        apart = self._program.wide
        memory, start = self._room(max(batches.width for batches in several)), self._arranged(weights)
        flat = torch.empty(len(group), sum(_sizes(self._program)[int(apart) :]))
        kernel.train(task, memory, start, together, flat.numpy(), int(apart))
        rest = FlatPiece(flat, LOOPS)
        return [ApartPiece(memory, used[0]), rest] if apart else [rest]

    def _gathered(
        self, own: Sequence[NDArray[Any]], several: Sequence[Batches]
    ) -> tuple[kernel.Task, list[NDArray[np.int64]]]:
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
        return self._task_of(examples, self._labels[rows]), places

    def _arranged(self, weights: Tensor) -> NDArray[np.float32]:
        """Flat weights as they lie in memory for training. The last ones are kept: a cohort starts from the same."""
        if self._start is None or self._start[0] is not weights:
            arranged = _lines(_size(self._layers))
            parts = iter(weights.split_with_sizes(_sizes(self._program)))
            for layer, row in zip(self._program.layers, self._layers, strict=True):
                _arrange(next(parts).view(layer.outputs, -1), row, arranged)
                if layer.bias:
                    arranged[row[kernel.BIAS] :][: layer.outputs] = next(parts).numpy()
            self._start = weights, arranged
        return self._start[1]

    def _room(self, width: int) -> kernel.Memory:
        """Memory for training in batches of at most `width` examples; the same again, because it is in the cache."""
        if self._memory is None or len(self._memory.everyone) < width:
            self._memory = _memory(self._layers, width)
        return self._memory


def _memory(layers: NDArray[np.int64], width: int) -> kernel.Memory:
    layers = layers.copy()
    strides, inputs = layers[:, kernel.STRIDE].tolist(), layers[:, kernel.INPUTS].tolist()
    layers[:, kernel.VALUES] = [0, *accumulate(width * stride for stride in strides)][:-1]
    room = width * max(inputs[1:], default=0) + LINE
    return kernel.Memory(
        layers=layers,
        weights=_lines(_size(layers)),
        values=_lines(width * sum(strides)),
        gradients=_lines(width * sum(strides)),
        starts=np.zeros((len(layers), width + 1), np.int64),
        places=np.zeros((len(layers), room), np.uint32),
        numbers=np.zeros((len(layers), room), np.float32),
        firsts=np.zeros(max(inputs), np.int64),
        ends=np.zeros(max(inputs), np.int64),
        users=np.zeros(width * max(inputs), np.uint32),
        amounts=np.zeros(width * max(inputs), np.float32),
        order=np.zeros(max(inputs), np.int64),
        many=np.zeros(width + 2, np.int64),
        numbered=np.arange(max(width, *inputs)),
        everyone=np.arange(width, dtype=np.uint32),
        ones=np.ones(width, np.float32),
    )


def _table(program: Program) -> NDArray[np.int64]:
    """The layers, as the kernel sees them. The first weight lies behind all others."""
    table = np.zeros((len(program.layers), kernel.VALUES + 1), np.int64)
    place = 0
    for row, layer in zip(table, program.layers, strict=True):
        stride = padded(layer.outputs)
        row[kernel.INPUTS], row[kernel.OUTPUTS], row[kernel.STRIDE] = layer.inputs, layer.outputs, stride
        row[kernel.TILE] = stride if layer is program.layers[-1] else min(stride, _TILE)
        row[kernel.BIASED], row[kernel.ACTIVATION] = layer.bias, _ACTIVATIONS[layer.activation]
        row[kernel.BIAS], place = place, place + stride
    for number in (*range(1, len(table)), 0):
        table[number, kernel.WEIGHT] = place
        place += int(table[number, kernel.INPUTS] * table[number, kernel.STRIDE])
    return table


def _size(layers: NDArray[np.int64]) -> int:
    """How many numbers all weights take."""
    return int(layers[0, kernel.WEIGHT] + layers[0, kernel.INPUTS] * layers[0, kernel.STRIDE])


def _lines(size: int) -> NDArray[np.float32]:
    """Zeros that begin where a line of the cache does, as torch sees to."""
    zeros: NDArray[np.float32] = torch.zeros(size).numpy()
    return zeros


def _arrange(weight: Tensor, row: NDArray[np.int64], arranged: NDArray[np.float32]) -> None:
    """Put a weight [outputs, inputs] where a row of the table says, tile after tile."""
    outputs, inputs = weight.shape
    for begin in range(0, row[kernel.STRIDE], row[kernel.TILE]):
        width = min(row[kernel.TILE], row[kernel.STRIDE] - begin)
        tile = arranged[row[kernel.WEIGHT] + begin * inputs :][: inputs * width].reshape(inputs, width)
        tile[:, : outputs - begin] = weight[begin : begin + width].t().numpy()


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
        there = np.nonzero(rows if wanted[begin : begin + _ROWS].all() else rows * wanted[begin : begin + _ROWS, None])
        places[part], numbers[part] = there[1], rows[there]
    return kernel.Pairs(starts, places, numbers)


def _sizes(program: Program) -> list[int]:
    """The sizes of the parameters in the flat vector."""
    both = ((layer.inputs * layer.outputs, layer.outputs)[: 1 + layer.bias] for layer in program.layers)
    return [size for several in both for size in several]
