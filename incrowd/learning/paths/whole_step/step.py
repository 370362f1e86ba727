"""A step of a module as one function, which torch can compile."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from incrowd.data.inputs import Inputs
from incrowd.learning.losses import Loss
from incrowd.settings.local import Local

ModuleStep = Callable[[list[Tensor], list[Tensor], list[Tensor], Inputs, Tensor, Tensor | None], None]
"""Moves parameters, in place: parameters, velocities (if there is momentum), starts, examples, labels, offset."""


def plain_step(module: nn.Module, names: Sequence[str], loss: Loss, local: Local) -> ModuleStep:
    """A step of a module, all of it a function of what it is given."""

    def value(parameters: list[Tensor], inputs: Inputs, labels: Tensor, offset: Tensor | None) -> Tensor:
        given = dict(zip(names, parameters, strict=True))
        if isinstance(inputs, dict):
            outputs = functional_call(module, given, (), inputs)
        else:
            outputs = functional_call(module, given, inputs if isinstance(inputs, tuple) else (inputs,))
        return loss.value(outputs if offset is None else outputs + offset, labels)

    def step(
        parameters: list[Tensor],
        velocities: list[Tensor],
        starts: list[Tensor],
        inputs: Inputs,
        labels: Tensor,
        offset: Tensor | None,
    ) -> None:
        gradients = grad(value)(parameters, inputs, labels, offset)
        if local.weight_decay or local.proximal:
            gradients = torch._foreach_add(gradients, parameters, alpha=local.weight_decay + local.proximal)
        if local.proximal:
            gradients = torch._foreach_sub(gradients, starts, alpha=local.proximal)
        if local.momentum:
            torch._foreach_mul_(velocities, local.momentum)
            torch._foreach_add_(velocities, gradients)
            gradients = velocities
        torch._foreach_add_(parameters, gradients, alpha=-local.learning_rate)

    return step
