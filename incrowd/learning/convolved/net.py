"""Convolutions as matrix products, a few examples at a time.

Why this is fast on a CPU: the products of copied windows run at nearly the full speed of the machine, where torch's
convolutions of a few examples do not; what else there is to do is done in few passes over memory; and the examples of
a block are so few that what one step leaves is in the cache for the next. And of the gradients that come back through
pooling and a rectifier at least three of four are zero, mostly seven of eight: what is not is taken back one by one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incrowd.learning.convolved import loops
from incrowd.learning.convolved.layers import Convolution
from incrowd.learning.convolved.loops import Floats32

_FEW = 4  # of so many channels windows are copied by tap
_LONG = 64  # numbers of a window's row, from which on gradients are taken one by one where most are zero

Gradients = tuple[Floats32, Floats32, int, NDArray[np.int32]]
"""Of what came out; what came out; its margin; and which of each square it was."""


class Weight:
    """A weight [inputs, outputs] or a bias: steps go into it, or are collected where a batch has several blocks."""

    def __init__(self, *shape: int) -> None:
        self.value = torch.empty(shape)
        self.start = torch.empty(shape)
        self.collected = torch.empty(shape)
        self._name_arrays()
        self.gradient = torch.empty(shape if len(shape) == 1 else 0)  # of a block, for compiled loops to fill
        self.gradient_array: Floats32 = self.gradient.numpy()

    def _name_arrays(self) -> None:
        """The same memory for compiled loops; asking for it anew would take longer than some of them."""
        self.array: Floats32 = self.value.numpy()
        self.collected_array: Floats32 = self.collected.numpy()

    def begin(self, start: Tensor) -> None:
        """Start here."""
        self.start.copy_(start)
        self.value.copy_(start)

    def add_product(self, left: Tensor, right: Tensor, rate: float, block: int | None) -> None:
        """Step along the gradient left @ right of a block; `block` is its number where there are several."""
        if block is None:
            self.value.addmm_(left, right, alpha=-rate)
        else:
            torch.addmm(self.collected, left, right, beta=min(block, 1), out=self.collected)

    def add(self, gradient: Tensor, rate: float, block: int | None) -> None:
        """The same, given the gradient."""
        if block is None:
            self.value.add_(gradient, alpha=-rate)
        elif block:
            self.collected.add_(gradient)
        else:
            self.collected.copy_(gradient)

    def room(self, rate: float, block: int | None) -> tuple[Floats32, float]:
        """Where gradients are to be added, and times what."""
        if block is None:
            return self.array, -rate
        if not block:
            self.collected.zero_()
        return self.collected_array, 1.0

    def share(self, other: "Weight", gradient: Tensor) -> None:
        """Have the values of another, and collect gradients in this place."""
        self.value, self.collected = other.value, gradient.view(self.value.shape)
        self._name_arrays()

    def finish(self, rate: float) -> None:
        """Step along what was collected."""
        self.value.add_(self.collected, alpha=-rate)


class _Places(NamedTuple):
    """The memory of a layer that so many examples use, for torch and for compiled loops."""

    seen: Floats32  # the windows, a row each or a column
    used: Tensor  # the same, a row each
    values: Tensor  # of every place, a row each
    whole: Floats32  # the same
    out: Tensor
    out_array: Floats32
    back: Tensor
    back_array: Floats32
    which: NDArray[np.int32]
    normal: loops.Normal | None


class Convolving:
    """A convolution at work on at most so many examples."""

    def __init__(self, table: Convolution, rows: int, margin: int, *, first: bool) -> None:
        self.table = table
        channels, height, width = table.after
        self.each = table.places[0] * table.places[1]
        self.by_tap = first and table.before[0] <= _FEW
        plain = not first and table.groups is None
        self.sparse = plain and table.pool > 1 and table.size * table.before[0] >= _LONG
        self.seen = torch.empty(rows * self.each * table.window)
        self.values = torch.empty(rows * self.each, table.channels)
        # The next layer's margin of zeros is around what comes out; it is written once.
        self.margin = margin
        self.out = torch.zeros(rows, height + 2 * margin, width + 2 * margin, channels)
        self.back = torch.empty_like(self.out)
        self.which = np.empty((rows, height, width, channels), np.int32)
        self.live = _room(self.which.size if self.sparse else 0)
        self.weight = Weight(table.channels, table.window)
        self.bias = Weight(table.channels)
        self.gain, self.shift = Weight(table.channels), Weight(table.channels)
        self.vectors = [self.bias] if table.bias else []
        if table.groups is not None and table.groups.affine:
            self.vectors += [self.gain, self.shift]
        self.parameters = [self.weight, *self.vectors]
        for one, start in ((self.bias, 0.0), (self.gain, 1.0), (self.shift, 0.0)):
            one.begin(torch.full((table.channels,), start))
        self.numbers = torch.empty(self.values.shape if table.groups is not None else (0, table.channels))
        self.scales = np.empty((rows, table.channels), np.float32)
        self._nothing = np.zeros(table.channels, np.float32)
        self._places: dict[int, _Places] = {}

    def places(self, rows: int) -> _Places:
        """The memory for so many examples."""
        found = self._places.get(rows)
        if found is None:
            count, window = rows * self.each, self.table.window
            seen = self.seen[: count * window].view((window, count) if self.by_tap else (count, window))
            values, out, back = self.values[:count], self.out[:rows], self.back[:rows]
            found = self._places[rows] = _Places(
                seen=seen.numpy(),
                used=seen.t() if self.by_tap else seen,
                values=values,
                whole=values.view(rows, *self.table.places, self.table.channels).numpy(),
                out=out,
                out_array=out.numpy(),
                back=back,
                back_array=back.numpy(),
                which=self.which[:rows],
                normal=self._normal(rows),
            )
        return found

    def _normal(self, rows: int) -> loops.Normal | None:
        groups = self.table.groups
        if groups is None:
            return None
        numbers = self.numbers[: rows * self.each].view(rows, *self.table.places, self.table.channels).numpy()
        parts = self.gain.array, self.shift.array, groups.groups, groups.eps, numbers, self.scales[:rows]
        return loops.Normal(*parts)

    def begin(self, weights: list[Tensor]) -> None:
        """Start from these weights, as torch orders them."""
        self.weight.begin(weights.pop(0).permute(0, 2, 3, 1).reshape(self.weight.value.shape))
        for vector in self.vectors:
            vector.begin(weights.pop(0))

    def forward(self, pictures: Floats32) -> Floats32:
        """What comes out for pictures with this layer's margin."""
        table, at = self.table, self.places(len(pictures))
        self.pictures = pictures
        (loops.taps if self.by_tap else loops.windows)(pictures, table.size, table.stride, at.seen)
        torch.mm(at.used, self.weight.value.t(), out=at.values)
        bias = self.bias.array
        if at.normal is not None:
            loops.normalise(at.whole, bias, at.normal)
            bias = self._nothing
        loops.pooled(at.whole, bias, table.pool, int(table.bent), at.out_array, self.margin, at.which)
        return at.out_array

    def backward(self, rows: int, rate: float, block: int | None, before: "Convolving | None") -> None:
        """Steps, given the gradients of what came out; those of what came in go to the layer before."""
        at = self.places(rows)
        given = (at.back_array, at.out_array, self.margin, at.which)
        if self.sparse and before is not None:
            self._one_by_one(given, rate, block, before.places(rows).back_array)
        else:
            self._together(given, rate, block, None if before is None else before.places(rows).back_array)
        for vector in self.vectors:
            vector.add(vector.gradient, rate, block)

    def _one_by_one(self, given: Gradients, rate: float, block: int | None, back: Floats32) -> None:
        """By the gradients that are not zero, a few of a hundred."""
        table = self.table
        count = loops.alive(*given, table.pool, int(table.bent), self.bias.gradient_array, self.live)
        loops.spread(self.live, count, self.weight.array, table.size, table.stride, back)
        to, scale = self.weight.room(rate, block)
        loops.gather(self.live, count, self.pictures, table.size, table.stride, scale, to)

    def _together(self, given: Gradients, rate: float, block: int | None, back: Floats32 | None) -> None:
        """By matrix products. The values have been used: their memory takes their gradients, as that of windows."""
        table, at = self.table, self.places(len(given[0]))
        loops.unpooled(*given, table.pool, int(table.bent), at.whole, self.bias.gradient_array)
        if at.normal is not None:
            vectors = (one.gradient_array for one in (self.gain, self.shift, self.bias))
            loops.denormalise(at.whole, at.normal, *vectors)
        old = self.weight.value if back is None or block is not None else self.weight.value.clone()
        if self.by_tap:  # a long sum for few numbers: half as fast again with both factors as they lie
            self.weight.add(torch.mm(at.used.t(), at.values).t(), rate, block)
        else:
            self.weight.add_product(at.values.t(), at.used, rate, block)
        if back is not None:
            torch.mm(at.values, old, out=at.used)
            loops.add_windows(at.used.numpy(), table.size, table.stride, back)

    def changes(self) -> list[Tensor]:
        """What was learnt, in torch's order."""
        table = self.table
        weight = (self.weight.value - self.weight.start).view(table.channels, table.size, table.size, table.before[0])
        return [weight.permute(0, 3, 1, 2).reshape(-1), *(one.value - one.start for one in self.vectors)]


