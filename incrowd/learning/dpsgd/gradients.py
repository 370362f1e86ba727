"""Clipped sums of records' gradients: the interface, the reference, which takes one record at a time, and vmap."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from incrowd.data.examples import Inputs, each
from incrowd.learning.contributions import halved_squares
from incrowd.learning.execution import in_one_order, one_thread
from incrowd.learning.inputs import as_function, calling, chosen
from incrowd.learning.losses import Loss
from incrowd.learning.modules import trainable
from incrowd.learning.rewritten import rewrite, unroll
from incrowd.privacy.mechanism.grid import FLOAT32_RECORDS

NUMBERS = 2**22  # gradients' numbers in memory at once; measured, more leave the caches and are slower
LEAST = 2.0**-126  # float32 holds smaller numbers with fewer digits


class RecordGradients(ABC):
    """The clipped sum of records' gradients, at weights that change from step to step: in float32 for few records, in
    float64 for more. Private.

    Guarantee: a record's norm, and the part that it adds to the sum, do not depend on the other records but for the
    rounding of the sum, which `RecordTraining.sensitivity` covers.
    """

    rows: int
    """The most records at a time."""

    module: nn.Module | None = None
    """The module that is called, if one is; it may not change meanwhile."""

    def __init__(self, shapes: Sequence[Sequence[int]], device: torch.device) -> None:
        self._shapes, self._device = shapes, device
        self._sums: dict[torch.dtype, Tensor] = {}

    def begin(self, records: int) -> None:
        """Begin the sum of so many records' gradients at the current weights."""
        self._dtype = torch.float32 if records <= FLOAT32_RECORDS else torch.float64
        sizes = [math.prod(shape) for shape in self._shapes]
        if self._dtype not in self._sums:
            self._sums[self._dtype] = torch.empty(sum(sizes), dtype=self._dtype, device=self._device)
        places = self._sums[self._dtype].zero_().split_with_sizes(sizes)
        self._places = [place.view(*shape) for place, shape in zip(places, self._shapes, strict=True)]

    @property
    def total(self) -> Tensor:
        """The sum so far."""
        return self._sums[self._dtype]

    @abstractmethod
    def norms(self, features: Inputs, labels: Tensor) -> Tensor:
        """The L2 norms of these records' gradients, in float64; not finite where a gradient is not."""

    @abstractmethod
    def add(self, factors: Tensor) -> None:
        """Add the gradients just measured, times their factors. A factor of 0 leaves out a record and all it holds."""


class FormedGradients(RecordGradients):
    """The clipped sum of gradients that are formed."""

    _gradients: Sequence[Tensor]

    @abstractmethod
    def formed(self, features: Inputs, labels: Tensor) -> Sequence[Tensor]:
        """The gradients of these records, a matrix [records, size] for each parameter."""

    def norms(self, features: Inputs, labels: Tensor) -> Tensor:
        """See `RecordGradients.norms`."""
        self._gradients = self.formed(features, labels)
        return sum(map(squares_of, self._gradients[1:]), squares_of(self._gradients[0])).sqrt_()

    def add(self, factors: Tensor) -> None:
        """See `RecordGradients.add`."""
        kept = factors.nonzero().view(-1)  # zero times infinity is not zero
        few = self._dtype == torch.float32
        factors = torch.nn.functional.hardshrink(factors, LEAST).float() if few else factors
        for gradient, place in zip(self._gradients, self._places, strict=True):
            if len(kept) < len(factors):
                place.addmv_(gradient[kept].to(place.dtype).t(), factors[kept])
            else:
                place.addmv_(gradient.to(place.dtype).t(), factors)


def squares_of(rows: Tensor) -> Tensor:
    """The squared L2 norm of each row, in float64 and in one order."""
    if not rows.is_cpu:  # pragma: no cover - where there is one
        return halved_squares(rows)
    from incrowd.learning.machine_code import add_squares  # here, because numba takes a while to start

    squares = torch.zeros(len(rows), dtype=torch.float64)
    add_squares(rows.numpy(), squares.numpy())
    return squares


class PerExampleGradients(FormedGradients):
    """The reference: autograd, one record after the other."""

    module: nn.Module

    def __init__(self, module: nn.Module, weights: Sequence[Tensor], loss: Loss, *, rows: int) -> None:
        sizes = [weight.numel() for weight in weights]
        super().__init__([(size,) for size in sizes], weights[0].device)
        self.module = module
        self.rows = max(1, min(rows, NUMBERS // sum(sizes)))
        self._parameters: list[Tensor] = [one for _, one in trainable(module)]
        self._weights, self._loss = weights, loss
        self._matrices = [torch.empty(self.rows, size, device=weights[0].device) for size in sizes]

    def begin(self, records: int) -> None:
        """See `RecordGradients.begin`."""
        super().begin(records)
        with torch.no_grad():
            torch._foreach_copy_(self._parameters, list(self._weights))

    def formed(self, features: Inputs, labels: Tensor) -> Sequence[Tensor]:
        """See `FormedGradients.formed`."""
        call = calling(self.module, features)
        for row in range(len(labels)):
            alone = chosen(features, torch.tensor([row], device=labels.device))  # a copy, aligned as every record's
            with torch.enable_grad():
                loss = self._loss.value(call(alone), labels[row : row + 1])
                found = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
            for gradient, matrix in zip(found, self._matrices, strict=True):
                matrix[row] = gradient.reshape(-1)
        return [matrix[: len(labels)] for matrix in self._matrices]


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
    function = as_function(module, features)

    def value(parameters: list[Tensor], inputs: Inputs, label: Tensor) -> Tensor:
        alone = each(lambda one: one.unsqueeze(0), inputs)
        with sdpa_kernel(SDPBackend.MATH):  # the others take one record after the other
            outputs = function(parameters, alone)
        return loss.value(outputs, label.unsqueeze(0))

    def gradients(parameters: list[Tensor], inputs: Inputs, labels: Tensor) -> list[Tensor]:
        found: list[Tensor] = vmap(grad(value), in_dims=(None, 0, 0))(parameters, inputs, labels)
        return found

    return gradients
