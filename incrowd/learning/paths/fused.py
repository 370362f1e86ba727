"""The path for stacks of Linear layers: their steps, in place, without autograd.

Why this is fast on a CPU (each was measured): the gradient of a weight is accumulated straight into the weight by the
matrix product that computes it, so that there is neither a gradient nor an optimiser pass; and two deltas of exact
algebra:

- A client's weight of a feature that is zero in all of its examples does not change, so such features are left out.
- The first layer is wide and batches are small. Its update is put off over several batches: with the weights W that a
  block of batches started with, the outputs of batch t are x_t W - rate * x_t (sum over s < t of x_s' d_s), and the
  products x_t x_s' of all batches of the block come from one matrix product.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from incrowd.learning.batches import side_by_side
from incrowd.learning.contributions import Contributions
from incrowd.learning.deltas import FlatDelta, InputDelta, WeightDelta
from incrowd.learning.paths.path import ClientRound, TrainingPath, TrainingTask
from incrowd.learning.paths.turned import Turned
from incrowd.learning.program import Program
from incrowd.learning.store import Feed
from incrowd.settings.local import Local

_BLOCK = 60  # rows over which the update of a wide first layer is put off; measured, the optimum is flat
_MEMORY = 2**30  # bytes of weights on an accelerator, where more clients at once are better,
_MANY = 256  # up to so many

Product = Callable[..., Tensor]


def make(task: TrainingTask) -> "Fused | None":
    """The path, if the model has a program."""
    program = task.program()
    return None if program is None else Fused(task, program)


class Fused(TrainingPath):
    """Trains clients with a program: one after the other, or on an accelerator several side by side.

    Guarantee: what one client learns is computed from its examples alone, in matrices of its own that begin where
    torch's memory does, so that a processor goes the same way whoever was trained before. Clients side by side have
    equally many examples, so that nobody's batches are filled up because of another.
    """

    def __init__(self, task: TrainingTask, program: Program) -> None:
        self.takes = task.everyone
        self._side_by_side = task.on_accelerator
        usual = max(1, min(_MANY, _MEMORY // (4 * task.model.size))) if task.on_accelerator else 1
        self.at_once = task.execution.chunk or usual
        self._task = task
        self._program = program
        self._store = task.store(sparing=True)
        self._turned = Turned()

    def kind(self, client: int) -> int:
        """See `TrainingPath.kind`."""
        return len(self._task.data.examples(client)) if self._side_by_side else 0

    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `TrainingPath.train`."""
        if not self._side_by_side:
            return [Contributions((one.client,), self._train(weights, [one])) for one in clients]
        # Always equally many, because their number may decide on rounding.
        filled = [*clients, *[clients[-1]] * (self.at_once - len(clients))]
        deltas = [delta.part(slice(len(clients))) for delta in self._train(weights, filled)]
        return [Contributions(tuple(one.client for one in clients), deltas)]

    def _train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[WeightDelta]:
        feed = self._store.feed([one.client for one in clients], side_by_side([one.batches for one in clients]))
        first, *others = self._task.model.by_parameter(weights)
        if self._program.wide or feed.columns is not None:
            first = self._turned.of(first).t()
        stack = _Stack(self._program, [first, *others], feed, self._task.local)
        stack.offset = self._offset(clients)
        return stack.train()

    def _offset(self, clients: Sequence[ClientRound]) -> Tensor | None:
        offsets = [self._task.offset(one.client) for one in clients]
        several = [one for one in offsets if one is not None]
        return torch.stack(several)[:, None] if several else None


class _Parameter:
    """One parameter, [a, b] or of all clients [c, a, b], and its step."""

    def __init__(self, start: Tensor, value: Tensor, local: Local, width: int) -> None:
        self.start = start  # broadcasts to value
        self.value = value
        self.velocity = torch.zeros_like(value) if local.momentum else None
        self.local = local
        self.add: Product = torch.addmm if value.ndim == 2 else torch.baddbmm
        self.keep = 1 - local.learning_rate * (local.weight_decay + local.proximal)
        self.alpha = -local.learning_rate / width
        self.width = width

    def update(self, left: Tensor, right: Tensor, scale: float = 1.0) -> None:
        """One step along the gradient scale * left @ right / width."""
        local, value, velocity = self.local, self.value, self.velocity
        if velocity is not None:
            self.add(velocity, left, right, beta=local.momentum, alpha=scale / self.width, out=velocity)
            if not local.plain:
                velocity.add_(value, alpha=local.weight_decay + local.proximal)
                velocity.sub_(self.start, alpha=local.proximal)
            value.add_(velocity, alpha=-local.learning_rate)
        else:
            self.add(value, left, right, beta=self.keep, alpha=scale * self.alpha, out=value)
            if local.proximal:
                value.add_(self.start, alpha=local.learning_rate * local.proximal)

    def changes(self) -> Tensor:
        """What was learnt."""
        return torch.sub(self.value, self.start)


class _StackLayer:
    """A layer of one client, or of all side by side."""

    def __init__(self, weight: _Parameter, bias: _Parameter | None, *, by_input: bool) -> None:
        self.weight = weight
        self.bias = bias  # [1, outputs]
        self.by_input = by_input
        self.by_in = weight.value if by_input else weight.value.mT  # [inputs, outputs]
        self.by_out = self.by_in.mT

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
            self.bias.update(ones, d)


