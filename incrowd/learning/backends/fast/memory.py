"""A module as a table of layers that compiled code can compute, and the memory of such a stack while a client trains.

A weight is [inputs][outputs], the inputs of a window or a picture in the order row, column, channel. Values are
[example][row][column][channel]. Outputs and vectors are padded to whole cache lines.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from incrowd.data.examples import Inputs, single
from incrowd.learning.chain import chained
from incrowd.learning.execution import LINE
from incrowd.learning.inputs import are_numbers
from incrowd.learning.losses import CROSS_ENTROPY, LOGISTIC, POISSON, SQUARED, Loss
from incrowd.learning.modules import picture_of

LINEAR, CONVOLUTION, POOL, RELU, TANH, SIGMOID = range(6)
SOFTMAX, LOGIT, NUMBER, RATE = range(4)  # the mean of the outputs that a loss compares with a label

Shape = tuple[int, int, int]
"""Channels, rows and columns; a vector has one row and one column."""

_LOSSES = {CROSS_ENTROPY: SOFTMAX, LOGISTIC: LOGIT, SQUARED: NUMBER, POISSON: RATE}
_ACTIVATIONS: dict[type[nn.Module], int] = {nn.ReLU: RELU, nn.Tanh: TANH, nn.Sigmoid: SIGMOID}


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer. `size`, `stride` and `padding` are those of a window."""

    kind: int
    before: Shape
    after: Shape
    weight: bool = False
    bias: bool = False
    size: int = 1
    stride: int = 1
    padding: int = 0

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of the inputs of one number of the output, in torch's order."""
        return self.before if self.kind == LINEAR else (self.before[0], self.size, self.size)

    @property
    def places(self) -> int:
        """The number of rows times columns."""
        return self.after[1] * self.after[2]


@dataclass(frozen=True)
class Stack:
    """Layers, the first and the last with weights, and how the outputs are compared with labels."""

    layers: tuple[Layer, ...]
    loss: int

    @property
    def pictures(self) -> bool:
        """True if the stack begins with a convolution."""
        return self.layers[0].kind == CONVOLUTION


def layers_of(module: nn.Module, loss: Loss, features: Inputs, labels: Tensor) -> Stack | None:
    """The layers that the module is, or None if it has others, another loss, or frozen or tied parameters."""
    if not are_numbers(features) or labels.ndim != 1 or loss not in _LOSSES:
        return None
    shape = tuple(single(features).shape[1:])
    chain = chained(module, shape)
    layers = None if chain is None else _layers(list(chain), shape)
    return None if layers is None else Stack(layers, _LOSSES[loss])


def _layers(modules: list[nn.Module], shape: Sequence[int]) -> tuple[Layer, ...] | None:
    picture = picture_of(modules[0], shape) if modules else None
    if picture is None and len(shape) == 3:
        picture = (shape[0], shape[1], shape[2])
    elif picture is not None:
        modules = modules[1:]
    now, flat = picture or (math.prod(shape), 1, 1), picture is None and len(shape) == 1
    layers: list[Layer] = []
    for module in modules:
        if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
            now, flat = now if layers else (math.prod(shape), 1, 1), True
            continue
        layer = _layer(module, now, flat=flat)
        if layer is None or min(layer.after) < 1:
            return None
        if layer.kind > POOL and layers and layers[-1].kind > POOL:
            return None  # an activation works in place, and its derivative is computed from its output
        if layer.kind == POOL and layers and layers[-1].kind == RELU:
            layers[-1:] = [layer, replace(layers[-1], before=layer.after, after=layer.after)]  # the same, on fewer
        else:
            layers.append(layer)
        now = layer.after
    begins = bool(layers) and layers[0].kind in (LINEAR, CONVOLUTION)
    return tuple(layers) if begins and layers[-1].kind == LINEAR else None


def _layer(module: nn.Module, now: Shape, *, flat: bool) -> Layer | None:
    """The layer that a module is for inputs of this shape, or None for any other module."""
    if type(module) is nn.Linear:
        outputs, inputs = module.weight.shape
        known = flat and inputs == math.prod(now)
        made = Layer(kind=LINEAR, before=now, after=(outputs, 1, 1), weight=True, bias=module.bias is not None)
        return made if known else None
    if type(module) is nn.Conv2d:
        return None if flat else _convolution(module, now)
    if type(module) is nn.MaxPool2d:
        return None if flat else _pool(module, now)
    kind = _ACTIVATIONS.get(type(module))
    return None if kind is None else Layer(kind=kind, before=now, after=now)


