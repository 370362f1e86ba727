"""Clipped sums for convolutions below Linear layers: the gradients of the former are formed, of the latter not.

A convolution has few weights and many places, so its gradient for one record costs as much as its norm.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from incrowd.data.examples import Inputs, single
from incrowd.learning.backends.fast.layers import LINEAR, RELU, SIGMOID, TANH, Stack
from incrowd.learning.backends.fast.memory import Memory
from incrowd.learning.dpsgd.ghost import ACTIVATIONS, Dense, GhostClipping
from incrowd.learning.dpsgd.gradients import FormedGradients
from incrowd.learning.losses import Canonical

_TOGETHER = 32  # records at a time; measured, more leave the caches
_WINDOWS = 2**22  # numbers of their windows at most
_ACTIVATIONS = {RELU: ACTIVATIONS[nn.ReLU], TANH: ACTIVATIONS[nn.Tanh], SIGMOID: ACTIVATIONS[nn.Sigmoid]}


def parts_of(stack: Stack) -> tuple[Stack, tuple[Dense, ...]] | None:
    """The layers before the first Linear one, and the others, if these are Linear layers and simple activations."""
    first = next(number for number, layer in enumerate(stack.layers) if layer.kind == LINEAR)
    dense: list[Dense] = []
    for layer in stack.layers[first:]:
        if layer.kind == LINEAR:
            dense.append(Dense(math.prod(layer.before), layer.after[0], layer.bias))
        elif layer.kind in _ACTIVATIONS and dense[-1].activation is None:
            dense[-1] = replace(dense[-1], activation=_ACTIVATIONS[layer.kind])
        else:
            return None
    return Stack(stack.layers[:first], stack.loss), tuple(dense)


class ConvolutionGradients(FormedGradients):
    """The clipped sum for convolutions, which take one record after the other, and Linear layers above them."""

    def __init__(
        self, below: Stack, above: Sequence[Dense], loss: Canonical, weights: Sequence[Tensor], *, rows: int
    ) -> None:
        from incrowd.learning.backends.fast import record  # here, because numba takes a while to start

        self._kernel, self._memory = record, Memory(below)
        super().__init__([(self._memory.size,)], torch.device("cpu"))
        windows = sum(layer.places * math.prod(layer.inputs) for layer in below.layers)
        self.rows = max(1, min(rows, _TOGETHER, _WINDOWS // windows))
        count = sum(layer.weight + layer.bias for layer in below.layers)
        self._weights = weights[:count]
        self._above = GhostClipping(above, loss, weights[count:], rows=self.rows)
        self._spaces = self._memory.apart(self.rows)
        self._inputs = torch.zeros(self.rows, above[0].inputs)
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