class _Stack:
    """A program at work: for one client with matrices, for c of them with [c, ...] of each."""

    def __init__(self, program: Program, weights: Sequence[Tensor], feed: Feed, local: Local) -> None:
        self.loss = program.loss
        self.feed = feed
        self.local = local
        several, self.width = len(feed.rows), feed.batches.width
        self.clients = () if several == 1 else (several,)
        self.who: int | slice = 0 if several == 1 else slice(None)
        self.multiply: Product = torch.mm if several == 1 else torch.bmm
        self.columns = None if feed.columns is None else feed.columns[0]
        self.layers = self._layers(program, list(weights))
        self.activations = [layer.activation for layer in program.layers]
        self.inputs = program.layers[0].inputs
        self.values = [self._empty(self.width, layer.outputs) for layer in program.layers]
        self.gradients = [torch.empty_like(value) for value in self.values]
        self.block = max(1, _BLOCK // self.width)
        self.defers = self.block > 1 and local.plain and program.wide and len(self.layers) > 1
        self.ones = torch.ones_like(self._empty(1, self.block * self.width))
        self.one_batch = self.ones[..., : self.width]
        self.targets = self._by_batch(self.loss.target(feed.labels.view(-1), program.layers[-1].outputs))
        self.weights = None if feed.weights is None else self._by_batch(feed.weights)
        self.offset: Tensor | None = None  # of the outputs, [c, 1, outputs]

    def _empty(self, rows: int, columns: int) -> Tensor:
        return torch.empty(*self.clients, rows, columns, device=self.feed.table.device)

    def _by_batch(self, rows: Tensor) -> Sequence[Tensor]:
        """What there is for each example, [width, columns] for each step."""
        by_client = rows.view(*self.clients, self.feed.batches.steps, self.width, -1)
        return by_client.unbind(-3)

    def _layers(self, program: Program, weights: list[Tensor]) -> list[_StackLayer]:
        layers = []
        for number, layer in enumerate(program.layers):
            by_input = number == 0 and program.wide
            start = weights.pop(0)
            if number == 0 and self.columns is not None:
                start = start.t().index_select(0, self.columns).t()
            weight = self._array(start.t() if by_input else start)
            bias = self._array(weights.pop(0).view(1, -1)) if layer.bias else None
            layers.append(_StackLayer(weight, bias, by_input=by_input))
        return layers

    def _array(self, start: Tensor) -> _Parameter:
        return _Parameter(start, self._empty(*start.shape).copy_(start), self.local, self.width)

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
            first.forward(batch, out=self.values[0], scale=scale)
            self._rest(step + t, self.values[0], self.gradients[0])
            first.update(batch, self.gradients[0], self.one_batch, scale)

    def _deferred(self, x: Tensor, step: int) -> None:
        """Several batches, with one update of the first layer; see the top of this module."""
        first, width, rows, scale = self.layers[0], self.width, x.shape[-2], self.feed.scale
        z = self._empty(rows, self.values[0].shape[-1])
        first.forward(x, out=z, scale=scale)
        # A bias is the weight of a feature that is always 1.
        products = self._empty(rows, rows).fill_(0.0 if first.bias is None else 1.0)
        first.weight.add(products, x, x.mT, alpha=scale**2, out=products)
        d = torch.empty_like(z)
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
        last = len(self.layers) - 1
        values, gradients = [value, *self.values[1:]], [gradient, *self.gradients[1:]]
        for number, activation in enumerate(self.activations):
            if number:
                self.layers[number].forward(values[number - 1], out=values[number])
            if activation is not None:
                activation.apply(values[number])
        if self.offset is not None:
            values[last].add_(self.offset if self.clients else self.offset[0])
        self.loss.mean(values[last], out=gradients[last])
        gradients[last].sub_(self.targets[step])
        if self.weights is not None:
            gradients[last].mul_(self.weights[step])
        for number in range(last, 0, -1):
            layer, activation, d = self.layers[number], self.activations[number - 1], gradients[number]
            self.multiply(d, layer.by_out, out=gradients[number - 1])
            if activation is not None:
                activation.backward(gradients[number - 1], values[number - 1])
            layer.update(values[number - 1], d, self.one_batch)

    def _deltas(self) -> list[WeightDelta]:
        """A first weight that is stored by input for itself, all the rest side by side."""
        deltas: list[WeightDelta] = []
        arrays = [array for layer in self.layers for array in (layer.weight, layer.bias) if array is not None]
        if self.layers[0].by_input:
            first = arrays.pop(0)
            values = first.value if self.clients else first.value[None]
            deltas.append(InputDelta(values, first.start, self.feed.columns, self.inputs))
        if arrays:
            changes = [array.changes() for array in arrays]
            if not deltas and self.columns is not None:
                changes[0] = changes[0].new_zeros(len(changes[0]), self.inputs).index_copy_(1, self.columns, changes[0])
            rows = [change.view(*(self.clients or (1,)), -1) for change in changes]
            deltas.append(FlatDelta(torch.cat(rows, 1)))
        return deltas
