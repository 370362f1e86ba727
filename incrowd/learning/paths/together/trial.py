"""Clients' gradients side by side, tried out on made-up clients before anyone's own are computed so."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from incrowd.data.inputs import Inputs, each, named
from incrowd.errors import IncrowdError
from incrowd.learning.arithmetic import in_one_order
from incrowd.learning.compiling.remembered import remembered
from incrowd.learning.inputs import WithInputs, meant, noise
from incrowd.learning.mapped import rewrite
from incrowd.learning.modules import remembering_nothing, trainable
from incrowd.learning.paths.path import TrainingTask
from incrowd.learning.paths.together.step import OfClients, gradients_of
from incrowd.learning.trial import same_bits, tried_copy, within_rounding

_MANY = 256  # clients side by side at most
_MEMORY = 2**33  # bytes that what they work with may take
_COPIES = 6  # of the weights: those of the clients, velocities, gradients, moves, changes, and what is on the way
_COUNTS = 16  # numbers of examples that batches of one width are tried with
_FILLING = 8.0  # times noise is what fills a batch up
_PROBES = 7  # companies that it is tried out in
_OTHERS = (1.0, torch.nan, 1e30)  # times noise is what others hold when it is tried out that they change nothing

Batch = tuple[Inputs, Tensor, Tensor, Tensor | None]
"""Clients' inputs and labels [c, width, ...], the shares of examples [c, width], offsets [c, outputs]."""


class Unlike(IncrowdError):
    """Side by side, clients would not learn what they learn alone."""


def most_at_once(task: TrainingTask) -> int:
    """How many clients may go side by side: the chunk, or so many that groups of a usual cohort are equally large."""
    cohort = task.execution.cohort
    return task.execution.chunk or (math.ceil(cohort / math.ceil(cohort / _MANY)) if cohort else _MANY)


class SideBySideTrial:
    """The gradients of clients whose batches are so wide, side by side, tried out on a fresh copy of the module.

    Guarantee: of anyone's examples only shapes and types are read, and what is found follows from the width, the model
    and the settings.
    """

    def __init__(self, task: TrainingTask, width: int) -> None:
        self._task, self._width = task, width
        self._twin, self._module = (tried_copy(task.model, task.device) for _ in range(2))
        rewrite(self._module)
        names = [name for name, _ in trainable(self._module)]
        self.gradients: OfClients = gradients_of(self._module, names, task.loss, task.data.features)

    def clients_at_once(self) -> int:
        """How many clients go side by side, after that has been seen to change nothing.

        Edge cases: a module that remembers anything, gradients that are not what they are for one client, or that
        change with the place, with the others or with what fills a batch up, and operations that add up in no fixed
        order, are an error.
        """
        before = remembered(self._module), remembered(self._twin)
        with warnings.catch_warnings(), in_one_order(self._task.device):
            warnings.simplefilter("ignore")  # of torch about itself
            with remembering_nothing(self._module, self._task.device, whose="client"):
                several = min(most_at_once(self._task), max(1, _memory(self._task.device) // self._bytes_of_one()))
                self._check_values(several)
                self._check_places(several)
        if (remembered(self._module), remembered(self._twin)) != before:
            raise Unlike("it remembers something, and clients would meet what others left")
        return several

    def _bytes_of_one(self) -> int:
        """About what one client's step needs at once: what autograd keeps for its gradient, and weights."""
        numbers = [_COPIES * self._task.model.size]

        def kept(one: Tensor) -> Tensor:
            numbers.append(one.numel())
            return one

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(kept, lambda one: one):
            self._value(self._module, self._made_up(1, seed=1), 0, self._width)
        return 4 * sum(numbers)

    def _check_values(self, several: int) -> None:
        """See that gradients are what they are for a client alone, in the plain way, in batches of one example to as
        many as there is room for: those that fill one up are larger than the others.
        """
        counts = [1 + round(place * (self._width - 1) / (_COUNTS - 1)) for place in range(_COUNTS)]
        for begin in range(0, _COUNTS, several):
            some = (counts[begin : begin + several] * several)[:several]
            batch = self._made_up(several, seed=1)
            for client, count in enumerate(some):
                for one in filter(torch.is_floating_point, named(batch[0]).values()):
                    one[client, count:] *= _FILLING
                batch[2][client] = (torch.arange(self._width) < count) / count
            found, tried = self.gradients(self._weights(several), *batch), range(min(several, _COUNTS))
            expected = torch.stack([self._alone(batch, client, some[client]) for client in tried])
            if not within_rounding(
                torch.stack([_vector([one[client] for one in found]) for client in tried]), expected
            ):
                raise Unlike("side by side their gradients are not what they are one by one")

    def _alone(self, batch: Batch, client: int, count: int) -> Tensor:
        """The gradient of a client's first examples in the plain way."""
        parameters = [one for _, one in trainable(self._twin)]
        with torch.enable_grad():
            value = self._value(self._twin, batch, client, count)
            found: Any = torch.autograd.grad(value, parameters, allow_unused=True)
        return _vector([torch.zeros_like(p) if one is None else one for p, one in zip(parameters, found, strict=True)])

    def _value(self, module: nn.Module, batch: Batch, client: int, count: int) -> Tensor:
        inputs, labels, _, offset = batch
        outputs = WithInputs(module, inputs)(each(lambda one: one[client, :count], inputs))
        return self._task.loss.value(outputs if offset is None else outputs + offset[client], labels[client, :count])

    def _check_places(self, several: int) -> None:
        """See that clients' gradients have the same bits in every place, and beside anybody: of every second one, since
        in a few numbers rounding often does not show.
        """
        (mine, own_weights), tried = (self._made_up(several, seed=2), self._weights(several)), range(0, several, 2)
        expected: list[Tensor] = []
        for probe in range(_PROBES):
            place, factor = probe * (several - 1) // (_PROBES - 1), _OTHERS[probe % len(_OTHERS)]
            where = [(one + place) % several for one in tried]
            batch, weights = self._made_up(several, seed=3 + probe), self._weights(several)
            for others in (*_floating(batch), *weights):
                others.mul_(factor)
            for own, theirs in zip((*_tensors(mine), *own_weights), (*_tensors(batch), *weights), strict=True):
                theirs[where] = own[list(tried)]
            found = [gradient[where] for gradient in self.gradients(weights, *batch)]
            expected = expected or found
            if not all(map(same_bits, found, expected)):
                raise Unlike("this accelerator rounds them by their place, by the others, or anew each time")

    def _weights(self, clients: int) -> list[Tensor]:
        return [one.detach().expand(clients, *one.shape).clone() for _, one in trainable(self._module)]

    def _made_up(self, clients: int, *, seed: int) -> Batch:
        """Batches of noise, of which the last example only fills up, where there are several."""
        width = self._width
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


def _memory(device: torch.device) -> int:
    """Bytes that what clients side by side work with may take: a quarter of the device, or what is usual."""
    if device.type != "cuda":
        return _MEMORY
    quarter = int(torch.cuda.get_device_properties(device).total_memory) // 4  # pragma: no cover - where there is one
    return min(_MEMORY, quarter)  # pragma: no cover - as above


def _tensors(batch: Batch) -> Sequence[Tensor]:
    inputs, *others = batch
    return [*named(inputs).values(), *(one for one in others if one is not None)]


def _floating(batch: Batch) -> Sequence[Tensor]:
    inputs, _, _, offset = batch
    several = [*named(inputs).values(), *([] if offset is None else [offset])]
    return [one for one in several if one.is_floating_point()]


def _vector(several: Sequence[Tensor]) -> Tensor:
    return torch.cat([one.reshape(-1) for one in several])
