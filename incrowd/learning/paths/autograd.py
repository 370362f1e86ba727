"""The path for any module: one client after the other, with autograd, on one copy of the module."""

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from incrowd.data.inputs import Inputs
from incrowd.learning.batches import side_by_side
from incrowd.learning.contributions import Contributions
from incrowd.learning.deltas import FlatDelta
from incrowd.learning.dropout import has_dropout, with_own_dropout
from incrowd.learning.inputs import calling, chosen, meant
from incrowd.learning.modules import known, remembering_nothing, trainable, working_copy
from incrowd.learning.paths.path import ClientRound, TrainingPath, TrainingTask
from incrowd.learning.store import Feed, Store
from incrowd.settings.local import Local

_ROWS = 1000  # examples that are brought together at a time
_NUMBERS = 2**17  # numbers of examples that are made floats at a time, so that they leave the caches to the weights
_CACHE = 8 * 2**20  # bytes of weights that may wait on a CPU, about what stays in its caches
_FEW = 8  # contributions are measured and added up a few at a time, which leaves the caches alone


def make(task: TrainingTask) -> "Autograd":
    """The path, which takes every model."""
    return Autograd(task)


class Autograd(TrainingPath):
    """Trains clients one after the other; the copy of the module is made for the first, which takes a few batches."""

    shares = 16

    def __init__(self, task: TrainingTask) -> None:
        self.task = task
        self.takes = task.everyone
        usual = 1 if task.on_accelerator else max(1, min(_FEW, _CACHE // (4 * task.model.size)))
        self.at_once = task.execution.chunk or usual
        self._store = Store(task.data)
        self._copy: _ModuleCopy | None = None

    def steps(self, module: nn.Module) -> "Steps":
        """What moves the parameters of the copy."""
        return GradientSteps([parameter for _, parameter in trainable(module)], self.task.local)

    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `TrainingPath.train`."""
        starts = self.task.model.by_parameter(weights)
        return [Contributions((one.client,), self._train(starts, one)) for one in clients]

    def _train(self, starts: Sequence[Tensor], one: ClientRound) -> FlatDelta:
        # Kept only after a success, because a failure may leave anything behind.
        copied, self._copy = self._copy or _ModuleCopy(self), None
        delta = copied.train(starts, self._store.feed([one.client], side_by_side([one.batches])), one)
        self._copy = copied
        return delta


class Steps(Protocol):
    """Steps of a module's parameters against the gradient of a value that it was just used for."""

    def begin(self, starts: Sequence[Tensor]) -> None:
        """The parameters have been set to these starts of a client."""
        ...

    def step(self, value: Tensor) -> None:
        """Take one step."""
        ...


BETAS, TINY = (0.9, 0.999), 1e-8
"""Of Adam, as torch.optim.Adam has them."""


class GradientSteps:
    """Steps along the whole gradient: SGD, or Adam."""

    def __init__(self, parameters: list[Tensor], local: Local) -> None:
        self._parameters = parameters
        self._local = local
        self._starts: list[Tensor] = []
        self._velocity: list[Tensor] | None = None
        self._squares: list[Tensor] = []
        self._taken = 0

    def begin(self, starts: Sequence[Tensor]) -> None:
        """See `Steps.begin`."""
        self._starts = list(starts)
        adam = self._local.optimizer == "adam"
        self._velocity = [torch.zeros_like(p) for p in self._parameters] if self._local.momentum or adam else None
        self._squares, self._taken = [torch.zeros_like(p) for p in self._parameters] if adam else [], 0

    @torch.no_grad()
    def step(self, value: Tensor) -> None:
        """See `Steps.step`."""
        local, parameters = self._local, self._parameters
        # Autograd is slow at filling in zeros where the value does not depend on a parameter.
        found: Sequence[Tensor | None] = torch.autograd.grad(value, parameters, allow_unused=True)
        if local.plain:
            descend(parameters, found, local.learning_rate)
            return
        gradients = [torch.zeros_like(p) if one is None else one for p, one in zip(parameters, found, strict=True)]
        if local.weight_decay or local.proximal:
            # Not in place: the gradients of parameters that are added to each other are one tensor.
            gradients = list(torch._foreach_add(gradients, parameters, alpha=local.weight_decay + local.proximal))
        if local.proximal:
            torch._foreach_sub_(gradients, self._starts, alpha=local.proximal)
        if self._velocity is not None and local.optimizer == "adam":
            self._adam(self._velocity, gradients)
            return
        if self._velocity is not None:
            torch._foreach_mul_(self._velocity, local.momentum)
            torch._foreach_add_(self._velocity, gradients)
            gradients = self._velocity
        torch._foreach_add_(parameters, gradients, alpha=-local.learning_rate)

    def _adam(self, means: list[Tensor], gradients: list[Tensor]) -> None:
        self._taken += 1
        first, second = BETAS
        torch._foreach_lerp_(means, gradients, 1 - first)
        torch._foreach_mul_(self._squares, second)
        torch._foreach_addcmul_(self._squares, gradients, gradients, value=1 - second)
        lengths = torch._foreach_sqrt(self._squares)
        torch._foreach_div_(lengths, math.sqrt(1 - second**self._taken))
        torch._foreach_add_(lengths, TINY)
        rate = self._local.learning_rate / (1 - first**self._taken)
        torch._foreach_addcdiv_(self._parameters, means, lengths, value=-rate)


def descend(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], rate: float) -> None:
    """Move those parameters that have a gradient against it."""
    moved = [(one, gradient) for one, gradient in zip(parameters, gradients, strict=True) if gradient is not None]
    if moved:
        torch._foreach_add_(*map(list, zip(*moved, strict=True)), alpha=-rate)


class _ModuleCopy:
    """A copy of a module at work, for one client at a time; making it takes as long as a few batches.

    Guarantee: nothing of one client reaches the next. The copy serves the next client if all its modules are torch's or
    ours, which remember nothing; other modules get a fresh copy for every client.

    Edge cases: a module whose buffers change in training is refused, and so is one that draws from torch's global
    generator; nn.Dropout is made to draw from one of the client's own. What a module remembers outside of itself
    (in a global variable, say) is not noticed.
    """

    def __init__(self, path: Autograd) -> None:
        module, self._device = path.task.model.module, path.task.device
        self._make_steps = path.steps
        self._loss = path.task.loss
        self._offset = path.task.offset
        self._masked = has_dropout(module)
        self._masks = torch.Generator(self._device)
        self._forgets = all(map(known, module.modules()))
        # Convolutions are faster on a CPU when the channels of a pixel lie together; their weights decide about that.
        prepared = copy.deepcopy(module).to(self._device)
        self._prepared = prepared.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in its stubs
        self._begin()

    def _begin(self) -> None:
        """Start with a copy of the module."""
        self._module = with_own_dropout(working_copy(self._prepared, self._device), self._masks)
        self._parameters: list[Tensor] = [parameter for _, parameter in trainable(self._module)]
        self._steps = self._make_steps(self._module)

    def train(self, starts: Sequence[Tensor], feed: Feed, one: ClientRound) -> FlatDelta:
        """Train the one client of a feed from these weights of each parameter."""
        if not self._forgets:
            self._begin()
        if self._masked:
            self._masks.manual_seed(one.masks_seed())
        with remembering_nothing(self._module, self._device, whose="client"):
            self._train(list(starts), feed, self._offset(one.client))
        return _changed(self._parameters, starts)

    def _train(self, starts: list[Tensor], feed: Feed, offset: Tensor | None) -> None:
        """Take the steps."""
        with torch.no_grad():
            torch._foreach_copy_(self._parameters, starts)
        self._steps.begin(starts)
        call = self._module if feed.plain else calling(self._module, feed.table)
        for examples, labels in batches_of(feed):
            outputs = call(examples)
            self._steps.step(self._loss.value(outputs if offset is None else outputs + offset, labels))


def _changed(now: Sequence[Tensor], starts: Sequence[Tensor]) -> FlatDelta:
    """What has changed."""
    row = torch.empty(sum(start.numel() for start in starts), device=now[0].device if now else None)
    places = row.split_with_sizes([start.numel() for start in starts])
    for one, start, place in zip(now, starts, places, strict=True):
        torch.sub(one.detach(), start, out=place.view(start.shape))
    return FlatDelta(row[None])


def batches_of(feed: Feed) -> Iterator[tuple[Inputs, Tensor]]:
    """The batches of the one client of a feed, as they are meant. The next one may overwrite the examples."""
    return _batches(feed) if feed.plain else _batches_of_any(feed)


def _batches(feed: Feed) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of the client, without what only fills them up. The next one may overwrite the examples."""
    width, sizes = feed.batches.width, feed.batches.sizes[0].tolist()
    for begin in range(0, len(sizes), max(1, _ROWS // width)):
        steps = sizes[begin : begin + max(1, _ROWS // width)]
        rows = slice(begin * width, (begin + len(steps)) * width)
        examples = _floats(feed, feed.table.index_select(0, feed.rows[0, rows]))
        labels = torch.split(feed.labels[0, rows], width)
        for some, theirs, size in zip(examples, labels, steps, strict=True):
            yield some[:size], theirs[:size]


def _batches_of_any(feed: Feed) -> Iterator[tuple[Inputs, Tensor]]:
    """The batches of the client: several inputs, or whole numbers."""
    width = feed.batches.width
    for step, size in enumerate(feed.batches.sizes[0].tolist()):
        rows = slice(step * width, step * width + size)
        stored = chosen(feed.table, feed.rows[0, rows])
        yield meant(stored, scale=feed.scale, offset=feed.offset), feed.labels[0, rows]


def _floats(feed: Feed, stored: Tensor) -> Iterator[Tensor]:
    """Stored examples as they are meant, batch by batch, in memory that is used again and again."""
    width = feed.batches.width
    several = width * max(1, _NUMBERS // (width * stored[0].numel()))
    floats = None
    if stored.dtype != torch.float32:
        floats = torch.empty(min(several, len(stored)), *stored.shape[1:], device=stored.device)
    for part in torch.split(stored, several):
        examples = part if floats is None else floats[: len(part)].copy_(part)
        if feed.offset != 0:
            examples.add_(feed.offset / feed.scale)
        if feed.scale != 1:
            examples.mul_(feed.scale)
        yield from torch.split(examples, width)
