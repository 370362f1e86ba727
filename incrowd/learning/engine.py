"""The cohort engine: local training of many clients, a few at a time, whose memory does not grow with the cohort."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.errors import ConfigError, DataError
from incrowd.learning import batches, program
from incrowd.learning.batches import Batches
from incrowd.learning.chunk import Chunk
from incrowd.learning.fallback import Autograd, starts_linear
from incrowd.learning.local import LocalTraining
from incrowd.learning.models import Model
from incrowd.learning.pieces import Piece
from incrowd.learning.store import MEMORY, ClientTensors, Store
from incrowd.learning.threads import one_thread
from incrowd.learning.total import Shortening, Summed, summed
from incrowd.learning.workers import CAN_FORK, Group, Staff

if TYPE_CHECKING:
    from incrowd.learning.sparse import Sparse

Clients = Sequence[int] | NDArray[np.integer[Any]]

_CACHE = 8 * 2**20  # bytes of weights that a chunk may have on a CPU, about what stays in its caches
_DEVICE_MEMORY = 2**30  # the same on an accelerator, where more clients at once are better
_CANDIDATES = (1, 2, 4, 8, 16)
_PROBE_ROWS = 120
_PROBES = 3
_NO_SLOWER = 1.03  # a smaller chunk that is slower by so little leaves more of the caches to the sum
_SPARSE = 0.6  # of so many zeros compiled loops that skip them are faster than matrix products
_UNFUSED = 8  # what autograd has trained is measured and added up a few at a time, which leaves its caches alone
_SHARES = 16  # so many chunks at least, for processes to share out
_ALIKE = 1.1  # clients of one chunk differ in their number of examples by at most this factor


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How the work is done, which changes its speed and, beyond rounding, nothing else.

    With more than one thread each has a process of its own, because Python's threads were measured to wait for each
    other.

    Guarantee: with `chunk` given, a run on one kind of machine repeats itself bit for bit, with any number of threads.

    Edge cases: without `chunk` it follows from the model and the data; `CohortEngine.measured` finds the fastest.
    On an accelerator, and where processes cannot be forked (other systems than Linux), there is one thread.
    """

    device: str = "cpu"
    threads: int = 1
    chunk: int | None = None

    def __post_init__(self) -> None:
        _validate.count(threads=self.threads)
        if self.chunk is not None:
            _validate.count(chunk=self.chunk)
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(
                field="device", value=self.device, remedy="give one that torch finds here, say cpu"
            ) from error


@dataclass(frozen=True)
class _Task:
    """What a cohort starts with."""

    weights: Tensor
    randomness: Randomness
    round: int