def _convolution(module: nn.Conv2d, now: Shape) -> Layer | None:
    """A convolution with square windows over zero padding."""
    square = all(len({*pair}) == 1 for pair in (module.kernel_size, module.stride, module.padding))
    plain = module.padding_mode == "zeros" and module.groups == 1 and module.dilation == (1, 1)
    if isinstance(module.padding, str) or not square or not plain or module.in_channels != now[0]:
        return None
    size, stride, padding = module.kernel_size[0], module.stride[0], int(module.padding[0])
    rows, columns = ((side + 2 * padding - size) // stride + 1 for side in now[1:])
    after, bias = (module.out_channels, rows, columns), module.bias is not None
    made = Layer(kind=CONVOLUTION, before=now, after=after, weight=True, bias=bias)
    return replace(made, size=size, stride=stride, padding=padding)


def _pool(module: nn.MaxPool2d, now: Shape) -> Layer | None:
    """The largest of squares side by side."""
    pairs = (one if isinstance(one, tuple) else (one, one) for one in (module.kernel_size, module.stride))
    sizes = {number for pair in pairs for number in pair}
    plain = module.padding in (0, (0, 0)) and module.dilation in (1, (1, 1))
    if len(sizes) != 1 or not plain or module.ceil_mode or module.return_indices:
        return None
    size = int(sizes.pop())
    after = (now[0], now[1] // size, now[2] // size)
    return Layer(kind=POOL, before=now, after=after, size=size, stride=size)


_WINDOWS = 2**20  # numbers of windows in one product; measured, the optimum is flat
_EXAMPLES = 10  # most examples in one product, measured as well
_ALL = 2**31

Numbers = NDArray[np.float32]

KIND, INPUTS, OUTPUTS, WIDTH, PLACES, WEIGHT, BIAS, BIASED, IN, OUT, IN_ROW, OUT_ROW = range(12)
SIZE, STRIDE, PADDING, CHANNELS, ROWS, COLUMNS, OUT_ROWS, OUT_COLUMNS, KEPT = range(12, 21)
"""Columns of the table of layers, a row each."""


VELOCITY, GRADIENTS, AMOUNTS, REAL, KEPT_FROM, FIRSTS, ENDS, ORDER, MANY, USERS = range(10)
"""Indices in `integers` of the offsets of the other parts of `Space`, and of the distance of gradients to values."""

LETTERS = 6  # the place in `shorts` of arguments for BLAS, which it wants at addresses: six sizes and two letters


class Space(NamedTuple):
    """Layers' offsets (`table`), numbers (`floats`), where they begin (`integers`), BLAS' arguments and places."""

    table: NDArray[np.int64]
    floats: Numbers
    integers: NDArray[np.int64]
    shorts: NDArray[np.int32]


def padded(count: int) -> int:
    """The size of so many numbers, padded to whole cache lines."""
    return -(-count // LINE) * LINE


def zeros(*shape: int) -> Numbers:
    """Zeros that begin where a line of the cache does, as torch sees to."""
    found: Numbers = torch.zeros(shape).numpy()
    return found


class Memory:
    """The memory of a stack."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.table = np.zeros((len(stack.layers), KEPT + 1), np.int64)
        for row, layer in zip(self.table, stack.layers, strict=True):
            _describe(row, layer)
        place = 0
        for row in (row for row in self.table if row[WIDTH]):
            row[BIAS], row[WEIGHT] = place, place + row[WIDTH]
            place += (1 + row[INPUTS]) * row[WIDTH]
        self.size = int(place)
        rows = zip(self.table, stack.layers, strict=True)
        places = [one.ravel() for row, layer in rows for one in _places(row, layer)]
        self._order = np.concatenate(places)  # where each of the flat weights lies

    @property
    def numbers(self) -> int:
        """The number of weights."""
        return len(self._order)

    @property
    def together(self) -> int:
        """The number of pictures in one product; all other examples of a batch are."""
        if not self.stack.pictures:
            return _ALL
        windows = (row[PLACES] * row[INPUTS] for row in self.table if row[KIND] == CONVOLUTION)
        return max(1, min(_EXAMPLES, _WINDOWS // int(max(windows))))

    def space(self, batch: int, *, sparse: bool, plain: bool) -> Space:
        """Memory for batches of at most so many examples."""
        pictures, first = self.stack.pictures, self.table[0]
        table, (begin, floats), shorts, shift = self._placed(min(batch, self.together), plain=plain)
        features = 0 if pictures else int(first[INPUTS])
        rows, pairs = (0, batch * features) if sparse else (batch if features else 0, 0)
        head = np.zeros(USERS + 1, np.int64)
        head[VELOCITY], head[GRADIENTS], head[KEPT_FROM] = 0 if plain else self.size, shift, begin
        if rows:
            table[0, IN], table[0, IN_ROW], floats = floats, features, floats + padded(rows * features)
        for name, size in ((AMOUNTS, pairs), (REAL, 2)):
            head[name], floats = floats, floats + padded(size)
        integers = len(head)
        for name in (FIRSTS, ENDS, ORDER, MANY):
            head[name], integers = integers, integers + (batch + 2 if name == MANY else features)
        head[USERS] = shorts
        words = np.zeros(shorts + pairs, np.int32)
        words[LETTERS : LETTERS + 2] = ord("N"), ord("T")
        return Space(table, zeros(floats), np.append(head, np.zeros(integers - len(head), np.int64)), words)

    def apart(self, records: int) -> list[Space]:
        """Memory for so many pictures, each on its own: they share weights, and the place of their gradients."""
        one = self.space(1, sparse=True, plain=False)
        each, shorts = padded(len(one.floats) - 2 * self.size), len(one.shorts)
        floats, words = zeros(2 * self.size + records * each), np.tile(one.shorts, records)
        floats[2 * self.size :] = np.tile(
            np.resize(np.append(one.floats[2 * self.size :], [0.0] * LINE), each), records
        )
        spaces = []
        for record in range(records):
            table = one.table.copy()
            pools = table[:, KIND] == POOL
            table[:, [IN, OUT]] += record * each
            table[~pools, KEPT] += record * each
            table[pools, KEPT] += record * shorts
            spaces.append(Space(table, floats, one.integers, words))
        return spaces

    def _placed(self, most: int, *, plain: bool) -> tuple[NDArray[np.int64], tuple[int, int], int, int]:
        """The table for so many examples, the begin and end of saved tensors, the number of shorts, and `GRADIENTS`."""
        table, row = self.table.copy(), int(np.prod(self.stack.layers[0].before)) if self.stack.pictures else 0
        begin = self.size if plain else 2 * self.size
        place, value, kept, which = begin, begin + padded(most * row), 0, LETTERS + 2
        for own, layer in zip(table, self.stack.layers, strict=True):
            own[IN], own[IN_ROW] = place, row
            if layer.kind <= POOL:  # the others work in place
                row = padded(layer.after[0]) if layer.kind == LINEAR else layer.after[0] * layer.places
                place, value = value, value + padded(most * row)
            own[OUT], own[OUT_ROW] = place, row
            own[KEPT] = which if layer.kind == POOL else kept
            which += most * row if layer.kind == POOL else 0
            kept += padded(most * layer.places * int(own[INPUTS])) if layer.kind == CONVOLUTION else 0
        ends = 2 * value - begin  # of the gradients
        table[self.table[:, KIND] != POOL, KEPT] += ends
        return table, (ends, ends + kept), which, value - begin

    def arranged(self, weights: Tensor) -> Numbers:
        """Flat weights, in torch's order, as they lie here."""
        found = zeros(self.size)
        found[self._order] = weights.numpy()
        return found

    def flat(self, arranged: Numbers) -> Numbers:
        """Numbers that lie as the weights do, in torch's order."""
        return arranged[self._order]


def _places(row: NDArray[np.int64], layer: Layer) -> Iterator[NDArray[np.int64]]:
    """Where the numbers of a layer's parameters lie, in torch's order."""
    outputs = np.arange(layer.after[0])
    if layer.weight:
        channels, *window = layer.inputs
        inputs = np.moveaxis(np.arange(row[INPUTS]).reshape(*window, channels), -1, 0)
        yield row[WEIGHT] + outputs[:, None] + inputs.ravel() * row[WIDTH]
    if layer.bias:
        yield row[BIAS] + outputs


def _describe(row: NDArray[np.int64], layer: Layer) -> None:
    """Write down what does not depend on how many examples come together."""
    row[KIND], row[PLACES], row[OUTPUTS] = layer.kind, layer.places, layer.after[0]
    if layer.weight:
        row[INPUTS], row[WIDTH] = int(np.prod(layer.inputs)), padded(layer.after[0])
    row[BIASED] = layer.bias
    row[SIZE], row[STRIDE], row[PADDING] = layer.size, layer.stride, layer.padding
    row[CHANNELS], row[ROWS], row[COLUMNS] = layer.before
    row[OUT_ROWS], row[OUT_COLUMNS] = layer.after[1:]
