"""The fast path: stacks of Linear layers, trained without autograd.

Why this is fast on a CPU (each was measured): the gradient of a weight is accumulated straight into the weight by the
matrix product that computes it, so that there is neither a gradient nor an optimiser pass; and two pieces of exact
algebra:

- A client's weight of a feature that is zero in all of its examples does not change, so such features are left out.
- The first layer is wide and batches are small. Its update is put off over several batches: with the weights W that a
  block of batches started with, the outputs of batch t are x_t W - rate * x_t (sum over s < t of x_s' d_s), and the
  products x_t x_s' of all batches of the block come from one matrix product.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from incrowd.learning.local import LocalTraining
from incrowd.learning.losses import Canonical
from incrowd.learning.models import layers_of_flat
from incrowd.learning.pieces import FlatPiece, InputPiece, Piece
from incrowd.learning.store import Feed
from incrowd.learning.turned import Turned

_WIDE = 64  # from so many outputs on, a first layer is fastest stored [inputs, outputs]
_SMALL = 2**13  # weights; measured
_BLOCK = 60  # rows over which the update of a wide first layer is put off; measured, the optimum is flat


@dataclass(frozen=True)
class Activation:
    """A function of one number, in place, and its derivative written in terms of its value."""

    apply: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], object]  # gradient (changed in place), value


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation(torch.relu_, lambda d, y: torch.ops.aten.threshold_backward.grad_input(d, y, 0, grad_input=d)),
    nn.Tanh: Activation(torch.tanh_, lambda d, y: torch.ops.aten.tanh_backward.grad_input(d, y, grad_input=d)),
    nn.Sigmoid: Activation(torch.sigmoid_, lambda d, y: torch.ops.aten.sigmoid_backward.grad_input(d, y, grad_input=d)),
}


@dataclass(frozen=True)
class Dense:
    """A Linear layer, and what is applied to its outputs (nothing after the last)."""

    inputs: int
    outputs: int
    bias: bool
    activation: Activation | None


@dataclass(frozen=True)
class Program:
    """A table of layers."""

    layers: tuple[Dense, ...]

    @property
    def wide(self) -> bool:
        """Whether the first layer is so wide that the work on its examples pays."""
        return self.layers[0].outputs >= _WIDE

    @property
    def small(self) -> bool:
        """Whether calling torch's operations would take longer than their work."""
        return sum(layer.inputs * layer.outputs for layer in self.layers) <= _SMALL


def compile_program(module: nn.Module, shape: Sequence[int]) -> Program | None:
    """The program that computes what the module computes for examples of this shape, or None if there is none here."""
    modules = layers_of_flat(module, shape)
    if modules is None:
        return None
    layers: list[Dense] = []
    for one, after in pairwise([*modules, nn.Identity()]):
        if type(one) is nn.Linear:
            activation = ACTIVATIONS.get(type(after))
            layers.append(Dense(one.in_features, one.out_features, one.bias is not None, activation))
        elif type(one) not in ACTIVATIONS:
            return None
    starts_or_ends_bent = not modules or type(modules[0]) in ACTIVATIONS or type(modules[-1]) in ACTIVATIONS
    bent_twice = any(type(one) in ACTIVATIONS and type(after) in ACTIVATIONS for one, after in pairwise(modules))
    return None if starts_or_ends_bent or bent_twice else Program(tuple(layers))


class Fused:
    """Trains clients with a program: all of a feed side by side, from the same weights.

    Guarantee: a feed of one client is computed from that client's examples alone, in memory of its own, which begins
    where torch's does: the processor does the same whoever was trained before. Clients of one feed have equally many
    examples, so that nobody's batches are filled up because of another.
    """

    def __init__(self, program: Program, local: LocalTraining, loss: Canonical) -> None:
        self._program = program
        self._local = local
        self._loss = loss
        self._turned = Turned()

    def train(self, weights: Sequence[Tensor], feed: Feed) -> list[Piece]:
        """Train the clients of a feed from the same weights (those of each parameter)."""
        first = weights[0]
        if self._program.wide or feed.columns is not None:
            first = self._turned.of(first).t()
        return _Stack(self._program, [first, *weights[1:]], feed, self._local, self._loss).train()


