"""The gradients of records for any module: each of them formed, one record after the other."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from incrowd._random import Floats
from incrowd.learning.gradients import Formed
from incrowd.learning.losses import Loss
from incrowd.learning.modules import trainable

_NUMBERS = 2**22  # of gradients that are in memory at once; measured, more do not fit the caches and are slower


class PerRecord:
    """The clipped sum of the gradients of a few records at a time.

    Guarantee: as `incrowd.learning.gradients.Gradients`. No other record is beside one while
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
        """See `Gradients.begin`."""
        self.total.zero_()

    def norms(self, features: Tensor, labels: Tensor) -> Floats:
        """See `Gradients.norms`."""
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, list(self.weights))
        for row in range(len(labels)):
            one = features[row : row + 1].clone()  # which begins where every record does
            loss = self.loss.value(self.module(one), labels[row : row + 1])
            found = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
            for gradient, place in zip(found, self._gradients, strict=True):
                place[row] = gradient.reshape(-1)
        return self._formed.norms([place[: len(labels)] for place in self._gradients])

    def add(self, factors: Tensor) -> None:
        """See `Gradients.add`."""
        self._formed.add(factors)
