"""The loop: one client after the other by autograd, for any module and any local algorithm. It is the reference."""

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from incrowd.errors import ConfigError
from incrowd.learning.backends.backend import Backend, ClientRound, Task
from incrowd.learning.contributions import Contributions
from incrowd.learning.inputs import Feed, Stored, are_numbers, calling
from incrowd.learning.modules import drawing_from, keeping_constants, known, trainable, working_copy
from incrowd.types import Batch

_ROWS = 1000  # examples that are gathered at a time
_NUMBERS = 2**17  # numbers of examples that are made floats at a time, so that they leave the caches to the weights
_CACHE, _FEW = 8 * 2**20, 8  # updates are measured and summed a few at a time, while they are in the caches


def make(task: Task) -> "Loop":
    """The backend, which takes every model."""
    return Loop(task)


def few(task: Task) -> int:
    """The number of updates to hold at a time."""
    usual = 1 if task.on_accelerator else max(1, min(_FEW, _CACHE // (4 * task.model.size)))
    return task.execution.chunk or usual


class Loop(Backend):
    """Trains clients one after the other; the first waits for a copy of the module, which takes a few batches."""

    shares = 16

    def __init__(self, task: Task) -> None:
        self.takes, self.at_once = task.everyone, few(task)
        self._task = task
        self._client: _Client | None = None

    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `Backend.train`."""
        return [Contributions((one.client,), self._train(weights, one)) for one in clients]

    def _train(self, weights: Tensor, one: ClientRound) -> Tensor:
        # Kept only after a success, because a failure may leave anything behind.
        client, self._client = self._client or _Client(self._task), None
        delta = client.train(weights, self._task.data.feed(one.client, one.batches), one)
        self._client = client
        return delta


class _Client:
    """A copy of a module at work for one client at a time: see `ClientAtWork`.

    Guarantee: nothing of one client reaches the next. The copy serves the next client if all its modules are torch's or
    ours, which keep no state; other modules get a fresh copy for every client.
    """

    def __init__(self, task: Task) -> None:
        module, self._task = task.model.module, task
        self._forgets = all(map(known, module.modules()))
        # Convolutions are faster on a CPU when the channels of a pixel lie together; their weights decide about that.
        prepared = copy.deepcopy(module).to(task.device)
        self._prepared = prepared.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in its stubs
        self._begin()

    def _begin(self) -> None:
        """Start with a copy of the module."""
        self._module = working_copy(self._prepared, self._task.device)
        self.parameters: list[Tensor] = [parameter for _, parameter in trainable(self._module)]
        self.starts: list[Tensor] = []

    def train(self, weights: Tensor, feed: Feed, one: ClientRound) -> Tensor:
        """Train the one client of a feed from these weights, and from what else the server shares."""
        task, size = self._task, self._task.model.size
        if not self._forgets:
            self._begin()
        self._feed, self._offset = feed, task.offset(one.client)
        self._call = calling(self._module, feed.data.features)
        self.starts = task.model.by_parameter(weights[:size])
        shared = task.model.by_parameter(weights[size:]) if len(weights) > size else []
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.starts)
        version = weights._version
        with keeping_constants(self._module, whose="client"), drawing_from(one.seed(), task.device):
            changes = task.algorithm.train(self, shared)
        row = torch.empty(len(weights), device=weights.device)
        places = row[:size].split_with_sizes([start.numel() for start in self.starts])
        for now, start, place in zip(self.parameters, self.starts, places, strict=True):
            torch.sub(now.detach(), start, out=place.view(start.shape))
        sent = [change.reshape(-1) for change in changes]
        if weights._version != version or sum(map(len, sent)) != len(row) - size:  # others' rows begin and end with it
            remedy = f"leave starts and shared as they are, and let train return {len(row) - size} further values"
            raise ConfigError(field="local.algorithm", value=type(task.algorithm).__name__, remedy=remedy)
        if sent:
            row[size:] = torch.cat(sent)
        return row[None]

    def batches(self, *, epochs: int | None = None) -> Iterator[Batch]:
        """See `ClientAtWork.batches`."""
        feed = self._feed
        if epochs is not None:
            feed = feed.first(feed.batches.steps * epochs // self._task.local.epochs)
        return batches_of(feed)

    def gradients(self, batch: Batch) -> Sequence[Tensor | None]:
        """See `ClientAtWork.gradients`."""
        with torch.enable_grad():
            outputs = self._call(batch[0])
            value = self._task.loss.value(outputs if self._offset is None else outputs + self._offset, batch[1])
            found: Sequence[Tensor | None] = torch.autograd.grad(value, self.parameters, allow_unused=True)
        return found


def batches_of(feed: Feed) -> Iterator[Batch]:
    """The batches of the one client of a feed, as they are meant. The next one may overwrite the examples."""
    return _batches(feed) if are_numbers(feed.data.features) else _batches_of_any(feed)


def _batches(feed: Feed) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of the client, without padding. The next one may overwrite the examples."""
    width, sizes, data = feed.batches.width, feed.batches.sizes.tolist(), feed.data
    several = max(1, _ROWS // width)
    for begin, rows in enumerate(torch.split(feed.rows, several * width)):
        examples = _floats(data, data.features.index_select(0, rows), width)
        labels = torch.split(data.labels.index_select(0, rows), width)
        for some, theirs, size in zip(examples, labels, sizes[begin * several :], strict=False):
            yield some[:size], theirs[:size]


def _batches_of_any(feed: Feed) -> Iterator[Batch]:
    """The batches of the client: several inputs, or whole numbers."""
    for rows, size in zip(torch.split(feed.rows, feed.batches.width), feed.batches.sizes.tolist(), strict=True):
        yield feed.data.take(rows[:size])


def _floats(data: Stored, stored: Tensor, width: int) -> Iterator[Tensor]:
    """Stored examples as they are meant, batch by batch, in memory that is used again and again."""
    several = width * max(1, _NUMBERS // (width * stored[0].numel()))
    floats = None
    if stored.dtype != torch.float32:
        floats = torch.empty(min(several, len(stored)), *stored.shape[1:], device=stored.device)
    for part in torch.split(stored, several):
        examples = part if floats is None else floats[: len(part)].copy_(part)
        if data.offset != 0:
            examples.add_(data.offset / data.scale)
        if data.scale != 1:
            examples.mul_(data.scale)
        yield from torch.split(examples, width)