def _room(count: int) -> loops.Live:
    """For a list of so many gradients."""
    examples, channels, rows, columns = np.empty((4, count), np.int32)
    return loops.Live(examples, channels, rows, columns, np.empty(count, np.float32))


class Pictures:
    """Convolutions at work on at most so many examples."""

    def __init__(self, table: Sequence[Convolution], rows: int) -> None:
        margins = [one.margin for one in table[1:]] + [0]
        self.convolving = [
            Convolving(one, rows, margin, first=not number)
            for number, (one, margin) in enumerate(zip(table, margins, strict=True))
        ]
        self.first = table[0]
        self.after = table[-1].after
        channels, height, width = self.first.before
        margin = self.first.margin
        self.pictures = torch.zeros(rows, height + 2 * margin, width + 2 * margin, channels)
        self._inner = self.pictures[:, margin : margin + height, margin : margin + width]
        self._pictures: Floats32 = self.pictures.numpy()

    @property
    def parameters(self) -> list[Weight]:
        """All weights and biases, in torch's order."""
        return [parameter for convolving in self.convolving for parameter in convolving.parameters]

    def back(self, rows: int) -> Tensor:
        """Where the gradients of what came out belong: [rows, height, width, channels]."""
        return self.convolving[-1].places(rows).back

    def begin(self, left: list[Tensor]) -> None:
        """Start from the first of these weights, and take them from the list."""
        for convolving in self.convolving:
            convolving.begin(left)

    def forward(self, examples: Tensor) -> Tensor:
        """What comes out for some examples: [examples, height, width, channels]."""
        # As pictures whose channels lie together, with the first layer's margin.
        rows = len(examples)
        self._inner[:rows].copy_(examples.reshape(-1, *self.first.before).permute(0, 2, 3, 1))
        values = self._pictures[:rows]
        for convolving in self.convolving:
            values = convolving.forward(values)
        return self.convolving[-1].places(rows).out

    def backward(self, rows: int, rate: float, block: int | None) -> None:
        """Steps, given the gradients of what came out for so many examples, in `back`."""
        for number in range(len(self.convolving) - 1, -1, -1):
            self.convolving[number].backward(rows, rate, block, self.convolving[number - 1] if number else None)