class _Array:
    """One parameter of all c clients, [c, a, b], and its step."""

    def __init__(self, start: Tensor, value: Tensor, local: LocalTraining, width: int) -> None:
        self.start = start  # broadcasts to value
        self.value = value
        self.velocity = torch.zeros_like(value) if local.momentum else None
        self.local = local
        self.keep = 1 - local.learning_rate * (local.weight_decay + local.proximal)
        self.alpha = -local.learning_rate / width
        self.width = width

    def update(self, left: Tensor, right: Tensor, scale: float = 1.0) -> None:
        """One step along the gradient scale * left @ right / width."""
        local = self.local
        if self.velocity is not None:
            self.velocity.baddbmm_(left, right, beta=local.momentum, alpha=scale / self.width)
            if not local.plain:
                self.velocity.add_(self.value, alpha=local.weight_decay + local.proximal)
                self.velocity.sub_(self.start, alpha=local.proximal)
            self.value.add_(self.velocity, alpha=-local.learning_rate)
        else:
            self.value.baddbmm_(left, right, beta=self.keep, alpha=scale * self.alpha)
            if local.proximal:
                self.value.add_(self.start, alpha=local.learning_rate * local.proximal)

    def changes(self) -> Tensor:
        """What was learnt."""
        return torch.sub(self.value, self.start)


class _Layer:
    """A layer of all c clients. The last has its outputs in columns, [c, outputs, rows], where a softmax is fast."""

    def __init__(self, weight: _Array, bias: _Array | None, *, by_input: bool, last: bool) -> None:
        self.weight = weight
        self.bias = bias  # [c, 1, outputs], of the last layer [c, outputs, 1]
        self.by_input = by_input
        self.last = last
        self.by_in = weight.value if by_input else weight.value.transpose(1, 2)  # [c, inputs, outputs]
        self.by_out = self.by_in.transpose(1, 2)

    def forward(self, x: Tensor, *, out: Tensor, scale: float = 1.0) -> None:
        """The outputs for examples x [c, rows, inputs] times a scale."""
        left, right = (self.by_out, x.transpose(1, 2)) if self.last else (x, self.by_in)
        if self.bias is not None:
            torch.baddbmm(self.bias.value, left, right, alpha=scale, out=out)
        else:
            torch.baddbmm(out, left, right, beta=0, alpha=scale, out=out)

    def update(self, x: Tensor, d: Tensor, ones: Tensor, scale: float = 1.0) -> None:
        """One step, given the gradient d of the outputs and ones [c, 1, rows]."""
        by_row = d.transpose(1, 2) if self.last else d
        if self.by_input:
            self.weight.update(x.transpose(1, 2), by_row, scale)
        else:
            self.weight.update(by_row.transpose(1, 2), x, scale)
        if self.bias is not None:
            self.bias.update(*((d, ones.transpose(1, 2)) if self.last else (ones, d)))


