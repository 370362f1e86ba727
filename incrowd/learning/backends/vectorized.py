"""The vectorized backend: torch's `vmap` makes one step of a client the step of hundreds, each with its own matrices.

An accelerator needs longer to launch an operation than to compute it for one client, so it also replays whole steps.
"""

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from incrowd.data.examples import Inputs, each, named
from incrowd.errors import IncrowdError
from incrowd.learning.backends.backend import Backend, ClientRound, Task
from incrowd.learning.compiler import Notes, Take
from incrowd.learning.contributions import Contributions
from incrowd.learning.execution import ieee, in_one_order, one_thread
from incrowd.learning.inputs import WithInputs, as_function, batch_sizes, meant, noise
from incrowd.learning.local_algorithms import direction, velocities_of
from incrowd.learning.losses import CROSS_ENTROPY, LOSSES, Loss
from incrowd.learning.modules import has_dropout, remembered, remembering_nothing, trainable
from incrowd.learning.rewritten import rewrite
from incrowd.learning.trial import MadeUp, Unlike, check_company, check_values, tried_copy
from incrowd.settings import Local

_log = logging.getLogger(__name__)
_PARTS = 4  # widths between a power of two and the next: filling up takes less than a quarter more
_EVEN = 8  # numbers: matrices of as many rows begin where accelerators like it
_MANY = 256  # clients side by side at most
_MEMORY = 2**33  # bytes that their steps may take
_COPIES = 6  # copies of the weights: the clients' weights, velocities, gradients, moves, changes, and one more
_COUNTS = 16  # numbers of examples that batches of one width are tried with
_FILLING = 8.0  # noise times this fills a batch up in a trial


def make(task: Task) -> "Vectorized | None":
    """The backend, on an accelerator: see `side_by_side`."""
    return side_by_side(task) if task.on_accelerator else None


def side_by_side(task: Task) -> "Vectorized | None":
    """The backend, if `vmap` takes the module and its steps are those of one client alone; the log has the reason if
    not.

    Guarantee: it reads only shapes, types and each client's own number of examples. A trial has shown that a client's
    gradient has the same bits in another place, again, and next to any others.
    """
    odd = has_dropout(task.model.module) or task.loss not in LOSSES.values() or not task.by_sgd
    if odd or len(task.data.indices) == 0:
        return None
    with one_thread(), ieee(task.execution.device), torch.no_grad():
        tried = {width: _tried(task, width) for width in np.unique(_widths(task)).tolist() if width}
    for reason in sorted({found for found in tried.values() if isinstance(found, str)}):
        _log.warning("clients of %s are trained one by one: %s", type(task.model.module).__name__, reason)
    sizes = {width: found for width, found in tried.items() if isinstance(found, Size)}
    return Vectorized(task, sizes) if sizes else None


