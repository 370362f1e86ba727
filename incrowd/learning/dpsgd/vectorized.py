"""Clipped sums for any module that torch's `vmap` can take: the gradients of a few records in the same operations."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from incrowd.data.inputs import Inputs, each
from incrowd.learning.arithmetic import in_one_order, one_thread
from incrowd.learning.dpsgd.gradients import FormedGradients
from incrowd.learning.inputs import WithInputs
from incrowd.learning.losses import Loss
from incrowd.learning.modules import trainable
from incrowd.learning.rewritten import rewrite, unroll

ByParameter = Callable[[list[Tensor], Inputs, Tensor], Sequence[Tensor]]
"""The gradients of records by parameter, [records, ...] each, from parameters, inputs and labels."""


class VectorizedGradients(FormedGradients):
    """The gradients of always as many records; zeros fill up. A module sees each record as a batch of its own."""

    def __init__(self, function: ByParameter, module: nn.Module, weights: Sequence[Tensor], *, rows: int) -> None:
        super().__init__([(weight.numel(),) for weight in weights], weights[0].device)
        self.module, self.rows = module, rows
        self._function, self._weights = function, weights
        self._now = [weight.clone() for weight in weights]  # compiled code relies on how their memory is aligned

    def begin(self, records: int) -> None:
        """See `RecordGradients.begin`."""
        super().begin(records)
        torch._foreach_copy_(self._now, list(self._weights))

    def formed(self, features: Inputs, labels: Tensor) -> Sequence[Tensor]:
        """See `FormedGradients.formed`."""
        inputs, targets = each(self._padded, features), self._padded(labels)
        with torch.no_grad(), one_thread(), in_one_order(labels.device):
            found = self._function(self._now, inputs, targets)
        return [one.reshape(self.rows, -1)[: len(labels)] for one in found]

    def _padded(self, given: Tensor) -> Tensor:
        padded = given.new_zeros(self.rows, *given.shape[1:])
        padded[: len(given)] = given
        return padded


def by_parameter(module: nn.Module, loss: Loss, features: Inputs) -> ByParameter:
    """The gradients of such records, each a batch of its own. The module is a copy that this may rewrite."""
    unroll(module) if next(module.parameters()).is_cpu else rewrite(module)
    called = WithInputs(module, features)
    names = [name for name, _ in trainable(called)]

    def value(parameters: list[Tensor], inputs: Inputs, label: Tensor) -> Tensor:
        alone = each(lambda one: one.unsqueeze(0), inputs)
        with sdpa_kernel(SDPBackend.MATH):  # the others take one record after the other
            outputs = functional_call(called, dict(zip(names, parameters, strict=True)), (alone,))
        return loss.value(outputs, label.unsqueeze(0))

    def gradients(parameters: list[Tensor], inputs: Inputs, labels: Tensor) -> list[Tensor]:
        found: list[Tensor] = vmap(grad(value), in_dims=(None, 0, 0))(parameters, inputs, labels)
        return found

    return gradients
