"""A stack of Linear layers at work, for one client."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from incrowd.learning.deltas import FlatDelta, WeightDelta
from incrowd.learning.paths.fused.between import Passage, Rectified, passage
from incrowd.learning.paths.fused.first import FirstLayer, NarrowFirstLayer, WideFirstLayer
from incrowd.learning.paths.fused.last import LastLayer, little
from incrowd.learning.paths.fused.layers import Layer, StackTable
from incrowd.learning.paths.fused.linear import LinearLayer
from incrowd.learning.paths.fused.parameter import Parameter
from incrowd.learning.store import Feed
from incrowd.settings.local import Local

_BLOCK = 100  # rows over which the update of a wide first layer is put off; measured, the optimum is flat
_NARROW = 30  # of wider batches the products with each other cost more than they spare


class Stack:
    """Takes the steps of one feed.

    Edge cases: the first layer's update is put off only where the squares of examples are numbers; one client's
    examples decide about that client alone.
    """

    def __init__(
        self, table: StackTable, weights: Sequence[Tensor], feed: Feed, local: Local, *, offset: Tensor | None = None
    ) -> None:
        self.loss = table.loss
        self.feed = feed
        self.local = local
        self.width = feed.batches.width
        self.values = [torch.empty(self.width, layer.outputs) for layer in table.layers]
        self.gradients = [torch.empty_like(value) for value in self.values]
        self.arrays = self.values[0].numpy(), self.gradients[0].numpy()  # of each batch anew it would take longer
        self.layers: list[LinearLayer] = []
        self.passages: list[list[Passage]] = []
        self.parameters: list[Parameter] = []  # in torch's order
        self.first = self._build(table, list(weights))
        self.block = _BLOCK // self.width if self.width <= _NARROW else 1
        self.defers = self.block > 1 and local.plain and table.wide and len(self.layers) > 1
        self.one_batch = torch.ones(1, self.width)
        self.offset = offset  # of the outputs
        self.last = self._last(table)
        self.rectified = [[type(one) for one in some] for some in self.passages] == [[Rectified], []]
        if self.last is None:
            self.targets = self._by_batch(self.loss.target(feed.labels.view(-1), table.layers[-1].outputs))
            self.weights = None if feed.weights is None else self._by_batch(feed.weights)

    def _by_batch(self, rows: Tensor) -> Sequence[Tensor]:
        """What there is for each example, [width, columns] for each step."""
        return rows.view(self.feed.batches.steps, self.width, -1).unbind(0)

    def _build(self, table: StackTable, weights: list[Tensor]) -> FirstLayer:
        make = WideFirstLayer if table.wide else NarrowFirstLayer
        first: FirstLayer = make(*_next(weights, table.layers[0]), self.feed, self.local)
        taken = partial(self._taken, weights)
        for number, layer in enumerate(table.layers):
            own = self._layer(*_next(weights, layer)) if number else first.layer
            self.parameters += [own.weight, own.bias] if layer.bias and own.bias is not None else [own.weight]
            self.layers.append(own)
            self.passages.append([passage(between, self.values[number], taken) for between in layer.between])
        return first

    def _layer(self, start: Tensor, bias: Tensor | None) -> LinearLayer:
        return LinearLayer(self._parameter(start), None if bias is None else self._parameter(bias), by_input=False)

    def _last(self, table: StackTable) -> LastLayer | None:
        """The last layer, where one loop does all of it."""
        layer, own = table.layers[-1], self.layers[-1]
        if not self.local.plain or not little(layer, self.width, self.loss):
            return None
        if len(self.layers) == 1 and (own.by_input or self.feed.scale != 1 or self.feed.constants is not None):
            return None  # the loop takes the numbers as they are
        return LastLayer(own.weight, own.bias, self.feed, self.loss, offset=self.offset)

    def _parameter(self, start: Tensor) -> Parameter:
        return Parameter(start, torch.empty(start.shape).copy_(start), self.local, self.width)

    def _taken(self, weights: list[Tensor]) -> Parameter:
        """The next of the weights, of a vector."""
        parameter = self._parameter(weights.pop(0).view(1, -1))
        self.parameters.append(parameter)
        return parameter

    def train(self) -> list[WeightDelta]:
        """Take all steps."""
        steps = self.feed.batches.steps
        if self.last is not None and len(self.layers) == 1:
            for step in range(steps):
                self.last.alone(step)
            return self._deltas()
        for step in range(0, steps, self.block):
            rows = slice(step * self.width, min(step + self.block, steps) * self.width)
            x = self.first.examples(rows)
            if self.defers and x.shape[-2] > self.width:
                self._deferred(x, step)
            else:
                self._direct(x, step)
        return self._deltas()

    def _direct(self, x: Tensor, step: int) -> None:
        """Batch after batch."""
        for t, batch in enumerate(torch.split(x, self.width, -2) if self.block > 1 else (x,), step):
            rows = slice(t * self.width, (t + 1) * self.width)
            self.first.forward(rows, batch, self.values[0])
            if self.last is not None and self.rectified:
                self.last.batch(t, *self.arrays)
            else:
                self._rest(t, self.values[0], self.gradients[0])
            self.first.update(rows, batch, self.gradients[0])

    def _deferred(self, x: Tensor, step: int) -> None:
        """Several batches, with one update of the first layer; see the top of this package."""
        first, weight, width = self.first, self.layers[0].weight, self.width
        rows = slice(step * width, step * width + x.shape[-2])
        z = torch.empty(x.shape[-2], self.values[0].shape[-1])
        first.forward(rows, x, z)
        products = torch.empty(x.shape[-2], x.shape[-2])
        first.products(rows, x, products)
        if not math.isfinite(products.trace()):  # no product is larger than a square
            self._direct(x, step)
            return
        d = torch.empty_like(z)
        if self.last is not None and self.rectified:
            self.last.block(step, z, products, weight.alpha, d)
            first.update(rows, x, d)
            return
        for t, (begin, value, gradient, stale) in enumerate(
            zip(range(0, x.shape[-2], width), *(torch.split(one, width, -2) for one in (z, d, products)), strict=True)
        ):
            if t:
                past, before = stale[:, :begin], d[:begin]
                torch.addmm(value, past, before, alpha=weight.alpha, out=value)
            self._rest(step + t, value, gradient)
        first.update(rows, x, d)

    def _rest(self, step: int, value: Tensor, gradient: Tensor) -> None:
        """From the first layer's outputs for a batch: their gradient, and a step of the other layers."""
        inputs = [self._through(0, value)]
        gradients = [gradient, *self.gradients[1:]]
        above = len(self.layers) - (self.last is not None)
        for number in range(1, above):
            self.layers[number].forward(inputs[-1], out=self.values[number])
            inputs.append(self._through(number, self.values[number]))
        if self.last is not None:
            self.last.step(step, inputs[-1], gradients[above - 1])
        else:
            self._compare(step, inputs.pop(), gradients[-1])
        for number in range(len(inputs), 0, -1):
            below = gradients[number - 1]
            if number < above:
                torch.mm(gradients[number], self.layers[number].by_out, out=below)
            for one in reversed(self.passages[number - 1]):
                one.backward(below)
            if number < above:
                self.layers[number].update(inputs[number - 1], gradients[number], self.one_batch)

    def _through(self, number: int, value: Tensor) -> Tensor:
        """What is made of a layer's outputs by what comes behind it."""
        for one in self.passages[number]:
            value = one.forward(value)
        return value

    def _compare(self, step: int, outputs: Tensor, gradients: Tensor) -> None:
        """The gradients of the outputs."""
        if self.offset is not None:
            outputs.add_(self.offset)
        self.loss.mean(outputs, out=gradients)
        gradients.sub_(self.targets[step])
        if self.weights is not None:
            gradients.mul_(self.weights[step])

    def _deltas(self) -> list[WeightDelta]:
        """The first weight's for itself, all the rest side by side."""
        changes, bias, unit = self.first.changes(), self.layers[0].bias, self.first.unit
        rest = [unit if unit is not None and one is bias else one.changes() for one in self.parameters[1:]]
        rows = [change.view(1, -1) for change in rest]
        return [changes, FlatDelta(torch.cat(rows, 1), changes.loops)] if rows else [changes]


def _next(weights: list[Tensor], layer: Layer) -> tuple[Tensor, Tensor | None]:
    """Take the weight and bias of a layer."""
    return weights.pop(0), weights.pop(0).view(1, -1) if layer.bias else None
