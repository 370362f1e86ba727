"""The gradients of records for convolutions with Linear layers on top: the former formed, the latter not.

A convolution has few weights and many places, so that forming a record's gradient is as much work as any other way to
its norm, and the sum is then one pass over what was formed: there is no second backward pass. With Linear layers it is
the other way round (see `incrowd.learning.gradients.ghost`).
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from incrowd._random import Floats
from incrowd.learning.convolved.layers import Convolution, Convolutions
from incrowd.learning.convolved.net import Pictures
from incrowd.learning.gradients.ghost import Ghost, in_lines
from incrowd.learning.gradients.sums import Formed
from incrowd.learning.program import Program

TOGETHER = 32
"""So many records at a time; measured, more leave the caches."""
_LINE = 16  # float32 numbers in a line of the cache


class Pictured:
    """The clipped sum of the gradients of a few records at a time.

    Guarantee: as `incrowd.learning.gradients.sums.RecordGradients`. Each record has convolutions of its own, which no
    other is beside; Linear layers are shared as in `incrowd.learning.gradients.ghost`.
    """

    def __init__(self, table: Convolutions, weights: Sequence[Tensor], *, rows: int) -> None:
        count = sum(1 + one.vectors for one in table.pictures)
        self.rows = rows
        self._table, self._weights = table, weights[:count]
        self._above = Ghost(Program(table.dense, table.loss), weights[count:], rows=self.rows)
        self._stacks = [Pictures(table.pictures, 1) for _ in range(self.rows)]
        self._inputs, self._back = (in_lines(self.rows, table.dense[0].inputs, torch.device("cpu")) for _ in range(2))
        sizes = [-(-weight.numel() // _LINE) * _LINE for weight in self._weights]
        self._formed = Formed(sizes, torch.device("cpu"))
        self._gradients = [torch.zeros(self.rows, size) for size in sizes]
        for row, stack in enumerate(self._stacks):
            for own, first, several in zip(stack.parameters, self._stacks[0].parameters, self._gradients, strict=True):
                own.share(first, several[row, : first.value.numel()])

    @property
    def total(self) -> Tensor:
        """See `RecordGradients.total`; in torch's order."""
        parts = iter(self._formed.places)
        convolved = [part for one in self._table.pictures for part in _in_order(one, parts)]
        return torch.cat([*convolved, self._above.total.double()])

    def begin(self, records: int) -> None:
        """See `RecordGradients.begin`."""
        self._stacks[0].begin(list(self._weights))
        self._formed.total.zero_()
        self._above.begin(records)

    def norms(self, features: Tensor, labels: Tensor) -> Floats:
        """See `RecordGradients.norms`."""
        several = len(labels)
        channels, height, width = self._table.pictures[-1].after
        for stack, record, inputs in zip(self._stacks, torch.split(features, 1), self._inputs, strict=False):
            inputs.view(channels, height, width).copy_(stack.forward(record)[0].permute(2, 0, 1))
        squares = self._above.squares(self._inputs[:several], labels)
        back = self._above.below(self._back)
        for row, stack in enumerate(self._stacks[:several]):
            stack.back(1)[0].copy_(back[row].view(channels, height, width).permute(1, 2, 0))
            stack.backward(1, 1.0, 0)
        squares += self._formed.squares([one[:several] for one in self._gradients])
        norms: Floats = squares.sqrt_().numpy()
        return norms

    def add(self, factors: Tensor) -> None:
        """See `RecordGradients.add`."""
        self._formed.add(factors)
        self._above.add(factors)


def _in_order(table: Convolution, parts: Iterator[Tensor]) -> list[Tensor]:
    """A convolution's sums, in torch's order."""
    weight = next(parts)[: table.channels * table.window].view(table.channels, table.size, table.size, table.before[0])
    return [weight.permute(0, 3, 1, 2).reshape(-1), *(next(parts)[: table.channels] for _ in range(table.vectors))]
