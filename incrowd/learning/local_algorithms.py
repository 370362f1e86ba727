"""Local algorithms, by which a client moves the weights of a round over its own batches."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from incrowd import _extensions
from incrowd.errors import ConfigError
from incrowd.settings import Local
from incrowd.types import ClientAtWork, LocalAlgorithm

Tensors = list[Tensor] | tuple[Tensor, ...]

BETAS, TINY = (0.9, 0.999), 1e-8
"""Adam's, as torch.optim.Adam has them."""


class Sgd:
    """torch.optim.SGD with momentum and weight decay; `proximal` adds FedProx's term."""

    def __init__(self, local: Local) -> None:
        self.local = local

    def sends(self, size: int) -> int:
        """See `LocalAlgorithm.sends`."""
        return 0

    def train(self, client: ClientAtWork, shared: Sequence[Tensor]) -> Sequence[Tensor]:
        """See `LocalAlgorithm.train`."""
        descend(client, self.local)
        return ()


class Scaffold:
    """SCAFFOLD (Karimireddy et al. 2020): each step adds the mean of all clients' gradients and subtracts the client's
    own, both at the server's weights, so that clients with other data do not drift apart.

    A client computes its own gradient anew in each round (option I of the paper) and keeps nothing between rounds.
    Gradients travel times the learning rate and the number of steps, which makes them as long as an update.
    """

    def __init__(self, local: Local) -> None:
        self.local = local
        self._scale = local.learning_rate * local.epochs * (local.batches or 1)

    def sends(self, size: int) -> int:
        """See `LocalAlgorithm.sends`."""
        return size

    def train(self, client: ClientAtWork, shared: Sequence[Tensor]) -> Sequence[Tensor]:
        """See `LocalAlgorithm.train`."""
        own = [gradient.mul_(self._scale) for gradient in mean_gradient(client)]
        changes = torch._foreach_sub(own, list(shared))
        descend(client, self.local, drift=torch._foreach_div(changes, self._scale))
        return changes


class Adam(Sgd):
    """torch.optim.Adam, whose moments begin anew in each round."""

    @torch.no_grad()
    def train(self, client: ClientAtWork, shared: Sequence[Tensor]) -> Sequence[Tensor]:
        """See `LocalAlgorithm.train`."""
        local, parameters, (first, second) = self.local, list(client.parameters), BETAS
        means, squares = ([torch.zeros_like(parameter) for parameter in parameters] for _ in range(2))
        for taken, batch in enumerate(client.batches(), 1):
            found = _filled(client.gradients(batch), parameters)
            gradients = direction(local, found, parameters, list(client.starts), [])
            torch._foreach_lerp_(means, gradients, 1 - first)
            torch._foreach_mul_(squares, second)
            torch._foreach_addcmul_(squares, gradients, gradients, value=1 - second)
            lengths = torch._foreach_sqrt(squares)
            torch._foreach_div_(lengths, math.sqrt(1 - second**taken))
            torch._foreach_add_(lengths, TINY)
            rate = local.learning_rate / (1 - first**taken)
            torch._foreach_addcdiv_(parameters, means, list(lengths), value=-rate)
        return ()


def algorithm_of(local: Local) -> LocalAlgorithm:
    """The algorithm that settings name: one of ours, or a registered one of another package."""
    if local.algorithm == "scaffold":
        return Scaffold(local)
    if local.algorithm != "fedavg":
        made: LocalAlgorithm = _extensions.found("local_algorithms", local.algorithm)(local)
        return made
    return Adam(local) if local.optimizer == "adam" else Sgd(local)


def sent_parts(parts: tuple[int, ...], algorithm: LocalAlgorithm) -> tuple[int, ...]:
    """The sizes of the parts of a client's vector, for clipping part by part: the model's layers, then the rest."""
    rest = algorithm.sends(sum(parts))
    if rest not in (0, sum(parts)):
        remedy = f"let it send 0 or {sum(parts)} values beside the update, not {rest}"
        raise ConfigError(field="local.algorithm", value=type(algorithm).__name__, remedy=remedy)
    return (*parts, rest) if rest else parts


@torch.no_grad()
def descend(client: ClientAtWork, local: Local, *, drift: Sequence[Tensor] | None = None) -> None:
    """Take SGD's steps along gradients less a `drift`."""
    parameters, starts = list(client.parameters), list(client.starts)
    velocities = velocities_of(local, parameters)
    for batch in client.batches():
        found = client.gradients(batch)
        if local.plain and drift is None:  # autograd is slow at filling in zeros for parameters without a gradient
            pairs = zip(parameters, found, strict=True)
            moved = [(one, gradient) for one, gradient in pairs if gradient is not None]
            torch._foreach_add_(*map(list, zip(*moved, strict=True)), alpha=-local.learning_rate)
            continue
        gradients: Tensors = _filled(found, parameters)
        if drift is not None:
            gradients = torch._foreach_sub(gradients, list(drift))
        gradients = direction(local, gradients, parameters, starts, velocities)
        torch._foreach_add_(parameters, gradients, alpha=-local.learning_rate)


def direction(local: Local, gradients: Tensors, parameters: Tensors, starts: Tensors, velocities: Tensors) -> Tensors:
    """The direction of SGD's step: gradients with weight decay and FedProx's term, or the velocities after them."""
    if local.weight_decay or local.proximal:
        # Not in place: the gradients of parameters that are added to each other are one tensor.
        gradients = torch._foreach_add(gradients, parameters, alpha=local.weight_decay + local.proximal)
    if local.proximal:
        gradients = torch._foreach_sub(gradients, starts, alpha=local.proximal)
    if not local.momentum:
        return gradients
    torch._foreach_mul_(velocities, local.momentum)
    torch._foreach_add_(velocities, gradients)
    return velocities


@torch.no_grad()
def mean_gradient(client: ClientAtWork) -> list[Tensor]:
    """The mean gradient of all the client's examples at its parameters."""
    total, examples = [torch.zeros_like(parameter) for parameter in client.parameters], 0
    for inputs, labels in client.batches(epochs=1):
        for one, gradient in zip(total, client.gradients((inputs, labels)), strict=True):
            if gradient is not None:
                one.add_(gradient, alpha=len(labels))
        examples += len(labels)
    torch._foreach_div_(total, examples)
    return total


def velocities_of(local: Local, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The velocities at the start, if there is momentum."""
    return [torch.zeros_like(one) for one in parameters] if local.momentum else []


def _filled(found: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensors:
    """Gradients, of zeros where there is none."""
    return [torch.zeros_like(p) if one is None else one for p, one in zip(parameters, found, strict=True)]
