"""The gradients of records for convolutions with Linear layers on top: the former formed, the latter not.

A convolution has few weights and many places, so that forming a record's gradient is as much work as any other way to
its norm, and the sum is then one pass over what was formed: there is no second backward pass. With Linear layers it is
the other way round (see `incrowd.learning.gradients.ghost`).
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from incrowd._random import Floats
from incrowd.learning.gradients.ghost import Ghost, in_lines
from incrowd.learning.gradients.sums import Formed
from incrowd.learning.losses import Canonical
from incrowd.learning.paths.fast.layers import LINEAR, RELU, SIGMOID, TANH, Layer, Stack
from incrowd.learning.paths.fast.memory import Memory
from incrowd.learning.program import ACTIVATIONS, Dense, Program

TOGETHER = 32
"""So many records at a time; measured, more leave the caches."""
WINDOWS = 2**22
"""So many numbers of their windows at most."""
_ACTIVATIONS = {RELU: ACTIVATIONS[nn.ReLU], TANH: ACTIVATIONS[nn.Tanh], SIGMOID: ACTIVATIONS[nn.Sigmoid]}


def parts_of(stack: Stack, loss: Canonical) -> tuple[Stack, Program] | None:
    """What comes before the first Linear layer, and the rest, if that is only Linear layers and simple activations."""
    first = next(number for number, layer in enumerate(stack.layers) if layer.kind == LINEAR)
    dense: list[Dense] = []
    for layer in stack.layers[first:]:
        if layer.kind == LINEAR:
            dense.append(Dense(math.prod(layer.before), layer.after[0], layer.bias, None))
        elif layer.kind in _ACTIVATIONS and dense[-1].activation is None:
            last = dense.pop()
            dense.append(Dense(last.inputs, last.outputs, last.bias, _ACTIVATIONS[layer.kind]))
        else:
            return None
    return Stack(stack.layers[:first], stack.loss), Program(tuple(dense), loss)


def records_together(layers: Sequence[Layer], most: int) -> int:
    """How many records come together."""
    return max(1, min(most, TOGETHER, WINDOWS // sum(layer.places * math.prod(layer.inputs) for layer in layers)))


class Pictured:
    """The clipped sum of the gradients of a few records at a time.

    Guarantee: as `incrowd.learning.gradients.sums.RecordGradients`. Each record has convolutions of its own, which no
    other is beside; Linear layers are shared as in `incrowd.learning.gradients.ghost`.
    """

    def __init__(self, before: Stack, above: Program, weights: Sequence[Tensor], *, rows: int) -> None:
        from incrowd.learning.paths.fast import record  # numba takes a while to start

        self._loops, self.rows = record, rows
        count = sum(layer.weight + layer.bias for layer in before.layers)
        self._weights, self._above = weights[:count], Ghost(above, weights[count:], rows=rows)
        self._memory = Memory(before)
        self._spaces = self._memory.apart(rows)
        self._shape = before.layers[-1].after
        self._inputs, self._back = (in_lines(rows, above.layers[0].inputs, torch.device("cpu")) for _ in range(2))
        self._formed = Formed([self._memory.size], torch.device("cpu"))
        self._gradients = torch.zeros(rows, self._memory.size)

    @property
    def total(self) -> Tensor:
        """See `RecordGradients.total`; in torch's order."""
        convolved = torch.from_numpy(self._memory.flat(self._formed.total.numpy()))
        return torch.cat([convolved, self._above.total.double()])

    def begin(self, records: int) -> None:
        """See `RecordGradients.begin`."""
        flat = torch.cat([one.reshape(-1) for one in self._weights])
        self._spaces[0].floats[: self._memory.size] = self._memory.arranged(flat)
        self._formed.total.zero_()
        self._above.begin(records)

    def norms(self, features: Tensor, labels: Tensor) -> Floats:
        """See `RecordGradients.norms`."""
        several, records, inputs = len(labels), features.flatten(1).numpy(), self._inputs.numpy()
        for row, space in enumerate(self._spaces[:several]):
            self._loops.outputs(space, records[row], inputs[row])
        squares = self._above.squares(self._inputs[:several], labels)
        back, found = self._above.below(self._back).numpy(), self._gradients[:several].numpy()
        for row, space in enumerate(self._spaces[:several]):
            self._loops.gradients(space, back[row], found[row])
        squares += self._formed.squares([self._gradients[:several]])
        norms: Floats = np.sqrt(squares.numpy())
        return norms

    def add(self, factors: Tensor) -> None:
        """See `RecordGradients.add`."""
        self._formed.add(factors)
        self._above.add(factors)
