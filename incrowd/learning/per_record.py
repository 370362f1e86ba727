"""The gradients of records for any module that torch.func.vmap can follow: a few at a time, each of them formed."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from incrowd._random import Floats
from incrowd.learning.gradients import Formed
from incrowd.learning.losses import Loss

_NUMBERS = 2**22  # of gradients that are in memory at once; measured, more do not fit the caches and are slower


class PerRecord:
    """The clipped sum of the gradients of a few records at a time.

    Guarantee: as `incrowd.learning.gradients.Gradients`.
    """

    def __init__(self, module: nn.Module, weights: Sequence[Tensor], loss: Loss, *, rows: int) -> None:
        sizes = [weight.numel() for weight in weights]
        self.module = module
        self.weights = dict(zip((name for name, _ in module.named_parameters()), weights, strict=True))
        self.loss = loss
        self.rows = max(1, min(rows, _NUMBERS // sum(sizes)))
        self._formed = Formed(sizes, weights[0].device)
        self.total = self._formed.total

    def begin(self, records: int) -> None:
        """See `Gradients.begin`."""
        self.total.zero_()

    def norms(self, features: Tensor, labels: Tensor) -> Floats:
        """See `Gradients.norms`."""
        gradients = vmap(grad(self._loss_of_one), (None, 0, 0))(self.weights, features, labels)
        return self._formed.norms([gradient.flatten(1) for gradient in gradients.values()])

    def add(self, factors: Tensor) -> None:
        """See `Gradients.add`."""
        self._formed.add(factors)

    def _loss_of_one(self, weights: dict[str, Tensor], features: Tensor, label: Tensor) -> Tensor:
        return self.loss.value(functional_call(self.module, weights, (features[None],)), label[None])
