"""Clients trained with convolutions as matrix products, a few examples at a time.

Why this is fast on a CPU: the products of copied windows run at nearly the full speed of the machine, where torch's
convolutions of a few examples do not; what else there is to do is done in few passes over memory; and the examples of
a block are so few that what one step leaves is in the cache for the next. And of the gradients that come back through
pooling and a rectifier at least three of four are zero, mostly seven of eight: what is not is taken back one by one.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incrowd.learning.batches import side_by_side
from incrowd.learning.contributions import Contributions
from incrowd.learning.deltas import FlatDelta
from incrowd.learning.paths.convolved import loops
from incrowd.learning.paths.convolved.layers import Convolution, Convolutions
from incrowd.learning.paths.path import ClientRound, TrainingPath, TrainingTask
from incrowd.learning.program import Dense

_BLOCK = 2**19  # numbers of windows that are looked at together; measured, the optimum is flat
_FEW = 4  # of so many channels windows are copied by tap
_LONG = 64  # numbers of a window's row, from which on gradients are taken one by one where most are zero

Gradients = tuple[NDArray[np.float32], NDArray[np.float32], int, NDArray[np.int32]]
"""Of what came out; what came out; its margin; and which of each square it was."""


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
        self._net: _Net | None = None

    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `TrainingPath.train`."""
        return [Contributions((one.client,), [self._train(weights, one)]) for one in clients]

    def _train(self, weights: Tensor, one: ClientRound) -> FlatDelta:
        feed = self._store.feed([one.client], side_by_side([one.batches]))
        width = feed.batches.width
        if self._net is None or self._net.rows < min(width, _rows(self._table)):
            self._net = _Net(self._table, min(width, _rows(self._table)))
        net, offset = self._net, self._task.offset(one.client)
        net.begin(self._task.model.by_parameter(weights))
        targets = self._table.loss.target(feed.labels[0], self._table.dense[-1].outputs)
        for step, size in enumerate(feed.batches.sizes[0].tolist()):
            rows = slice(step * width, step * width + size)
            if size:
                examples = feed.examples(0, slice(rows.start, rows.start + width))[:size]
                net.step(examples, targets[rows], self._task.local.learning_rate / size, offset)
        return FlatDelta(net.changes()[None])


