"""The gradients of records for any module that torch.func.vmap can follow: a few at a time, each of them formed."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from incrowd._random import Floats
from incrowd.learning.losses import Loss

_NUMBERS = 2**22  # of gradients that are in memory at once; measured, more do not fit the caches and are slower
_BLOCK = 2**12  # numbers of each gradient that are made float64 at a time, so that these copies stay in the cache


class PerRecord:
    """The clipped sum of the gradients of a few records at a time.

    Guarantee: as `incrowd.learning.record_engine.Gradients`.
    """

    def __init__(self, module: nn.Module, weights: Sequence[Tensor], loss: Loss, *, rows: int) -> None:
        size = sum(weight.numel() for weight in weights)
        self.module = module
        self.weights = dict(zip((name for name, _ in module.named_parameters()), weights, strict=True))
        self.loss = loss
        self.rows = max(1, min(rows, _NUMBERS // size))
        self.total = torch.zeros(size, dtype=torch.float64, device=weights[0].device)
        self._gradients: list[Tensor] = []

    def norms(self, features: Tensor, labels: Tensor) -> Floats:
        """See `Gradients.norms`."""
        found = vmap(grad(self._loss_of_one), (None, 0, 0))(self.weights, features, labels)
        self._gradients = [gradient.flatten(1) for gradient in found.values()]
        squares = torch.zeros(len(labels), dtype=torch.float64, device=self.total.device)
        for gradient in self._gradients:
            for block in torch.split(gradient, _BLOCK, 1):
                squares += torch.linalg.vector_norm(block.double(), dim=1).square_()
        norms: Floats = squares.sqrt_().cpu().numpy()
        return norms

    def add(self, factors: Tensor) -> None:
        """See `Gradients.add`."""
        rows = factors.nonzero().view(-1)
        places = self.total.split_with_sizes([gradient.shape[1] for gradient in self._gradients])
        for gradient, place in zip(self._gradients, places, strict=True):
            kept = gradient if len(rows) == len(factors) else gradient[rows]
            for block, part in zip(torch.split(kept, _BLOCK, 1), torch.split(place, _BLOCK), strict=True):
                part.addmv_(block.double().t(), factors[rows])

    def _loss_of_one(self, weights: dict[str, Tensor], features: Tensor, label: Tensor) -> Tensor:
        return self.loss.value(functional_call(self.module, weights, (features[None],)), label[None])