class CohortEngine:
    """Trains clients of one data set with one model.

    Guarantee: what a client contributes depends on its examples, the weights, the settings, and the stream of its round
    and number; beyond rounding it does not depend on the other clients, the chunks or the threads. Memory does not grow
    with the cohort.

    Edge cases: examples that the model cannot take, labels that the loss does not fit, a client without examples or one
    that does not exist: refused before anything is trained.
    """

    def __init__(
        self, model: Model, data: ClientTensors, local: LocalTraining, execution: Execution | None = None
    ) -> None:
        self.model = model
        self.local = local
        self.execution = execution or Execution()
        self._device = torch.device(self.execution.device)
        self._data = data.to(self._device)
        outputs = _outputs(model, data)
        local.loss.check(data.labels, outputs)
        self._program = program.compile_program(model.module, data.shape) if local.loss.canonical else None
        # Weight decay changes the weights of features that are always zero, too.
        sparing = self._program is not None or starts_linear(model.module, data.shape)
        narrow = sparing and local.weight_decay == 0
        self._store = Store(self._data, narrow=narrow, memory=MEMORY // self.execution.threads)
        self._sparse = self._path_for_sparse()
        self._staff: Staff[_Task] | None = None
        self._autograd: Autograd | None = None

    def _path_for_sparse(self) -> "Sparse | None":
        few = self._store.narrow and self._store.share_of_zeros >= _SPARSE
        if self._program is None or not few or not self.local.plain:
            return None
        from incrowd.learning.sparse import Sparse  # numba takes a while to start

        return Sparse(self._program, self._store, self.local, alone=self.execution.chunk in (None, 1))

    @property
    def clients(self) -> int:
        """The public number of clients."""
        return self._data.clients

    def present(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of some clients that there are, in the same order. Private where their number is declared."""
        return clients[clients < self._data.present]

    @property
    def fused(self) -> bool:
        """Whether the model has a program, or goes through autograd."""
        return self._program is not None

    @property
    def chunk(self) -> int:
        """How many clients are trained side by side."""
        if self.execution.chunk is not None:
            return self.execution.chunk
        if not self.fused:
            return max(1, min(_UNFUSED, _CACHE // (4 * self.model.size)))
        if self._sparse is not None:
            return self._sparse.at_once  # they are trained one after the other, and calls take a while
        memory, most = (_CACHE, 16) if self._device.type == "cpu" else (_DEVICE_MEMORY, 256)
        return max(1, min(most, memory // (4 * self.model.size)))

    def train(
        self, weights: ArrayLike | Tensor, clients: Clients, *, randomness: Randomness, round: int
    ) -> Iterator[Chunk]:
        """Train these clients from these weights; their contributions come in chunks, always in the same order.

        Use a chunk before you take the next one. Until the iterator is used up or closed, torch computes with one
        thread.
        """
        task, groups = self._task(weights, randomness, round), self._groups([int(client) for client in clients])
        with one_thread(), self._workers() as staff:
            if staff is None:
                yield from (self._train_group(task, group) for group in groups)
            else:
                yield from staff.in_order(task, groups, here=self._train_group)

    def train_and_sum(
        self,
        weights: ArrayLike | Tensor,
        clients: Clients,
        shortening: Shortening,
        *,
        randomness: Randomness,
        round: int,
    ) -> Summed:
        """Train these clients from these weights and add up their contributions, shortened, where they are computed.

        Guarantee: the sum has the same bits with any number of threads.
        """
        task, groups = self._task(weights, randomness, round), self._groups([int(client) for client in clients])
        with one_thread(), self._workers() as staff:
            if staff is None:
                chunks = (self._train_group(task, group) for group in groups)
                return summed(chunks, shortening, size=self.model.size)
            return staff.summed(task, groups, shortening, here=self._train_group)

    def _task(self, weights: ArrayLike | Tensor, randomness: Randomness, round: int) -> _Task:
        # A copy, because sending a tensor moves its memory, and the caller may have other views of it.
        return _Task(self.model.flat(weights).to(self._device).clone(), randomness, round)

    @contextmanager
    def _workers(self) -> Iterator[Staff[_Task] | None]:
        """Several workers, who stay for the next cohort; None if this process works alone."""
        if self.execution.threads == 1 or self._device.type != "cpu" or not CAN_FORK:
            yield None
            return
        staff, self._staff = self._staff, None
        if staff is None:
            staff = Staff(self._train_group, workers=self.execution.threads, size=self.model.size, most=self.chunk)
        try:
            yield staff
        finally:
            if staff.fit and self._staff is None:
                self._staff = staff
            else:
                staff.dismiss()

    def measured(self, clients: Clients, *, randomness: Randomness) -> Execution:
        """The execution with the chunk that is the fastest for these clients, by a measurement of well under a second.

        Record its `chunk` where a run has to repeat itself bit for bit.
        """
        start = self.model.initial(randomness).to(self._device)
        probed = [int(client) for client in clients]
        self._check(probed)
        if not self.fused or self._sparse is not None or not probed:
            return replace(self.execution, chunk=self.chunk)
        seconds = {chunk: math.inf for chunk in _CANDIDATES if chunk <= len(probed)}
        with one_thread():
            for _ in range(_PROBES):  # the best of several, taking turns, because machines have other things to do
                for chunk, best in seconds.items():
                    several = _shortened(self._batches(probed[:chunk], randomness, 0))
                    begin = time.perf_counter()
                    self._train_batches(start, probed[:chunk], several)
                    seconds[chunk] = min(best, (time.perf_counter() - begin) / chunk)
        good = _NO_SLOWER * min(seconds.values())
        return replace(self.execution, chunk=min(chunk for chunk, best in seconds.items() if best <= good))

    def _check(self, clients: Sequence[int]) -> None:
        for client in clients:
            if not 0 <= client < self._data.present:
                remedy = f"give numbers from 0 to {self._data.clients - 1}, of clients that are there"
                raise ConfigError(field="clients", value=client, remedy=remedy)
            if len(self._data.examples(client)) == 0:
                raise DataError(f"client {client} has no examples: leave it out of the cohort")

    def _groups(self, clients: Sequence[int]) -> list[list[int]]:
        """Groups of clients that are alike in size and features."""
        self._check(clients)
        sizes = {client: len(self._data.examples(client)) for client in clients}
        most = self.chunk
        if self._sparse is not None:  # the group makes no difference
            most = min(most, -(-len(clients) // self.execution.threads))
        elif not self.fused:  # which features are left out depends on the group, and rounding on these: not on threads
            most = min(most, -(-len(clients) // _SHARES))
        groups: list[list[int]] = []
        for client in sorted(clients, key=lambda k: (sizes[k], self._store.extent(k), k)):
            group = groups[-1] if groups else []
            if group and len(group) < most and self._alike(sizes[group[0]], sizes[client]):
                group.append(client)
            else:
                groups.append([client])
        return groups

    def _alike(self, smallest: int, size: int) -> bool:
        if self.local.plain or self.local.batches is not None or self.local.batch_size is None:
            return size <= _ALIKE * smallest
        # With momentum, weight decay or a proximal term a step without examples would still be a step.
        return -(-size // self.local.batch_size) == -(-smallest // self.local.batch_size)

    def _batches(self, group: Sequence[int], randomness: Randomness, round: int) -> Batches:
        return batches.side_by_side(
            [
                batches.draw(
                    len(self._data.examples(client)), self.local, randomness=randomness, round=round, client=client
                )
                for client in group
            ]
        )

    def _train_group(self, task: _Task, group: Group) -> Chunk:
        return self._train_batches(task.weights, group, self._batches(group, task.randomness, task.round))

    def _train_batches(self, start: Tensor, group: Sequence[int], several: Batches) -> Chunk:
        if self._sparse is not None:
            return Chunk(tuple(group), self._sparse.train(start, group, several))
        feed = self._store.feed(group, several)
        layout = self.model.layout
        places = zip(start.split_with_sizes(list(layout.sizes)), layout.shapes, strict=True)
        parameters = [place.view(shape) for place, shape in places]
        pieces: list[Piece]
        if self._program is None or self.local.loss.canonical is None:
            # Kept only after a success, because a failure may leave anything behind.
            worker, self._autograd = self._autograd, None
            worker = Autograd(self.model, self.local, self._device) if worker is None else worker
            pieces = worker.train(parameters, feed)
            self._autograd = worker
        else:
            pieces = program.train(self._program, parameters, feed, self.local, loss=self.local.loss.canonical)
        return Chunk(tuple(group), pieces)


def _shortened(several: Batches) -> Batches:
    steps = max(1, _PROBE_ROWS // several.width)
    return Batches(positions=several.positions[:, :steps], sizes=several.sizes[:, :steps])


def _outputs(model: Model, data: ClientTensors) -> int:
    """The number of outputs for one example, by trying it with zeros."""
    try:
        with torch.no_grad():
            outputs: Tensor = model.with_weights(model.weights)(torch.zeros(2, *data.shape))
    except (RuntimeError, ValueError, IndexError) as error:
        raise DataError(f"the model cannot take examples of the shape {data.shape}: {error}") from error
    return outputs[0].numel()