def _rows(table: Convolutions) -> int:
    """How many examples are looked at together."""
    widest = max(one.window * one.places[0] * one.places[1] for one in table.pictures)
    return max(1, _BLOCK // widest)


class _Weight:
    """A weight [inputs, outputs] or a bias: steps go into it, or are collected where a batch has several blocks."""

    def __init__(self, *shape: int) -> None:
        self.value = torch.empty(shape)
        self.start = torch.empty(shape)
        self.collected = torch.empty(shape)

    def begin(self, start: Tensor) -> None:
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

    def room(self, rate: float, block: int | None) -> tuple[Tensor, float]:
        """Where gradients are to be added, and times what."""
        if block is None:
            return self.value, -rate
        return (self.collected if block else self.collected.zero_()), 1.0

    def finish(self, rate: float) -> None:
        """Step along what was collected."""
        self.value.add_(self.collected, alpha=-rate)


class _Convolving:
    """A convolution at work on at most so many examples."""

    def __init__(self, table: Convolution, rows: int, margin: int, *, first: bool) -> None:
        self.table = table
        channels, height, width = table.after
        places = rows * table.places[0] * table.places[1]
        self.by_tap = first and table.before[0] <= _FEW
        self.sparse = not first and table.pool > 1 and table.size * table.before[0] >= _LONG
        self.seen = torch.empty((table.window, places) if self.by_tap else (places, table.window))
        self.values = torch.empty(places, table.channels)
        # The next layer's margin of zeros is around what comes out; it is written once.
        self.margin = margin
        self.out = torch.zeros(rows, height + 2 * margin, width + 2 * margin, channels)
        self.back = torch.empty_like(self.out)
        self.which = np.empty((rows, height, width, channels), np.int32)
        self.live = _room(self.which.size if self.sparse else 0)
        self.gradients = self.values  # they have been used by then
        self.weight = _Weight(table.channels, table.window)
        self.bias = _Weight(table.channels)
        self.parameters = [self.weight, self.bias] if table.bias else [self.weight]
        self.bias.begin(torch.zeros(table.channels))
        self.bias_gradient = torch.empty(table.channels)

    def begin(self, weights: list[Tensor]) -> None:
        """Start from these weights, as torch orders them."""
        self.weight.begin(weights.pop(0).permute(0, 2, 3, 1).reshape(self.weight.value.shape))
        if self.table.bias:
            self.bias.begin(weights.pop(0))

    def forward(self, pictures: Tensor) -> Tensor:
        """What comes out for pictures with this layer's margin."""
        table, rows = self.table, len(pictures)
        self.pictures = pictures
        places = rows * table.places[0] * table.places[1]
        if self.by_tap:
            seen = self.seen.view(-1)[: table.window * places].view(table.window, places)
            loops.taps(pictures.numpy(), table.size, table.stride, seen.numpy())
            self.used = seen.t()
        else:
            self.used = self.seen[:places]
            loops.windows(pictures.numpy(), table.size, table.stride, self.used.numpy())
        values = torch.mm(self.used, self.weight.value.t(), out=self.values[:places])
        whole = values.view(rows, *table.places, table.channels).numpy()
        out, bias = self.out[:rows], self.bias.value.numpy()
        loops.pooled(whole, bias, table.pool, int(table.bent), out.numpy(), self.margin, self.which[:rows])
        return out

    def backward(self, back: Tensor, rate: float, block: int | None, before: "_Convolving | None") -> None:
        """Steps, given the gradients of what came out; those of what came in go to the layer before."""
        rows = len(back)
        given = (back.numpy(), self.out[:rows].numpy(), self.margin, self.which[:rows])
        if self.sparse and before is not None:
            self._one_by_one(given, rate, block, before.back[:rows])
        else:
            self._together(given, rate, block, None if before is None else before.back[:rows])
        if self.table.bias:
            self.bias.add(self.bias_gradient, rate, block)

    def _one_by_one(self, given: Gradients, rate: float, block: int | None, back: Tensor) -> None:
        """By the gradients that are not zero, a few of a hundred."""
        table = self.table
        count = loops.alive(*given, table.pool, int(table.bent), self.bias_gradient.numpy(), self.live)
        loops.spread(self.live, count, self.weight.value.numpy(), table.size, table.stride, back.numpy())
        to, scale = self.weight.room(rate, block)
        loops.gather(self.live, count, self.pictures.numpy(), table.size, table.stride, scale, to.numpy())

    def _together(self, given: Gradients, rate: float, block: int | None, back: Tensor | None) -> None:
        """By matrix products."""
        table, rows = self.table, len(given[0])
        gradients = self.gradients[: rows * table.places[0] * table.places[1]]
        whole = gradients.view(rows, *table.places, table.channels).numpy()
        loops.unpooled(*given, table.pool, int(table.bent), whole, self.bias_gradient.numpy())
        old = self.weight.value if back is None or block is not None else self.weight.value.clone()
        self.weight.add_product(gradients.t(), self.used, rate, block)
        if back is not None:  # the windows have been used: their memory takes their gradients
            torch.mm(gradients, old, out=self.used)
            loops.add_windows(self.used.numpy(), table.size, table.stride, back.numpy())

    def changes(self) -> list[Tensor]:
        """What was learnt, in torch's order."""
        table = self.table
        weight = (self.weight.value - self.weight.start).view(table.channels, table.size, table.size, table.before[0])
        changed = [weight.permute(0, 3, 1, 2).reshape(-1)]
        return [*changed, self.bias.value - self.bias.start] if table.bias else changed


def _room(count: int) -> loops.Live:
    """For a list of so many gradients."""
    examples, channels, rows, columns = np.empty((4, count), np.int32)
    return loops.Live(examples, channels, rows, columns, np.empty(count, np.float32))


class _Densely:
    """A Linear layer at work."""

    def __init__(self, table: Dense, rows: int) -> None:
        self.table = table
        self.values, self.gradients = torch.empty(2, rows, table.outputs)
        self.weight, self.bias = _Weight(table.outputs, table.inputs), _Weight(table.outputs)
        self.parameters = [self.weight, self.bias] if table.bias else [self.weight]

    def begin(self, weights: list[Tensor], picture: tuple[int, int, int] | None) -> None:
        """Start from these weights; those of the first layer on a `picture` come in the order of its channels."""
        weight = weights.pop(0)
        if picture is not None:
            weight = weight.view(-1, *picture).permute(0, 2, 3, 1).reshape(weight.shape)
        self.weight.begin(weight)
        if self.table.bias:
            self.bias.begin(weights.pop(0))

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs."""
        values = self.values[: len(inputs)]
        if self.table.bias:
            torch.addmm(self.bias.value, inputs, self.weight.value.t(), out=values)
        else:
            torch.mm(inputs, self.weight.value.t(), out=values)
        return values if self.table.activation is None else self.table.activation.apply(values)

    def backward(self, inputs: Tensor, gradients: Tensor, rate: float, block: int | None, back: Tensor) -> None:
        """Steps, given the gradients of the outputs; those of the inputs go to `back`."""
        torch.mm(gradients, self.weight.value, out=back)
        self.weight.add_product(gradients.t(), inputs, rate, block)
        if self.table.bias:
            self.bias.add(gradients.sum(0), rate, block)

    def changes(self, picture: tuple[int, int, int] | None) -> list[Tensor]:
        """What was learnt, in torch's order."""
        weight = self.weight.value - self.weight.start
        if picture is not None:
            channels, height, width = picture
            weight = weight.view(-1, height, width, channels).permute(0, 3, 1, 2)
        changed = [weight.reshape(-1)]
        return [*changed, self.bias.value - self.bias.start] if self.table.bias else changed


class _Net:
    """All layers at work, for one client after the other."""

    def __init__(self, table: Convolutions, rows: int) -> None:
        self.table, self.rows = table, rows
        margins = [one.margin for one in table.pictures[1:]] + [0]
        self.convolving = [
            _Convolving(one, rows, margin, first=not number)
            for number, (one, margin) in enumerate(zip(table.pictures, margins, strict=True))
        ]
        self.dense = [_Densely(one, rows) for one in table.dense]
        first = table.pictures[0]
        channels, height, width = first.before
        self.picture = table.pictures[-1].after
        self.pictures = torch.zeros(rows, height + 2 * first.margin, width + 2 * first.margin, channels)

    def begin(self, weights: Sequence[Tensor]) -> None:
        """Start from the weights of each parameter."""
        left = list(weights)
        for convolving in self.convolving:
            convolving.begin(left)
        for number, dense in enumerate(self.dense):
            dense.begin(left, None if number else self.picture)

    def step(self, examples: Tensor, targets: Tensor, rate: float, offset: Tensor | None) -> None:
        """One step along the gradient of a batch, times `rate`."""
        several = len(examples) > self.rows
        for block, begin in enumerate(range(0, len(examples), self.rows)):
            rows = slice(begin, begin + self.rows)
            self._block(examples[rows], targets[rows], rate, offset, block if several else None)
        if several:
            layers: list[_Convolving | _Densely] = [*self.convolving, *self.dense]
            for layer in layers:
                for parameter in layer.parameters:
                    parameter.finish(rate)

    def _block(self, examples: Tensor, targets: Tensor, rate: float, offset: Tensor | None, block: int | None) -> None:
        values = self._looked_at(examples)
        for convolving in self.convolving:
            values = convolving.forward(values)
        flat = values.view(len(examples), -1)
        inputs = [flat]
        for dense in self.dense:
            inputs.append(dense.forward(inputs[-1]))
        outputs = inputs.pop()
        if offset is not None:
            outputs.add_(offset)
        gradients = self.dense[-1].gradients[: len(examples)]
        self.table.loss.mean(outputs, out=gradients)
        gradients.sub_(targets)
        back = self.convolving[-1].back[: len(examples)]
        for number in range(len(self.dense) - 1, -1, -1):
            below = self.dense[number - 1] if number else None
            before = back.view(flat.shape) if below is None else below.gradients[: len(examples)]
            self.dense[number].backward(inputs[number], gradients, rate, block, before)
            if below is not None and below.table.activation is not None:
                below.table.activation.backward(before, inputs[number])
            gradients = before
        for number in range(len(self.convolving) - 1, -1, -1):
            earlier = self.convolving[number - 1] if number else None
            self.convolving[number].backward(back, rate, block, earlier)
            back = back if earlier is None else earlier.back[: len(examples)]

    def _looked_at(self, examples: Tensor) -> Tensor:
        """Examples as pictures whose channels lie together, with the first layer's margin."""
        first = self.table.pictures[0]
        channels, height, width = first.before
        pictures = self.pictures[: len(examples)]
        inner = pictures[:, first.margin : first.margin + height, first.margin : first.margin + width]
        inner.copy_(examples.reshape(-1, channels, height, width).permute(0, 2, 3, 1))
        return pictures

    def changes(self) -> Tensor:
        """What was learnt, as a flat vector."""
        changed = [one for convolving in self.convolving for one in convolving.changes()]
        for number, dense in enumerate(self.dense):
            changed += dense.changes(None if number else self.picture)
        return torch.cat(changed)
