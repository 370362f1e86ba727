"""Clients' gradients side by side, tried out on made-up clients before anyone's own are computed so."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from incrowd.data.inputs import Inputs, each, named
from incrowd.errors import ConfigError
from incrowd.learning.arithmetic import in_one_order
from incrowd.learning.compiling.remembered import remembered
from incrowd.learning.inputs import WithInputs, meant, noise
from incrowd.learning.mapped import rewrite
from incrowd.learning.modules import remembering_nothing, trainable, working_copy
from incrowd.learning.paths.path import TrainingTask
from incrowd.learning.paths.together.step import OfClients, gradients_of

_MANY = 256  # clients side by side at most
_MEMORY = 2**33  # bytes that what they work with may take
_COPIES = 6  # of the weights: those of the clients, velocities, gradients, moves, changes, and what is on the way
_CLOSE = 1e-3  # of the length of a gradient: so far rounding may take it from that of a client alone
_PROBES = 7  # companies that it is tried out in
_OTHERS = (1.0, torch.nan, 1e30)  # times noise is what others hold when it is tried out that they change nothing

Batch = tuple[Inputs, Tensor, Tensor, Tensor | None]
"""Clients' inputs and labels [c, width, ...], the shares of examples [c, width], offsets [c, outputs]."""


class SideBySideTrial:
    """The gradients of a task's clients side by side, and of how many at a time.

    Guarantee: of anyone's examples only shapes and types are read, and what is found for batches so wide follows from
    the model and the settings.
    """

    def __init__(self, task: TrainingTask) -> None:
        self._task = task
        self._module = working_copy(task.model.module, task.device)
        rewrite(self._module)
        names = [name for name, _ in trainable(self._module)]
        self.gradients: OfClients = gradients_of(self._module, names, task.loss, task.data.features)
        self.most = task.execution.chunk or _divided(task.execution.cohort)

    def clients_at_once(self, width: int) -> int:
        """How many clients with batches so wide go side by side, after that has been seen to change nothing.

        Edge cases: a module that remembers anything, gradients that are not what they are for one client, or that
        change with the place or with the others, and operations that add up in no fixed order, are an error.
        """
        before = remembered(self._module)
        with warnings.catch_warnings(), in_one_order(self._task.device):
            warnings.simplefilter("ignore")  # of torch about itself
            with remembering_nothing(self._module, self._task.device, whose="client"):
                several = min(self.most, max(1, _memory(self._task.device) // self._bytes_of_one(width)))
                self._check_values(several, width)
                self._check_places(several, width)
        if remembered(self._module) != before:
            remedy = "it remembers something, and clients would meet what others left"
            raise ConfigError(field="module", value=type(self._module).__name__, remedy=remedy)
        return several

    def _bytes_of_one(self, width: int) -> int:
        """About what one client's step needs at once: what autograd keeps for its gradient, and weights."""
        numbers = [_COPIES * self._task.model.size]

        def kept(one: Tensor) -> Tensor:
            numbers.append(one.numel())
            return one

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(kept, lambda one: one):
            self._value_of_first(self._made_up(1, width, seed=1))
        return 4 * sum(numbers)

    def _check_values(self, several: int, width: int) -> None:
        """See that the first client's gradient is what it is for that client alone, in the plain way."""
        batch, parameters = self._made_up(several, width, seed=1), [one for _, one in trainable(self._module)]
        with torch.enable_grad():
            alone: Any = torch.autograd.grad(self._value_of_first(batch), parameters, allow_unused=True)
        filled = [torch.zeros_like(p) if one is None else one for p, one in zip(parameters, alone, strict=True)]
        expected, found = _vector(filled), _vector([one[0] for one in self.gradients(self._weights(several), *batch)])
        if not (found - expected).norm() <= _CLOSE * expected.norm() + 1e-6:
            raise ArithmeticError("side by side their gradients are not what they are one by one")

    def _check_places(self, several: int, width: int) -> None:
        """See that a client's gradient has the same bits in every place, and beside anybody."""
        one, weights = self._made_up(1, width, seed=2), self._weights(several)
        everywhere = self.gradients(weights, *_repeated(one, several))
        seen = {_bytes(_vector([gradient[place] for gradient in everywhere])) for place in range(several)}
        for probe in range(_PROBES):
            place, factor = probe * (several - 1) // (_PROBES - 1), _OTHERS[probe % len(_OTHERS)]
            batch, weights = self._made_up(several, width, seed=3 + probe), self._weights(several)
            for others in (*_floating(batch), *weights):
                others.mul_(factor)
            mine = (*_tensors(one), *self._weights(1))
            for own, theirs in zip(mine, (*_tensors(batch), *weights), strict=True):
                theirs[place] = own[0]
            seen.add(_bytes(_vector([gradient[place] for gradient in self.gradients(weights, *batch)])))
        if len(seen) > 1:
            raise ArithmeticError("this accelerator rounds them by their place, by the others, or anew each time")

    def _weights(self, clients: int) -> list[Tensor]:
        return [one.detach().expand(clients, *one.shape).clone() for _, one in trainable(self._module)]

    def _made_up(self, clients: int, width: int, *, seed: int) -> Batch:
        """Batches of noise, of which the last example only fills up, where there are several."""
        data, generator, device = self._task.data, torch.Generator().manual_seed(seed), self._task.device
        count = clients * width

        def of_clients(one: Tensor) -> Tensor:
            return one.view(clients, width, *one.shape[1:]).to(device)

        drawn = noise(data.features, count, generator=generator)
        inputs = each(of_clients, meant(drawn, scale=data.scale, offset=data.offset))
        labels = of_clients(torch.zeros((count, *data.labels.shape[1:]), dtype=data.labels.dtype))
        counted = max(1, width - 1)
        shares = (torch.arange(width, device=device) < counted).float().div(counted).repeat(clients, 1)
        offset = self._task.made_up_offset()
        if offset is None:
            return inputs, labels, shares, None
        return inputs, labels, shares, torch.randn(clients, *offset.shape, generator=generator).to(device)

    def _value_of_first(self, batch: Batch) -> Tensor:
        """The mean of the first client's loss, as the plain way has it."""
        inputs, labels, shares, offset = batch
        counted = int((shares[0] > 0).sum())
        outputs = WithInputs(self._module, inputs)(each(lambda one: one[0, :counted], inputs))
        return self._task.loss.value(outputs if offset is None else outputs + offset[0], labels[0, :counted])


def _memory(device: torch.device) -> int:
    """Bytes that what clients side by side work with may take: a quarter of the device, or what is usual."""
    if device.type != "cuda":
        return _MEMORY
    quarter = int(torch.cuda.get_device_properties(device).total_memory) // 4  # pragma: no cover - where there is one
    return min(_MEMORY, quarter)  # pragma: no cover - as above


def _divided(cohort: float) -> int:
    """So many that groups of a round are equally large."""
    return math.ceil(cohort / math.ceil(cohort / _MANY)) if cohort else _MANY


def _tensors(batch: Batch) -> Sequence[Tensor]:
    inputs, *others = batch
    return [*named(inputs).values(), *(one for one in others if one is not None)]


def _floating(batch: Batch) -> Sequence[Tensor]:
    inputs, _, _, offset = batch
    several = [*named(inputs).values(), *([] if offset is None else [offset])]
    return [one for one in several if one.is_floating_point()]


def _repeated(batch: Batch, clients: int) -> Batch:
    """That of one client, for so many."""
    inputs, labels, shares, offset = batch

    def several(one: Tensor) -> Tensor:
        return one.expand(clients, *one.shape[1:]).contiguous()

    return each(several, inputs), several(labels), several(shares), None if offset is None else several(offset)


def _bytes(row: Tensor) -> bytes:
    return row.cpu().numpy().tobytes()


def _vector(several: Sequence[Tensor]) -> Tensor:
    return torch.cat([one.reshape(-1) for one in several])
