"""The gradients of records for any module: each of them formed, one record after the other."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from incrowd._random import Floats
from incrowd.data.inputs import Inputs, each
from incrowd.learning.gradients.sums import Formed
from incrowd.learning.inputs import calling
from incrowd.learning.losses import Loss
from incrowd.learning.modules import remembering_nothing, trainable

_NUMBERS = 2**22  # of gradients that are in memory at once; measured, more do not fit the caches and are slower


class OneByOne:
    """The clipped sum of the gradients of a few records at a time.

    Guarantee: as `incrowd.learning.gradients.sums.RecordGradients`. No other record is beside one while
    its gradient is computed.
    """

    def __init__(self, module: nn.Module, weights: Sequence[Tensor], loss: Loss, *, rows: int) -> None:
        sizes = [weight.numel() for weight in weights]
        self.module = module
        self.parameters: list[Tensor] = [one for _, one in trainable(module)]
        self.weights = weights
        self.loss = loss
        self.rows = max(1, min(rows, _NUMBERS // sum(sizes)))
        self._formed = Formed(sizes, weights[0].device)
        self.total = self._formed.total
        self._gradients = [torch.empty(self.rows, size, device=weights[0].device) for size in sizes]

    def begin(self, records: int) -> None:
        """See `RecordGradients.begin`."""
        self.total.zero_()

    def norms(self, features: Inputs, labels: Tensor) -> Floats:
        """See `RecordGradients.norms`."""
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, list(self.weights))
        call = calling(self.module, features)
        with remembering_nothing(self.module, self.weights[0].device, whose="record"):
            self._each(call, features, labels)
        return self._formed.norms([place[: len(labels)] for place in self._gradients])

    def formed(self, records: int) -> Tensor:
        """The gradients of the records just measured, so many, as rows."""
        return torch.cat([place[:records] for place in self._gradients], 1)

    def _each(self, call: Callable[[Inputs], Tensor], features: Inputs, labels: Tensor) -> None:
        for row in range(len(labels)):
            one = each(partial(_alone, row=row), features)
            loss = self.loss.value(call(one), labels[row : row + 1])
            found = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
            for gradient, place in zip(found, self._gradients, strict=True):
                place[row] = gradient.reshape(-1)

    def add(self, factors: Tensor) -> None:
        """See `RecordGradients.add`."""
        self._formed.add(factors)


def _alone(several: Tensor, *, row: int) -> Tensor:
    """One row in memory of its own, which begins where every record does."""
    return several[row : row + 1].clone()
