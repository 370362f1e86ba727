"""A step of many clients in the same operations."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from incrowd.data.inputs import Inputs, each
from incrowd.learning.inputs import WithInputs, meant
from incrowd.learning.losses import CROSS_ENTROPY, Loss
from incrowd.learning.paths.path import TrainingTask

OfClients = Callable[[list[Tensor], Inputs, Tensor, Tensor, Tensor | None], list[Tensor]]
"""Of clients' parameters [c, ...], inputs, labels, shares of examples [c, width], offsets: gradients [c, ...]."""


@dataclass(eq=False)
class Abreast:
    """What so many clients have while they train; a step changes it in place, and reads which batches are next.

    `rows` are the numbers of the examples of a batch, and `shares` what each counts for in its mean: 0 where it only
    fills a batch up. A client all of whose examples count for nothing takes no step.
    """

    parameters: list[Tensor]  # [c, ...]
    starts: list[Tensor]  # [...]
    velocities: list[Tensor]  # [c, ...], if there is momentum
    rows: Tensor  # [c, width]
    shares: Tensor  # [c, width]
    offsets: Tensor | None  # [c, outputs]

    @classmethod
    def of(cls, task: TrainingTask, *, clients: int, width: int) -> "Abreast":
        """So many clients, who have nothing yet."""
        zeros, shapes = partial(torch.zeros, device=task.device), task.model.layout.shapes
        parameters = [zeros((clients, *shape)) for shape in shapes]
        offset = task.made_up_offset()
        return cls(
            parameters=parameters,
            starts=[zeros(shape) for shape in shapes],
            velocities=[torch.zeros_like(one) for one in parameters] if task.local.momentum else [],
            rows=zeros((clients, width), dtype=torch.int64),
            shares=zeros((clients, width)),
            offsets=None if offset is None else offset.expand(clients, *offset.shape).clone(),
        )

    def begin(self, starts: Sequence[Tensor], offsets: Sequence[Tensor | None]) -> None:
        """Have every client start from the same weights."""
        for mine, start in zip(self.starts, starts, strict=True):
            mine.copy_(start)
        for parameter, start in zip(self.parameters, starts, strict=True):
            parameter.copy_(start.expand_as(parameter))
        for velocity in self.velocities:
            velocity.zero_()
        if self.offsets is not None:
            self.offsets.copy_(torch.stack([one for one in offsets if one is not None]))

    def changes(self) -> Tensor:
        """What has changed, [c, size]."""
        pairs = zip(self.parameters, self.starts, strict=True)
        return torch.cat([(now - start).flatten(1) for now, start in pairs], 1)


def step(task: TrainingTask, gradients: OfClients, clients: Abreast, *, everyone: bool) -> None:
    """One step of all of them.

    Guarantee: a client whose step this is not keeps its weights, bit for bit, whatever its gradient is. With
    `everyone`, which says that it is everybody's, the same numbers come out in less time.
    """
    local, parameters = task.local, clients.parameters
    inputs, labels = _batch(task, clients.rows)
    found = gradients(parameters, inputs, labels, clients.shares, clients.offsets)
    if local.weight_decay or local.proximal:
        # Not in place: the gradients of parameters that are added to each other are one tensor.
        found = list(torch._foreach_add(found, parameters, alpha=local.weight_decay + local.proximal))
    if local.proximal:
        starts = [start.expand_as(one) for start, one in zip(clients.starts, parameters, strict=True)]
        torch._foreach_sub_(found, starts, alpha=local.proximal)
    if local.momentum:
        torch._foreach_mul_(clients.velocities, local.momentum)
        torch._foreach_add_(clients.velocities, found)
        found = clients.velocities
    if not everyone:
        steps = clients.shares[:, 0] > 0
        found = [torch.where(steps.view(-1, *[1] * (one.ndim - 1)), one, 0.0) for one in found]
    torch._foreach_add_(parameters, found, alpha=-local.learning_rate)


def _batch(task: TrainingTask, rows: Tensor) -> tuple[Inputs, Tensor]:
    """The examples of these rows [c, width] as they are meant, and their labels."""
    data = task.data

    def chosen(table: Tensor) -> Tensor:
        return table.index_select(0, rows.view(-1)).view(*rows.shape, *table.shape[1:])

    return meant(each(chosen, data.features), scale=data.scale, offset=data.offset), chosen(data.labels)


def _of_each(loss: Loss, outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of each example, [width]."""
    if loss is CROSS_ENTROPY and labels.ndim == 1:
        # Without an index, what is learnt is added up in one order, and in fewer operations.
        classes = torch.arange(outputs.shape[-1], device=outputs.device)
        own = torch.where(labels.unsqueeze(1) == classes, outputs, 0.0).sum(1)
        return outputs.logsumexp(1) - own

    def one_example(output: Tensor, label: Tensor) -> Tensor:
        return loss.value(output.unsqueeze(0), label.unsqueeze(0))

    found: Tensor = vmap(one_example)(outputs, labels)
    return found


@contextmanager
def _no_shortcut() -> Iterator[None]:
    """Without torch's own way for attention that is frozen, which `vmap` takes for one client after the other."""
    attention: Any = torch.backends.mha
    before = attention.get_fastpath_enabled()
    attention.set_fastpath_enabled(False)
    try:
        yield
    finally:
        attention.set_fastpath_enabled(before)


def gradients_of(module: nn.Module, names: Sequence[str], loss: Loss, features: Inputs) -> OfClients:
    """The gradients of clients' means over their batches, with respect to the parameters of these names."""
    called = WithInputs(module, features)
    inside = [f"module.{name}" for name in names]

    def value(
        parameters: list[Tensor], inputs: Inputs, labels: Tensor, shares: Tensor, offset: Tensor | None
    ) -> Tensor:
        # The others add up in an order of their own, or take one client after the other.
        with sdpa_kernel(SDPBackend.MATH), _no_shortcut():
            outputs = functional_call(called, dict(zip(inside, parameters, strict=True)), (inputs,))
        outputs = outputs if offset is None else outputs + offset
        return (_of_each(loss, outputs, labels) * shares).sum()

    def gradients(
        parameters: list[Tensor], inputs: Inputs, labels: Tensor, shares: Tensor, offsets: Tensor | None
    ) -> list[Tensor]:
        of_each = vmap(grad(value), in_dims=(0, 0, 0, 0, None if offsets is None else 0))
        found: list[Tensor] = of_each(parameters, inputs, labels, shares, offsets)
        return found

    return gradients
