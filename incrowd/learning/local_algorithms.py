"""Local algorithms, by which a client moves the weights of a round over its own batches.

| algorithm  | a step                                                                              |
| ---------- | ----------------------------------------------------------------------------------- |
| `Sgd`      | torch.optim.SGD with momentum and weight decay; `proximal` adds FedProx's term      |
| `Adam`     | torch.optim.Adam, whose moments begin anew in each round                            |
| `Scaffold` | SGD less the client's own drift (Karimireddy et al. 2020)                           |
"""

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from incrowd.data.inputs import Inputs
from incrowd.settings import Local

BETAS, TINY = (0.9, 0.999), 1e-8
"""Adam's, as torch.optim.Adam has them."""

Batch = tuple[Inputs, Tensor]


class ClientAtWork(Protocol):
    """A client's model, its batches, and gradients on them."""

    @property
    def parameters(self) -> Sequence[Tensor]:
        """The parameters, which begin at the server's weights and which the algorithm moves in place."""
        ...

    @property
    def starts(self) -> Sequence[Tensor]:
        """The server's weights, parameter by parameter."""
        ...

    def batches(self, *, epochs: int | None = None) -> Iterator[Batch]:
        """The client's batches in this round, or those of so many epochs. The next one may overwrite the last."""
        ...

    def gradients(self, batch: Batch) -> Sequence[Tensor | None]:
        """The gradient of the mean loss at the parameters; None for one that the loss does not depend on."""
        ...


class LocalAlgorithm(Protocol):
    """A local algorithm. Its state ends with the round; between rounds the server alone keeps state.

    Guarantee: a client's update and the rest that it `sends` are one vector: one clip bounds it, one noise covers it.
    """

    def sends(self, size: int) -> int:
        """The number of values that a client sends with its update of `size` weights: 0, or one for each weight.

        They are zeros before the first round; after each the server adds the released mean.
        """
        ...

    def train(self, client: ClientAtWork, shared: Sequence[Tensor]) -> Sequence[Tensor]:
        """Move the client's parameters; give the change of the shared numbers, parameter by parameter."""
        ...


class Sgd:
    """SGD."""

    def __init__(self, local: Local) -> None:
        self.local = local

    def sends(self, size: int) -> int:  # the protocol's
        """See `LocalAlgorithm.sends`."""
        return 0

    def train(self, client: ClientAtWork, shared: Sequence[Tensor]) -> Sequence[Tensor]:  # as above
        """See `LocalAlgorithm.train`."""
        descend(client, self.local)
        return ()


class Scaffold:
    """SCAFFOLD: each step adds the mean of all clients' gradients and subtracts the client's own, both at the server's
    weights, so that clients with other data do not drift apart.

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


class Adam:
    """Adam."""

    def __init__(self, local: Local) -> None:
        self.local = local

    def sends(self, size: int) -> int:  # the protocol's
        """See `LocalAlgorithm.sends`."""
        return 0

    @torch.no_grad()
    def train(self, client: ClientAtWork, shared: Sequence[Tensor]) -> Sequence[Tensor]:  # as above
        """See `LocalAlgorithm.train`."""
        local, (first, second) = self.local, BETAS
        means = [torch.zeros_like(parameter) for parameter in client.parameters]
        squares = [torch.zeros_like(parameter) for parameter in client.parameters]
        for taken, batch in enumerate(client.batches(), 1):
            gradients = _regularised(client, client.gradients(batch), local)
            torch._foreach_lerp_(means, gradients, 1 - first)
            torch._foreach_mul_(squares, second)
            torch._foreach_addcmul_(squares, gradients, gradients, value=1 - second)
            lengths = torch._foreach_sqrt(squares)
            torch._foreach_div_(lengths, math.sqrt(1 - second**taken))
            torch._foreach_add_(lengths, TINY)
            rate = local.learning_rate / (1 - first**taken)
            torch._foreach_addcdiv_(list(client.parameters), means, list(lengths), value=-rate)
        return ()


def algorithm_of(local: Local) -> LocalAlgorithm:
    """The algorithm that settings name."""
    if local.algorithm == "scaffold":
        return Scaffold(local)
    return Adam(local) if local.optimizer == "adam" else Sgd(local)


def sent_parts(parts: tuple[int, ...], algorithm: LocalAlgorithm) -> tuple[int, ...]:
    """The sizes of the parts of a client's vector, for clipping part by part: the model's layers, then the rest."""
    rest = algorithm.sends(sum(parts))
    return (*parts, rest) if rest else parts


@torch.no_grad()
def descend(client: ClientAtWork, local: Local, *, drift: Sequence[Tensor] | None = None) -> None:
    """Take SGD's steps along gradients less a `drift`."""
    velocity = [torch.zeros_like(parameter) for parameter in client.parameters] if local.momentum else None
    for batch in client.batches():
        found = client.gradients(batch)
        if local.plain and drift is None:
            _step(client.parameters, found, local.learning_rate)
            continue
        gradients = _regularised(client, found, local)
        if drift is not None:
            gradients = list(torch._foreach_sub(gradients, list(drift)))
        if velocity is not None:
            torch._foreach_mul_(velocity, local.momentum)
            torch._foreach_add_(velocity, gradients)
            gradients = velocity
        torch._foreach_add_(list(client.parameters), gradients, alpha=-local.learning_rate)


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


def _step(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], rate: float) -> None:
    """Move the parameters that have a gradient: autograd is slow at filling in zeros for the others."""
    moved = [(one, gradient) for one, gradient in zip(parameters, gradients, strict=True) if gradient is not None]
    torch._foreach_add_(*map(list, zip(*moved, strict=True)), alpha=-rate)


def _regularised(client: ClientAtWork, found: Sequence[Tensor | None], local: Local) -> list[Tensor]:
    """Gradients with weight decay and FedProx's term."""
    parameters = list(client.parameters)
    gradients = [torch.zeros_like(p) if one is None else one for p, one in zip(parameters, found, strict=True)]
    if local.weight_decay or local.proximal:
        # Not in place: the gradients of parameters that are added to each other are one tensor.
        gradients = list(torch._foreach_add(gradients, parameters, alpha=local.weight_decay + local.proximal))
    if local.proximal:
        torch._foreach_sub_(gradients, list(client.starts), alpha=local.proximal)
    return gradients