class _Stack:
    """c copies of a program at work."""

    def __init__(
        self, program: Program, weights: Sequence[Tensor], feed: Feed, local: LocalTraining, loss: Canonical
    ) -> None:
        self.loss = loss
        self.feed = feed
        self.local = local
        self.clients, self.width = len(feed.rows), feed.batches.width
        self.layers = self._layers(program, list(weights))
        self.activations = [layer.activation for layer in program.layers]
        *hidden, outputs = (layer.outputs for layer in program.layers)
        self.inputs = program.layers[0].inputs
        self.values = [*(self._empty(self.width, units) for units in hidden), self._empty(outputs, self.width)]
        self.gradients = [torch.empty_like(value) for value in self.values]
        self.block = max(1, _BLOCK // self.width)
        self.defers = self.block > 1 and local.plain and program.wide and len(self.layers) > 1
        self.ones = torch.ones_like(self._empty(1, self.block * self.width))
        self.targets = self._by_batch(self.loss.target(feed.labels.view(-1), outputs))
        self.weights = None if feed.weights is None else self._by_batch(feed.weights)

    def _empty(self, rows: int, columns: int) -> Tensor:
        return torch.empty(self.clients, rows, columns, device=self.feed.table.device)

    def _by_batch(self, rows: Tensor) -> Tensor:
        """What there is for each example, [steps, c, columns, width]."""
        steps = self.feed.batches.steps
        return rows.view(self.clients, steps, self.width, -1).permute(1, 0, 3, 2).contiguous()

    def _layers(self, program: Program, weights: list[Tensor]) -> list[_Layer]:
        layers = []
        for number, layer in enumerate(program.layers):
            by_input, last = number == 0 and program.wide, number == len(program.layers) - 1
            start = weights.pop(0)
            if number == 0 and self.feed.columns is not None:
                start = _gathered(start, self.feed.columns)
            weight = self._array(start.transpose(-1, -2) if by_input else start)
            bias = self._array(weights.pop(0).view((-1, 1) if last else (1, -1))) if layer.bias else None
            layers.append(_Layer(weight, bias, by_input=by_input, last=last))
        return layers

    def _array(self, start: Tensor) -> _Array:
        return _Array(start, self._empty(*start.shape[-2:]).copy_(start), self.local, self.width)

    def train(self) -> list[Piece]:
        """Take all steps."""
        steps = self.feed.batches.steps
        for step in range(0, steps, self.block):
            rows = slice(step * self.width, min(step + self.block, steps) * self.width)
            x = self.feed.stored(slice(None), rows).flatten(2)
            if self.defers and x.shape[1] > self.width:
                self._deferred(x, step)
            else:
                self._direct(x, step)
        return self._pieces()

    def _direct(self, x: Tensor, step: int) -> None:
        """Batch after batch."""
        first, scale = self.layers[0], self.feed.scale
        for t, batch in enumerate(torch.tensor_split(x, x.shape[1] // self.width, 1)):
            first.forward(batch, out=self.values[0], scale=scale)
            self._rest(step + t, self.values[0], self.gradients[0])
            first.update(batch, self.gradients[0], self.ones[:, :, : self.width], scale)

    def _deferred(self, x: Tensor, step: int) -> None:
        """Several batches, with one update of the first layer; see the top of this module."""
        first, width, rows, scale = self.layers[0], self.width, x.shape[1], self.feed.scale
        z = self._empty(rows, self.values[0].shape[2])
        first.forward(x, out=z, scale=scale)
        # A bias is the weight of a feature that is always 1.
        constant = x.new_full((1, 1, 1), 0.0 if first.bias is None else 1.0)
        products = torch.baddbmm(constant, x, x.transpose(1, 2), alpha=scale**2)
        d = torch.empty_like(z)
        for t, begin in enumerate(range(0, rows, width)):
            now = slice(begin, begin + width)
            value = z[:, now]
            if t:
                value.baddbmm_(products[:, now, :begin], d[:, :begin], alpha=first.weight.alpha)
            self._rest(step + t, value, d[:, now])
        first.update(x, d, self.ones[:, :, :rows], scale)

    def _rest(self, step: int, value: Tensor, gradient: Tensor) -> None:
        """From the first layer's outputs for a batch: their gradient, and a step of the other layers."""
        last = len(self.layers) - 1
        values, gradients = [value, *self.values[1:]], [gradient, *self.gradients[1:]]
        for number, activation in enumerate(self.activations):
            if number:
                self.layers[number].forward(values[number - 1], out=values[number])
            if activation is not None:
                activation.apply(values[number])
        self.loss.mean(values[last], out=gradients[last])
        gradients[last].sub_(self.targets[step])
        if self.weights is not None:
            gradients[last].mul_(self.weights[step])
        for number in range(last, 0, -1):
            layer, activation, d = self.layers[number], self.activations[number - 1], gradients[number]
            torch.bmm(d.transpose(1, 2) if layer.last else d, layer.by_out, out=gradients[number - 1])
            if activation is not None:
                activation.backward(gradients[number - 1], values[number - 1])
            layer.update(values[number - 1], d, self.ones[:, :, : self.width])

    def _pieces(self) -> list[Piece]:
        """A first weight that is stored by input for itself, all the rest side by side."""
        pieces: list[Piece] = []
        arrays = [array for layer in self.layers for array in (layer.weight, layer.bias) if array is not None]
        if self.layers[0].by_input:
            first = arrays.pop(0)
            pieces.append(InputPiece(first.value, first.start, self.feed.columns, self.inputs))
        if arrays:
            changes = [array.changes() for array in arrays]
            if not pieces and self.feed.columns is not None:
                changes[0] = _scattered(changes[0], self.feed.columns, self.inputs)
            pieces.append(FlatPiece(torch.cat([change.flatten(1) for change in changes], 1)))
        return pieces


def _gathered(start: Tensor, columns: Tensor) -> Tensor:
    """Each client's features of the first layer's weights, [c, outputs, D] in the memory of [c, D, outputs]."""
    rows = start.t().index_select(0, columns.view(-1))
    return rows.view(*columns.shape, -1).transpose(1, 2)


def _scattered(changes: Tensor, columns: Tensor, inputs: int) -> Tensor:
    """The other way round: changes [c, outputs, D] at their features, [c, outputs, inputs]."""
    clients, outputs, width = changes.shape
    places = columns.unsqueeze(1).expand(clients, outputs, width)
    return changes.new_zeros(clients, outputs, inputs).scatter_add_(2, places, changes)
