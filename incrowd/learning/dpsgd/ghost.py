"""Ghost clipping (Goodfellow 2015): clipped sums of stacks of Linear layers, without the gradients of single records.

A record's gradient of a layer is the outer product of d, the gradient of the outputs, and a, the inputs (and 1, for the
bias); its norm is ``|d|`` times the root of ``|a|^2 + 1``. The clipped sum is one product of a and d times factors.

A processor might add up a row by its place, or by the number of rows. So rows begin at a line of the cache, and their
number is a multiple of sixteen; `incrowd.learning.dpsgd.selection` tries out whether that is enough.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from incrowd.data.examples import Inputs, single
from incrowd.learning.backends.fast.memory import LINEAR, RELU, SIGMOID, TANH, Layer, Memory, Stack
from incrowd.learning.dpsgd.gradients import LEAST, FormedGradients, RecordGradients, squares_of
from incrowd.learning.execution import LINE
from incrowd.learning.losses import Canonical

_RUN = 2**15 - 1  # numbers that torch takes in one run; with more, threads begin within a row


Activation = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], object]]
"""A function of one number, in place, and its derivative: it changes a gradient in place, by the function's value."""

_ACTIVATIONS: dict[int, Activation] = {
    RELU: (torch.relu_, lambda d, y: torch.ops.aten.threshold_backward.grad_input(d, y, 0, grad_input=d)),
    TANH: (torch.tanh_, lambda d, y: torch.ops.aten.tanh_backward.grad_input(d, y, grad_input=d)),
    SIGMOID: (torch.sigmoid_, lambda d, y: torch.ops.aten.sigmoid_backward.grad_input(d, y, grad_input=d)),
}


class GhostClipping(RecordGradients):
    """The clipped sum for Linear layers and their activations."""

    def __init__(self, layers: Sequence[Layer], loss: Canonical, weights: Sequence[Tensor], *, rows: int) -> None:
        super().__init__([weight.shape for weight in weights], weights[0].device)
        self.rows, self._loss, self._count = rows, loss, 0
        self._layers: list[_Layer] = []
        left = iter(weights)
        for layer in layers:
            if layer.kind == LINEAR:
                self._layers.append(_Layer(next(left), next(left) if layer.bias else None, rows))
            else:
                self._layers[-1].activation = _ACTIVATIONS[layer.kind]
        self._inputs = _Rows(rows, weights[0].shape[1], self._device)

    def norms(self, features: Inputs, labels: Tensor) -> Tensor:
        """See `RecordGradients.norms`."""
        count = self._count = len(labels)
        self._inputs.first(count)[:] = single(features).flatten(1)
        inputs = self._inputs
        for layer in self._layers:
            inputs = layer.forward(inputs, _filled_up(count))
        last = self._layers[-1]
        outputs = last.outputs.first(count)
        means = self._loss.mean(outputs, out=outputs)
        torch.sub(means, self._loss.target(labels, outputs.shape[1]), out=last.d.first(count))
        for after, before in pairwise(reversed(self._layers)):
            after.backward(before.d, _filled_up(count))
            if before.activation is not None:
                _in_runs(before.activation[1], before.d.first(count), before.outputs.first(count))
        # The squared norm of d times that of the inputs and, for the bias, of 1.
        squares = [one.d.squares(count) * (one.inputs.squares(count) + (one.bias is not None)) for one in self._layers]
        return sum(squares[1:], squares[0]).sqrt_()

    def below(self) -> Tensor:
        """The gradients of the features of the records just measured."""
        below = _Rows(self.rows, self._layers[0].weight.shape[1], self._device)
        self._layers[0].backward(below, _filled_up(self._count))
        return below.first(self._count)

    def add(self, factors: Tensor) -> None:
        """See `RecordGradients.add`."""
        kept = factors.nonzero().view(-1)  # zero times infinity is not zero
        places = iter(self._places)
        for layer in self._layers:
            layer.add(factors, kept, places)


class _Rows:
    """Memory for rows of numbers, each at the beginning of a line of the cache; what fills up is zero at first."""

    def __init__(self, rows: int, columns: int, device: torch.device) -> None:
        self._whole = torch.zeros(_filled_up(rows), _filled_up(columns), device=device)
        self._columns = columns

    def first(self, count: int) -> Tensor:
        """The first rows."""
        return self._whole[:count, : self._columns]

    def squares(self, count: int) -> Tensor:
        """The squared norm of each of the first rows, in float64."""
        return squares_of(self._whole[:count])


