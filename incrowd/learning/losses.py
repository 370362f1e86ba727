"""What local training makes small, averaged over the examples of a batch.

| loss            | labels             | outputs | the outputs are               |
| --------------- | ------------------ | ------- | ----------------------------- |
| `CROSS_ENTROPY` | 0 .. outputs - 1   | any     | logits of a softmax           |
| `LOGISTIC`      | 0 or 1             | 1       | the logit of label 1          |
| `SQUARED`       | any finite number  | 1       | the prediction                |
| `POISSON`       | at least 0         | 1       | the logarithm of the rate     |

These four belong to generalised linear models with their canonical link, so the gradient with respect to the outputs
is mean(outputs) - label, and the fast path of the engine needs no other. A loss of your own is
``Loss(name=..., value=...)``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from incrowd.errors import DataError


def _anything(_labels: Tensor, _outputs: int) -> bool:
    return True


class Mean(Protocol):
    """The mean of the label that outputs [..., outputs] stand for (the inverse of the link), written into `out`."""

    def __call__(self, outputs: Tensor, *, out: Tensor) -> Tensor:
        """Compute it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Canonical:
    """What the fast path knows about a loss: its gradient with respect to the outputs is `mean` - `target`."""

    mean: Mean
    target: Callable[[Tensor, int], Tensor]  # labels and the number of outputs -> [labels, outputs]


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A loss: `value` takes outputs [B, ...] and labels [B] and gives the mean over the batch, differentiable.

    Edge cases: labels that `fits` refuses, or outputs of the wrong number, are a `DataError`.
    """

    name: str
    value: Callable[[Tensor, Tensor], Tensor] = field(repr=False)
    canonical: Canonical | None = field(default=None, repr=False)
    fits: Callable[[Tensor, int], bool] = field(default=_anything, repr=False)
    needs: str = ""

    def check(self, labels: Tensor, outputs: int) -> None:
        """Refuse labels, or a number of outputs, that this loss does not fit."""
        if not self.fits(labels, outputs):
            raise DataError(f"the loss {self.name!r} does not fit a model with {outputs} outputs: {self.needs}")


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels)


def _logistic(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs.view_as(labels), labels.to(outputs.dtype))


def _squared(outputs: Tensor, labels: Tensor) -> Tensor:
    return 0.5 * functional.mse_loss(outputs.view_as(labels), labels.to(outputs.dtype))


def _poisson(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.poisson_nll_loss(outputs.view_as(labels), labels.to(outputs.dtype))


def _softmax(outputs: Tensor, *, out: Tensor) -> Tensor:
    return torch.softmax(outputs, -1, out=out)


def _identity(outputs: Tensor, *, out: Tensor) -> Tensor:
    return out.copy_(outputs)


def _sigmoid(outputs: Tensor, *, out: Tensor) -> Tensor:
    return torch.sigmoid(outputs, out=out)


def _exp(outputs: Tensor, *, out: Tensor) -> Tensor:
    return torch.exp(outputs, out=out)


def _one_hot(labels: Tensor, outputs: int) -> Tensor:
    return torch.eye(outputs, device=labels.device).index_select(0, labels)


def _column(labels: Tensor, _outputs: int) -> Tensor:
    return labels.to(torch.float32).unsqueeze(1)


def _classes(labels: Tensor, outputs: int) -> bool:
    return not labels.is_floating_point() and int(labels.min()) >= 0 and int(labels.max()) < outputs


CROSS_ENTROPY = Loss(
    name="cross entropy",
    value=_cross_entropy,
    canonical=Canonical(mean=_softmax, target=_one_hot),
    fits=_classes,
    needs="give whole labels from 0 to outputs - 1, or a model with an output for each class",
)
LOGISTIC = Loss(
    name="logistic",
    value=_logistic,
    canonical=Canonical(mean=_sigmoid, target=_column),
    fits=lambda labels, outputs: outputs == 1 and bool(((labels == 0) | (labels == 1)).all()),
    needs="give labels 0 and 1, and a model with one output",
)
SQUARED = Loss(
    name="squared",
    value=_squared,
    canonical=Canonical(mean=_identity, target=_column),
    fits=lambda labels, outputs: outputs == 1 and bool(labels.isfinite().all()),
    needs="give finite labels, and a model with one output",
)
POISSON = Loss(
    name="poisson",
    value=_poisson,
    canonical=Canonical(mean=_exp, target=_column),
    fits=lambda labels, outputs: outputs == 1 and bool(((labels >= 0) & labels.isfinite()).all()),
    needs="give finite labels of at least 0, and a model with one output",
)
LOSSES = {loss.name: loss for loss in (CROSS_ENTROPY, LOGISTIC, SQUARED, POISSON)}
