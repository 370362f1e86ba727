"""A parameter at work: its value, and its steps."""

import torch
from torch import Tensor

from incrowd.settings.local import Local


class Parameter:
    """One parameter [a, b] of a client, and its step."""

    def __init__(self, start: Tensor, value: Tensor, local: Local, width: int) -> None:
        self.start = start
        self.value = value
        self.velocity = torch.zeros_like(value) if local.momentum else None
        self.local = local
        self.keep = 1 - local.learning_rate * (local.weight_decay + local.proximal)
        self.alpha = -local.learning_rate / width
        self.width = width

    def update(self, left: Tensor, right: Tensor, scale: float = 1.0) -> None:
        """One step along the gradient scale * left @ right / width."""
        local, value, velocity = self.local, self.value, self.velocity
        if velocity is not None:
            torch.addmm(velocity, left, right, beta=local.momentum, alpha=scale / self.width, out=velocity)
            if not local.plain:
                velocity.add_(value, alpha=local.weight_decay + local.proximal)
                velocity.sub_(self.start, alpha=local.proximal)
            value.add_(velocity, alpha=-local.learning_rate)
        else:
            torch.addmm(value, left, right, beta=self.keep, alpha=scale * self.alpha, out=value)
            if local.proximal:
                value.add_(self.start, alpha=local.learning_rate * local.proximal)

    def changes(self) -> Tensor:
        """What was learnt."""
        return torch.sub(self.value, self.start)