class _Layer:
    """A layer at work. Memory is used again and again: fresh memory would cost more than the work on it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int) -> None:
        self.weight, self.bias = weight, bias
        self.activation: Activation | None = None
        self.outputs, self.d = (_Rows(rows, len(weight), weight.device) for _ in range(2))
        self.inputs = self.outputs

    def forward(self, inputs: _Rows, filled: int) -> _Rows:
        """The outputs of the layer and its activation, of records and what fills up."""
        self.inputs, out = inputs, self.outputs.first(filled)
        if self.bias is None:
            torch.mm(inputs.first(filled), self.weight.t(), out=out)
        else:
            torch.addmm(self.bias, inputs.first(filled), self.weight.t(), out=out)
        if self.activation is not None:
            _in_runs(self.activation[0], out)
        return self.outputs

    def backward(self, before: _Rows, filled: int) -> None:
        """Write the gradients of the inputs."""
        torch.mm(self.d.first(filled), self.weight, out=before.first(filled))

    def add(self, factors: Tensor, kept: Tensor, places: Iterator[Tensor]) -> None:
        """Add the gradients of the records that are kept, times their factors."""
        d, inputs = self.d.first(len(factors)), self.inputs.first(len(factors))
        if len(kept) < len(d):
            d, inputs, factors = d[kept], inputs[kept], factors[kept]
        weight_sum, d = next(places), d.double().mul_(factors[:, None])
        if weight_sum.dtype == torch.float32:
            # Numbers too small for all digits of a float32 become 0, so that rounding lengthens no gradient.
            d = torch.nn.functional.hardshrink(d.float(), LEAST)
        else:
            inputs = inputs.double()
        weight_sum.addmm_(d.t(), inputs)
        if self.bias is not None:
            next(places).addmv_(d.t(), d.new_ones(len(d)))


def _in_runs(function: Callable[..., object], *matrices: Tensor) -> None:
    """Change the first matrix by rows that torch computes alike: it computes the end of a run in another way."""
    width = matrices[0].shape[1]
    rows = _RUN // width // LINE * LINE or 1 if matrices[0].is_cpu else len(matrices[0])
    for parts in zip(*(torch.split(one, rows) for one in matrices), strict=True):
        function(*parts)


def _filled_up(count: int) -> int:
    return -(-count // LINE) * LINE


_TOGETHER = 32  # records at a time; measured, more leave the caches
_WINDOWS = 2**22  # numbers of their windows at most


class ConvolutionGradients(FormedGradients):
    """The clipped sum for convolutions, which take one record after the other, and Linear layers above them."""

    def __init__(
        self, below: Stack, above: Sequence[Layer], loss: Canonical, weights: Sequence[Tensor], *, rows: int
    ) -> None:
        import incrowd.learning.backends.fast.passes as passes  # here, because numba takes a while to start

        self._kernel, self._memory = passes, Memory(below)
        super().__init__([(self._memory.size,)], torch.device("cpu"))
        windows = sum(layer.places * math.prod(layer.inputs) for layer in below.layers)
        self.rows = max(1, min(rows, _TOGETHER, _WINDOWS // windows))
        count = sum(layer.weight + layer.bias for layer in below.layers)
        self._weights = weights[:count]
        self._above = GhostClipping(above, loss, weights[count:], rows=self.rows)
        self._spaces = self._memory.apart(self.rows)
        self._inputs = torch.zeros(self.rows, math.prod(above[0].before))
        self._matrix = torch.zeros(self.rows, self._memory.size)

    @property
    def total(self) -> Tensor:
        """See `RecordGradients.total`."""
        convolved = torch.from_numpy(self._memory.flat(super().total.numpy()))
        return torch.cat([convolved, self._above.total])

    def begin(self, records: int) -> None:
        """See `RecordGradients.begin`."""
        super().begin(records)
        self._above.begin(records)
        flat = torch.cat([one.reshape(-1) for one in self._weights])
        self._spaces[0].floats[: self._memory.size] = self._memory.arranged(flat)

    def norms(self, features: Inputs, labels: Tensor) -> Tensor:
        """See `RecordGradients.norms`."""
        records, spaces = single(features).flatten(1).numpy(), self._spaces[: len(labels)]
        inputs = self._inputs.numpy()
        for row, space in enumerate(spaces):
            self._kernel.outputs(space, records[row], inputs[row])
        above = self._above.norms(self._inputs[: len(labels)], labels)
        return super().norms(self._above.below(), labels).square_().add_(above.square_()).sqrt_()

    def formed(self, features: Inputs, labels: Tensor) -> Sequence[Tensor]:
        """The gradients of the convolutions, from those of their outputs."""
        gradients = self._matrix[: len(labels)]
        for row, below in enumerate(single(features).numpy()):
            self._kernel.gradients(self._spaces[row], below, gradients[row].numpy())
        return [gradients]

    def add(self, factors: Tensor) -> None:
        """See `RecordGradients.add`."""
        super().add(factors)
        self._above.add(factors)