def _tried(task: Task, width: int) -> "Size | str":
    """Try batches of this width, then padded ones, which libraries round more evenly; else give the reason."""
    reason = ""
    for wide in dict.fromkeys((width, -(-width // _EVEN) * _EVEN)):
        with MadeUp() as attempt:
            trial = Trial(task, wide)
            return Size(width=wide, clients=trial.clients_at_once(), gradients=trial.gradients)
        # The texts of other errors may reveal a client's number of examples.
        reason = str(attempt.error) if isinstance(attempt.error, IncrowdError) else type(attempt.error).__name__
    return reason


def width_of(examples: int, local: Local) -> int:
    """The width of the batches of a client with so many examples: its largest batch, or a little more."""
    largest = int(batch_sizes(examples, local).max())
    if largest == local.batch_size:
        return largest
    step = max(1, (1 << largest.bit_length() - 1) // _PARTS)
    return -(-largest // step) * step


def _widths(task: Task) -> NDArray[np.int64]:
    """The width of the batches of each client; 0 for a client without examples."""
    counts, places = np.unique(np.diff(task.data.offsets), return_inverse=True)
    return np.array([width_of(int(count), task.local) if count else 0 for count in counts])[places]


OfClients = Callable[..., list[Tensor]]
"""Gradients [c, ...] of clients' parameters [c, ...], inputs, labels, shares of examples [c, width], and offsets."""


class Size(NamedTuple):
    """So many clients side by side, whose batches are so wide, and their gradients."""

    width: int
    clients: int
    gradients: OfClients


class Abreast:
    """The memory of so many clients; a step changes it in place, and reads which batches are next.

    `rows` are the numbers of the examples of a batch, and `shares` what each counts for in its mean: 0 where it only
    fills a batch up. A client all of whose examples count for nothing takes no step.
    """

    def __init__(self, task: Task, size: Size) -> None:
        zeros, shapes = partial(torch.zeros, device=task.device), task.model.layout.shapes
        offset = task.made_up_offset()
        self._task, self._gradients = task, size.gradients
        self.parameters = [zeros((size.clients, *shape)) for shape in shapes]
        self.starts = [zeros(shape) for shape in shapes]
        self.velocities = velocities_of(task.local, self.parameters)
        self.rows = zeros((size.clients, size.width), dtype=torch.int64)
        self.shares = zeros((size.clients, size.width))
        self.offsets = None if offset is None else offset.expand(size.clients, *offset.shape).clone()

    def begin(self, starts: Sequence[Tensor], offsets: Sequence[Tensor | None]) -> None:
        """Have every client start from the same weights."""
        for mine, parameter, start in zip(self.starts, self.parameters, starts, strict=True):
            mine.copy_(start)
            parameter.copy_(start.expand_as(parameter))
        for velocity in self.velocities:
            velocity.zero_()
        if self.offsets is not None:
            self.offsets.copy_(torch.stack([one for one in offsets if one is not None]))

    def step(self, *, everyone: bool) -> None:
        """Take one step for all of them.

        Guarantee: a finished client keeps its weights, bit for bit, whatever its gradient is. `everyone` promises that
        no client is finished, and saves the mask.
        """
        local, parameters, data = self._task.local, self.parameters, self._task.data

        def chosen(table: Tensor) -> Tensor:
            return table.index_select(0, self.rows.view(-1)).view(*self.rows.shape, *table.shape[1:])

        inputs = meant(each(chosen, data.features), scale=data.scale, offset=data.offset)
        found = self._gradients(parameters, inputs, chosen(data.labels), self.shares, self.offsets)
        starts = [start.expand_as(one) for start, one in zip(self.starts, parameters, strict=True)]
        along = direction(local, found, parameters, starts, self.velocities)
        if not everyone:
            steps = self.shares[:, 0] > 0
            along = [torch.where(steps.view(-1, *[1] * (one.ndim - 1)), one, 0.0) for one in along]
        torch._foreach_add_(parameters, along, alpha=-local.learning_rate)

    def changes(self) -> Tensor:
        """The clients' updates, [c, size]."""
        pairs = zip(self.parameters, self.starts, strict=True)
        return torch.cat([(now - start).flatten(1) for now, start in pairs], 1)


class Vectorized(Backend):
    """Trains clients side by side.

    Guarantee: a client's steps are the same operations on as many matrices for any other clients. Copies of its last
    client fill a group up to the same number, and the client's own examples set the width of its batches. A client that
    has taken all its steps keeps its weights while others go on.
    """

    def __init__(self, task: Task, sizes: dict[int, Size]) -> None:
        """`sizes` are those of groups, by how wide the clients' own batches are."""
        self._task, self._sizes = task, sizes
        self.at_once = most_at_once(task)
        self.takes = np.isin(_widths(task), [0, *sizes])  # a client without examples never trains
        self._notes = Notes(task.device)
        self._there: dict[Size, Abreast] = {}
        self._steps: dict[tuple[Size, bool], Take] = {}

    def kind(self, client: int) -> int:
        """See `Backend.kind`."""
        return width_of(len(self._task.data.examples(client)), self._task.local)

    def effort(self, client: int) -> int:
        """See `Backend.effort`."""
        return len(batch_sizes(len(self._task.data.examples(client)), self._task.local))

    @torch.no_grad()
    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `Backend.train`."""
        size, starts = self._sizes[self.kind(clients[0].client)], self._task.model.by_parameter(weights)
        groups = (clients[begin : begin + size.clients] for begin in range(0, len(clients), size.clients))
        return [self._train(starts, group, size) for group in groups]

    def _train(self, starts: Sequence[Tensor], group: Sequence[ClientRound], size: Size) -> Contributions:
        own, task = self._clients(size), self._task
        filled = [*group, *[group[-1]] * (size.clients - len(group))]
        offsets = [task.offset(one.client) for one in group]
        own.begin(starts, [*offsets, *offsets[-1:] * (size.clients - len(group))])
        planned = plan(task, filled, width=size.width)
        rows, shares = (torch.from_numpy(one).to(task.device) for one in planned)
        take = self._steps[size, all(one.batches.steps == filled[0].batches.steps for one in filled)]
        with in_one_order(task.device):
            for t in range(len(rows)):
                own.rows.copy_(rows[t])
                own.shares.copy_(shares[t])
                take()
        return Contributions(tuple(one.client for one in group), own.changes()[: len(group)])

    def _clients(self, size: Size) -> Abreast:
        """Memory for so many clients with such batches; their steps are noted while nothing is in it."""
        if size not in self._there:
            own = self._there[size] = Abreast(self._task, size)
            with in_one_order(self._task.device):
                for everyone in (True, False):
                    self._steps[size, everyone] = self._notes.noted(partial(own.step, everyone=everyone))
        return self._there[size]


def plan(task: Task, clients: Sequence[ClientRound], *, width: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Each step's examples rows[t, j] of each client j, and their shares of the batch's mean, 0 for padding."""
    steps = max(one.batches.steps for one in clients)
    rows = np.empty((steps, len(clients), width), np.int64)
    shares = np.zeros((steps, len(clients), width), np.float32)
    for j, one in enumerate(clients):
        examples, own = task.data.examples(one.client), one.batches
        rows[:, j] = examples[0]
        # With one of the batch's own, which brings nothing new into it.
        rows[: own.steps, j] = examples[own.positions[:, :1]]
        rows[: own.steps, j, : own.width] = examples[own.positions]
        counted = np.arange(own.width) < own.sizes[:, None]
        shares[: own.steps, j, : own.width] = counted / np.maximum(own.sizes, 1)[:, None]
    return rows, shares


def gradients_of(module: nn.Module, loss: Loss, features: Inputs) -> OfClients:
    """The gradients of clients' means over their batches."""
    function = as_function(module, features)

    def value(
        parameters: list[Tensor], inputs: Inputs, labels: Tensor, shares: Tensor, offset: Tensor | None
    ) -> Tensor:
        # Other kernels add up in an order of their own, or take one client after the other.
        with sdpa_kernel(SDPBackend.MATH), _no_shortcut():
            outputs = function(parameters, inputs)
        outputs = outputs if offset is None else outputs + offset
        return (_of_each(loss, outputs, labels) * shares).sum()

    def gradients(
        parameters: list[Tensor], inputs: Inputs, labels: Tensor, shares: Tensor, offsets: Tensor | None = None
    ) -> list[Tensor]:
        of_each = vmap(grad(value), in_dims=(0, 0, 0, 0, None if offsets is None else 0))
        found: list[Tensor] = of_each(parameters, inputs, labels, shares, offsets)
        return found

    return gradients


def _of_each(loss: Loss, outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of each example, [width]."""
    if loss is CROSS_ENTROPY and labels.ndim == 1:
        # Without an index, gradients add up in one order, and in fewer operations.
        classes = torch.arange(outputs.shape[-1], device=outputs.device)
        own = torch.where(labels.unsqueeze(1) == classes, outputs, 0.0).sum(1)
        return outputs.logsumexp(1) - own

    def one_example(output: Tensor, label: Tensor) -> Tensor:
        return loss.value(output.unsqueeze(0), label.unsqueeze(0))

    found: Tensor = vmap(one_example)(outputs, labels)
    return found


@contextmanager
def _no_shortcut() -> Iterator[None]:
    """Switch off torch's fast path for frozen attention, which `vmap` runs for one client after the other."""
    attention: Any = torch.backends.mha
    before = attention.get_fastpath_enabled()
    attention.set_fastpath_enabled(False)
    try:
        yield
    finally:
        attention.set_fastpath_enabled(before)


def most_at_once(task: Task) -> int:
    """The most clients of a group: the chunk, or the number that divides a usual cohort into equal groups."""
    cohort = task.execution.cohort
    return task.execution.chunk or (math.ceil(cohort / math.ceil(cohort / _MANY)) if cohort else _MANY)


class Trial:
    """The gradients of clients whose batches are so wide, side by side, tried on a fresh copy of the module."""

    def __init__(self, task: Task, width: int) -> None:
        self._task, self._width = task, width
        self._twin, self._module = (tried_copy(task.model, task.device) for _ in range(2))
        rewrite(self._module)
        self.gradients: OfClients = gradients_of(self._module, task.loss, task.data.features)

    def clients_at_once(self) -> int:
        """The number of clients of a group, after a check that the group changes no client's gradient."""
        before = remembered(self._module), remembered(self._twin)
        with warnings.catch_warnings(), in_one_order(self._task.device):
            warnings.simplefilter("ignore")  # torch warns about its own code
            with remembering_nothing(self._module, self._task.device, whose="client"):
                several = min(most_at_once(self._task), max(1, _memory(self._task.device) // self._bytes_of_one()))
                self._check_values(several)
                self._check_company(several)
        if (remembered(self._module), remembered(self._twin)) != before:
            raise Unlike("it remembers something, and clients would meet what others left")
        return several

    def _bytes_of_one(self) -> int:
        """An estimate of the memory of one client's step: saved tensors of autograd, and weights."""
        numbers = [_COPIES * self._task.model.size]

        def kept(one: Tensor) -> Tensor:
            numbers.append(one.numel())
            return one

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(kept, lambda one: one):
            self._value(self._module, self._made_up(1, seed=1), 0, self._width)
        return 4 * sum(numbers)

    def _check_values(self, several: int) -> None:
        """Compare batches of one example up to the full width, padded with larger numbers, with a client alone."""
        counts = [1 + round(place * (self._width - 1) / (_COUNTS - 1)) for place in range(_COUNTS)]
        for begin in range(0, _COUNTS, several):
            some = (counts[begin : begin + several] * several)[:several]
            inputs, labels, shares, offset = self._made_up(several, seed=1)
            for client, count in enumerate(some):
                for one in filter(torch.is_floating_point, named(inputs).values()):
                    one[client, count:] *= _FILLING
                shares[client] = (torch.arange(self._width) < count) / count
            batch, tried = (inputs, labels, shares, offset), range(min(several, _COUNTS))
            found = self.gradients(self._weights(several), *batch)
            expected = torch.stack([self._alone(batch, client, some[client]) for client in tried])
            check_values(torch.stack([_vector([one[client] for one in found]) for client in tried]), expected)

    def _alone(self, batch: "Batch", client: int, count: int) -> Tensor:
        """The gradient of a client's first examples by plain autograd."""
        parameters = [one for _, one in trainable(self._twin)]
        with torch.enable_grad():
            value = self._value(self._twin, batch, client, count)
            found: Any = torch.autograd.grad(value, parameters, allow_unused=True)
        return _vector([torch.zeros_like(p) if one is None else one for p, one in zip(parameters, found, strict=True)])

    def _value(self, module: nn.Module, batch: "Batch", client: int, count: int) -> Tensor:
        inputs, labels, _, offset = batch
        outputs = WithInputs(module, inputs)(each(lambda one: one[client, :count], inputs))
        return self._task.loss.value(outputs if offset is None else outputs + offset[client], labels[client, :count])

    def _check_company(self, several: int) -> None:
        def made_up(count: int, seed: int, factor: float) -> list[Any]:
            weights, (inputs, labels, shares, offset) = self._weights(count), self._made_up(count, seed=2 + seed)
            for one in filter(torch.is_floating_point, tree_leaves((weights, inputs))):
                one.mul_(factor)
            given = [weights, inputs, labels, shares]
            return given if offset is None else [*given, offset.mul_(factor)]

        tested = -(-several // 2)
        check_company(lambda given: self.gradients(*given), made_up, counts=[several], tested=tested, alone=False)

    def _weights(self, clients: int) -> list[Tensor]:
        return [one.detach().expand(clients, *one.shape).clone() for _, one in trainable(self._module)]

    def _made_up(self, clients: int, *, seed: int) -> "Batch":
        """Batches of noise, whose last example is padding if there are several."""
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
        if offset is not None:
            offset = torch.randn(clients, *offset.shape, generator=generator).to(device)
        return inputs, labels, shares, offset


Batch = tuple[Inputs, Tensor, Tensor, Tensor | None]
"""Clients' inputs and labels [c, width, ...], the shares of examples [c, width], offsets [c, outputs]."""


def _memory(device: torch.device) -> int:
    """Bytes for clients side by side: a quarter of the device, at most the default."""
    if device.type == "cuda":
        return min(_MEMORY, int(torch.cuda.get_device_properties(device).total_memory) // 4)
    return _MEMORY


def _vector(several: Sequence[Tensor]) -> Tensor:
    return torch.cat([one.reshape(-1) for one in several])
