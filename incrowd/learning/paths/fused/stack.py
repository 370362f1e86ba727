"""A stack of Linear layers at work: for one client with matrices, for c of them with [c, ...] of each."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from incrowd.learning.deltas import FlatDelta, InputDelta, WeightDelta
from incrowd.learning.paths.fused.between import Passage, Rectified, passage
from incrowd.learning.paths.fused.last import LastLayer, little
from incrowd.learning.paths.fused.layers import StackTable
from incrowd.learning.paths.fused.parameter import Parameter, Product
from incrowd.learning.store import Feed
from incrowd.settings.local import Local

_BLOCK = 60  # rows over which the update of a wide first layer is put off; measured, the optimum is flat


class StackLayer:
    """A layer of one client, or of all side by side."""

    def __init__(self, weight: Parameter, bias: Parameter | None, *, by_input: bool) -> None:
        self.weight = weight
        self.bias = bias  # [1, outputs]
        self.by_input = by_input
        self.by_in = weight.value if by_input else weight.value.mT  # [inputs, outputs]
        self.by_out = self.by_in.mT
        self.square = 0.0 if bias is None else 1.0
        """Of the constant feature whose weight the bias is; it is another where features are one with the bias."""

    def forward(self, x: Tensor, *, out: Tensor, scale: float = 1.0) -> None:
        """The outputs for examples x [rows, inputs] times a scale."""
        if self.bias is not None:
            self.weight.add(self.bias.value, x, self.by_in, alpha=scale, out=out)
        else:
            self.weight.add(out, x, self.by_in, beta=0, alpha=scale, out=out)

    def update(self, x: Tensor, d: Tensor, ones: Tensor, scale: float = 1.0) -> None:
        """One step, given the gradient d [rows, outputs] of the outputs and ones [1, rows]."""
        if self.by_input:
            self.weight.update(x.mT, d, scale)
        else:
            self.weight.update(d.mT, x, scale)
        if self.bias is not None:
            self.bias.update(ones, d, self.square)


class Stack:
    """Takes the steps of one feed.

    Guarantee: features that are constant in all of a client's examples, and so are one with the first layer's bias,
    change nothing but rounding.

    Edge cases: the first layer's update is put off only where the squares of examples are numbers; one client's
    examples decide about that client alone.
    """

    def __init__(
        self, table: StackTable, weights: Sequence[Tensor], feed: Feed, local: Local, *, offset: Tensor | None = None
    ) -> None:
        self.loss = table.loss
        self.feed = feed
        self.local = local
        several, self.width = len(feed.rows), feed.batches.width
        self.clients = () if several == 1 else (several,)
        self.who: int | slice = 0 if several == 1 else slice(None)
        self.multiply: Product = torch.mm if several == 1 else torch.bmm
        self.columns = None if feed.columns is None else feed.columns[0]
        self.values = [self._empty(self.width, layer.outputs) for layer in table.layers]
        self.gradients = [torch.empty_like(value) for value in self.values]
        self.layers: list[StackLayer] = []
        self.passages: list[list[Passage]] = []
        self.parameters: list[Parameter] = []  # in torch's order
        self._build(table, list(weights))
        self.inputs = table.layers[0].inputs
        self.block = max(1, _BLOCK // self.width)
        self.defers = self.block > 1 and local.plain and table.wide and len(self.layers) > 1
        self.ones = torch.ones_like(self._empty(1, self.block * self.width))
        self.one_batch = self.ones[..., : self.width]
        self.nobody = torch.empty(0, self.inputs)
        self.offset = offset  # of the outputs, [c, 1, outputs]
        self.last = self._last(table)
        self.rectified = [[type(one) for one in some] for some in self.passages] == [[Rectified], []]
        if self.last is None:
            self.targets = self._by_batch(self.loss.target(feed.labels.view(-1), table.layers[-1].outputs))
            self.weights = None if feed.weights is None else self._by_batch(feed.weights)

    def _empty(self, rows: int, columns: int) -> Tensor:
        return torch.empty(*self.clients, rows, columns, device=self.feed.table.device)

    def _by_batch(self, rows: Tensor) -> Sequence[Tensor]:
        """What there is for each example, [width, columns] for each step."""
        by_client = rows.view(*self.clients, self.feed.batches.steps, self.width, -1)
        return by_client.unbind(-3)

    def _build(self, table: StackTable, weights: list[Tensor]) -> None:
        taken = partial(self._taken, weights)
        for number, layer in enumerate(table.layers):
            start = weights.pop(0)
            bias = weights.pop(0).view(1, -1) if layer.bias else None
            own = self._layer(start, bias) if number else self._first(start, bias, by_input=table.wide)
            self.parameters += [own.weight, own.bias] if layer.bias and own.bias is not None else [own.weight]
            self.layers.append(own)
            self.passages.append([passage(between, self.values[number], taken) for between in layer.between])

    def _layer(self, start: Tensor, bias: Tensor | None, *, by_input: bool = False) -> StackLayer:
        weight = self._parameter(start.t() if by_input else start)
        return StackLayer(weight, None if bias is None else self._parameter(bias), by_input=by_input)

    def _first(self, start: Tensor, bias: Tensor | None, *, by_input: bool) -> StackLayer:
        """The first layer, with a bias that constant features are one with."""
        constants, square = self.feed.constants, float(bias is not None)
        if constants is not None:
            outputs = (start @ constants).view(1, -1)
            bias = outputs if bias is None else bias + outputs
            square += float(constants.double().square().sum())
        if self.columns is not None:
            start = start.t().index_select(0, self.columns).t()
        layer = self._layer(start, bias, by_input=by_input)
        layer.square = square
        return layer

    def _last(self, table: StackTable) -> LastLayer | None:
        """The last layer, where one loop does all of it."""
        layer, own = table.layers[-1], self.layers[-1]
        one = not self.clients and self.feed.table.device.type == "cpu" and self.local.plain
        if not one or not little(layer, self.width, self.loss):
            return None
        if len(self.layers) == 1 and (own.by_input or self.feed.scale != 1 or self.feed.constants is not None):
            return None  # the loop takes the numbers as they are
        return LastLayer(own.weight, own.bias, self.feed, self.loss, offset=self.offset)

    def _parameter(self, start: Tensor) -> Parameter:
        return Parameter(start, self._empty(*start.shape).copy_(start), self.local, self.width)

    def _taken(self, weights: list[Tensor]) -> Parameter:
        """The next of the weights, of a vector."""
        parameter = self._parameter(weights.pop(0).view(1, -1))
        self.parameters.append(parameter)
        return parameter

    def train(self) -> list[WeightDelta]:
        """Take all steps."""
        steps = self.feed.batches.steps
        for step in range(0, steps, self.block):
            rows = slice(step * self.width, min(step + self.block, steps) * self.width)
            x = self.feed.stored(self.who, rows).flatten(1 + len(self.clients))
            if self.defers and x.shape[-2] > self.width:
                self._deferred(x, step)
            else:
                self._direct(x, step)
        return self._deltas()

    def _direct(self, x: Tensor, step: int) -> None:
        """Batch after batch."""
        first, scale = self.layers[0], self.feed.scale
        for t, batch in enumerate(torch.split(x, self.width, -2)):
            if self.last is not None and len(self.layers) == 1:
                self.last.step(step + t, batch, self.nobody)
                continue
            first.forward(batch, out=self.values[0], scale=scale)
            self._rest(step + t, self.values[0], self.gradients[0])
            first.update(batch, self.gradients[0], self.one_batch, scale)

    def _deferred(self, x: Tensor, step: int) -> None:
        """Several batches, with one update of the first layer; see the top of this package."""
        first, width, rows, scale = self.layers[0], self.width, x.shape[-2], self.feed.scale
        z = self._empty(rows, self.values[0].shape[-1])
        first.forward(x, out=z, scale=scale)
        products = self._empty(rows, rows).fill_(first.square)
        first.weight.add(products, x, x.mT, alpha=scale**2, out=products)
        if not (self.clients or math.isfinite(products.trace())):  # no product is larger than a square
            self._direct(x, step)
            return
        d = torch.empty_like(z)
        if self.last is not None and self.rectified:
            self.last.block(step, z, products, first.weight.alpha, d)
            first.update(x, d, self.ones[..., :rows], scale)
            return
        for t, (begin, value, gradient, stale) in enumerate(
            zip(range(0, rows, width), *(torch.split(one, width, -2) for one in (z, d, products)), strict=True)
        ):
            if t:
                past, before = stale[..., :begin], d[..., :begin, :]
                first.weight.add(value, past, before, alpha=first.weight.alpha, out=value)
            self._rest(step + t, value, gradient)
        first.update(x, d, self.ones[..., :rows], scale)

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
                self.multiply(gradients[number], self.layers[number].by_out, out=below)
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
            outputs.add_(self.offset if self.clients else self.offset[0])
        self.loss.mean(outputs, out=gradients)
        gradients.sub_(self.targets[step])
        if self.weights is not None:
            gradients.mul_(self.weights[step])

    def _deltas(self) -> list[WeightDelta]:
        """A first weight that is stored by input for itself, all the rest side by side."""
        first, constants, of_constant = self.layers[0], self.feed.constants, None
        if constants is not None and first.bias is not None:
            of_constant = first.bias.changes().div_(first.square)  # of a feature that is always 1
        rest = [
            one.changes() if of_constant is None or one is not first.bias else of_constant
            for one in self.parameters[1:]
        ]
        deltas: list[WeightDelta] = []
        if first.by_input:
            deltas.append(self._by_input(first.weight, of_constant))
        else:
            rest.insert(0, self._whole(first.weight, of_constant))
        if rest:
            rows = [change.view(*(self.clients or (1,)), -1) for change in rest]
            deltas.append(FlatDelta(torch.cat(rows, 1)))
        return deltas

    def _by_input(self, weight: Parameter, of_constant: Tensor | None) -> InputDelta:
        """What was learnt in a first weight that is stored by input."""
        columns, constants = self.feed.columns, self.feed.constants
        if columns is None or constants is None or of_constant is None:
            values = weight.value if self.clients else weight.value[None]
            return InputDelta(values, weight.start, columns, self.inputs)
        places = constants.nonzero().view(-1)
        several, outputs = weight.value.shape
        changes = torch.empty(several + len(places), outputs)
        torch.sub(weight.value, weight.start, out=changes[:several])
        torch.outer(constants[places], of_constant[0], out=changes[several:])
        return InputDelta(changes[None], None, torch.cat([columns[0], places])[None], self.inputs)

    def _whole(self, weight: Parameter, of_constant: Tensor | None) -> Tensor:
        """What was learnt in a first weight that is stored by output, left out features and all."""
        changes, constants = weight.changes(), self.feed.constants
        if self.columns is None:
            return changes
        whole = changes.new_zeros(len(changes), self.inputs)
        if constants is not None and of_constant is not None:
            torch.outer(of_constant[0], constants, out=whole)
        return whole.index_copy_(1, self.columns, changes)
