"""The cohort engine: local training of many clients, a few at a time, whose memory does not grow with the cohort."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.errors import ConfigError, DataError
from incrowd.learning import batches
from incrowd.learning.arithmetic import ieee
from incrowd.learning.batches import Batches, side_by_side
from incrowd.learning.chunk import Chunk
from incrowd.learning.dropout import refuse_dropout
from incrowd.learning.fallback import Autograd, starts_linear
from incrowd.learning.fused import Fused
from incrowd.learning.local import LocalTraining
from incrowd.learning.models import Model
from incrowd.learning.pieces import Piece
from incrowd.learning.program import compile_program
from incrowd.learning.store import MEMORY, ClientTensors, Feed, Store, mostly_zero
from incrowd.learning.threads import one_thread
from incrowd.learning.total import Shortening, Summed, summed
from incrowd.learning.trial import tried
from incrowd.learning.workers import CAN_FORK, Group, Staff
from incrowd.privacy.mechanism.clipped_sum import ClientNumbers

if TYPE_CHECKING:
    from incrowd.learning.sparse import Sparse

_CACHE = 8 * 2**20  # bytes of weights that a chunk may have on a CPU, about what stays in its caches
_DEVICE_MEMORY = 2**30  # the same on an accelerator, where more clients at once are better
_SPARSE = 0.6  # of so many zeros compiled loops that skip them are faster than matrix products
_UNFUSED = 8  # what autograd has trained is measured and added up a few at a time, which leaves its caches alone
_SHARES = 16  # so many chunks at least, for processes to share out


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How the work is done, which changes its speed and memory, and nothing else.

    With more than one thread each has a process of its own, because Python's threads were measured to wait for each
    other. Of `chunk` clients the contributions are in memory at once.

    Edge cases: without `chunk` it follows from the model. On an accelerator, and where processes cannot be forked
    (other systems than Linux), there is one thread. On an accelerator a chunk is trained side by side, always so many:
    that its library treats the matrices of one call alike is assumed, and another chunk may round differently.
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

    Guarantee: what a client contributes is, bit for bit, a function of its own examples, the weights, the settings and
    the stream of its round and number. Other clients, the chunk, the threads and the order change nothing: every client
    is trained on its own, in batches that nobody else fills up, in memory that begins where a processor likes it; which
    way it is trained follows from the model, the settings and its own examples. Memory does not grow with the cohort.

    Edge cases: examples that the model cannot take, labels that the loss does not fit, a client without examples or one
    that does not exist: refused before anything is trained. What a program told torch before, so that it computes less
    exactly, does not hold here (see `incrowd.learning.arithmetic`). Another processor or release of torch may round
    differently. What a module or a loss of your own remembers outside of the module (in a global variable, say) is not
    noticed.
    """

    def __init__(
        self, model: Model, data: ClientTensors, local: LocalTraining, execution: Execution | None = None
    ) -> None:
        self.model = model
        self.local = local
        self.execution = execution or Execution()
        self._device = torch.device(self.execution.device)
        self._data = data.to(self._device)
        refuse_dropout(model.module, whose="client", own=True)
        tried(model, data.features, data.labels, local.loss, each_alone=False, what="examples")
        canonical = local.loss.fast(data.labels) if data.plain else None
        self._program = None if canonical is None else compile_program(model.module, data.shape)
        # Weight decay changes the weights of features that are always zero, too.
        sparing = self._program is not None or (data.plain and starts_linear(model.module, data.shape))
        sparing = sparing and local.weight_decay == 0
        self._store = Store(self._data, sparing=sparing, memory=MEMORY // self.execution.threads)
        self._fused: Fused | None = None
        if self._program is not None and canonical is not None:
            self._fused = Fused(self._program, local, canonical)
        self._compiled = np.zeros(data.present, bool)  # who is trained by compiled loops
        self._sparse = self._path_for_sparse()
        self._staff: Staff[_Task] | None = None
        self._autograd: Autograd | None = None

    def _path_for_sparse(self) -> "Sparse | None":
        if self._program is None or not self._store.sparing or not self.local.plain:
            return None
        sparse = mostly_zero(self._data, _SPARSE)
        self._compiled = sparse | self._program.small
        if not self._compiled.any():
            return None
        from incrowd.learning.sparse import Sparse  # numba takes a while to start

        return Sparse(self._program, self._store, self.local, sparse)

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
        """Of how many clients the contributions are in memory at once, at most."""
        if self.execution.chunk is not None:
            return self.execution.chunk
        if self._on_accelerator:
            return max(1, min(256, _DEVICE_MEMORY // (4 * self.model.size))) if self.fused else 1
        if not self.fused:
            return max(1, min(_UNFUSED, _CACHE // (4 * self.model.size)))
        return 1 if self._sparse is None else self._sparse.at_once  # calls take a while

    @property
    def _on_accelerator(self) -> bool:
        return self._device.type != "cpu"

    def train(
        self, weights: ArrayLike | Tensor, clients: ClientNumbers, *, randomness: Randomness, round: int
    ) -> Iterator[Chunk]:
        """Train these clients from these weights; their contributions come in chunks, always in the same order.

        Use a chunk before you take the next one. Until the iterator is used up or closed, torch computes with one
        thread.
        """
        task, groups = self._task(weights, randomness, round), self._groups([int(client) for client in clients])
        with one_thread(), self._workers() as staff:
            if staff is None:
                for group in groups:
                    yield from self._train_plainly(task, group)
            else:
                yield from staff.in_order(task, groups, here=self._train_plainly)

    def train_and_sum(
        self,
        weights: ArrayLike | Tensor,
        clients: ClientNumbers,
        shortening: Shortening,
        *,
        randomness: Randomness,
        round: int,
    ) -> Summed:
        """Train these clients from these weights and add up their contributions, shortened, where they are computed.

        Guarantee: the sum is that of the contributions, each as it is when nobody else is there: exact in any order.
        """
        task, groups = self._task(weights, randomness, round), self._groups([int(client) for client in clients])
        with one_thread(), ieee(self.execution.device), self._workers() as staff:
            if staff is None:
                chunks = (chunk for group in groups for chunk in self._train_group(task, group))
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

    def _check(self, clients: Sequence[int]) -> None:
        for client in clients:
            if not 0 <= client < self._data.present:
                remedy = f"give numbers from 0 to {self._data.clients - 1}, of clients that are there"
                raise ConfigError(field="clients", value=client, remedy=remedy)
            if len(self._data.examples(client)) == 0:
                raise DataError(f"client {client} has no examples: leave it out of the cohort")

    def _groups(self, clients: Sequence[int]) -> list[list[int]]:
        """Who is worked on together; it makes no difference to anyone."""
        self._check(clients)
        kinds = {client: self._kind(client) for client in clients}
        share = max(1, -(-len(clients) // self._shares))
        groups: list[list[int]] = []
        for client in sorted(clients, key=lambda k: (kinds[k], k)):
            group = groups[-1] if groups else []
            if group and len(group) < min(share, self._most(client)) and kinds[group[0]] == kinds[client]:
                group.append(client)
            else:
                groups.append([client])
        return groups

    @property
    def _shares(self) -> int:
        """Into how many groups the work is divided at least."""
        if self._on_accelerator:
            return 1
        return self.execution.threads if self.fused else _SHARES

    def _most(self, client: int) -> int:
        if self._sparse is not None and self._compiled[client]:
            return min(self.chunk, self._sparse.at_once)
        return 1 if self._sparse is not None and self.execution.chunk is None else self.chunk

    def _kind(self, client: int) -> tuple[bool, int]:
        """Only clients of one kind can come together."""
        if self._on_accelerator:
            return False, len(self._data.examples(client))
        return bool(self._compiled[client]), int(self._sparse is not None and self._sparse.holds(client))

    def _batches(self, client: int, task: _Task) -> Batches:
        examples = len(self._data.examples(client))
        return batches.draw(examples, self.local, randomness=task.randomness, round=task.round, client=client)

    def _train_plainly(self, task: _Task, group: Group) -> list[Chunk]:
        with ieee(self.execution.device):
            return self._train_group(task, group)

    def _train_group(self, task: _Task, group: Group) -> list[Chunk]:
        """The contributions of a group, in chunks."""
        drawn = [self._batches(client, task) for client in group]
        if self._sparse is not None and self._compiled[group[0]]:
            return [Chunk(tuple(group), self._sparse.train(task.weights, group, drawn))]
        layout = self.model.layout
        places = zip(task.weights.split_with_sizes(list(layout.sizes)), layout.shapes, strict=True)
        parameters = [place.view(shape) for place, shape in places]
        if self._on_accelerator and self._fused is not None:
            return [self._side_by_side(self._fused, parameters, group, drawn)]
        return [
            Chunk((client,), self._train_one(task, client, parameters, self._store.feed([client], side_by_side([own]))))
            for client, own in zip(group, drawn, strict=True)
        ]

    def _train_one(self, task: _Task, client: int, parameters: Sequence[Tensor], feed: Feed) -> list[Piece]:
        if self._fused is not None:
            return self._fused.train(parameters, feed)
        # Kept only after a success, because a failure may leave anything behind.
        worker, self._autograd = self._autograd, None
        worker = Autograd(self.model, self.local, self._device) if worker is None else worker
        seed = 0
        if worker.draws:
            seed = int(task.randomness.stream("masks", task.round, client).bits(1)[0] >> np.uint64(1))
        pieces = worker.train(parameters, feed, seed=seed)
        self._autograd = worker
        return pieces

    def _side_by_side(
        self, fused: Fused, parameters: Sequence[Tensor], group: Group, drawn: Sequence[Batches]
    ) -> Chunk:
        """Clients of equal size on an accelerator, always equally many, because their number may decide on rounding."""
        missing = self.chunk - len(group)
        feed = self._store.feed([*group, *group[-1:] * missing], side_by_side([*drawn, *[drawn[-1]] * missing]))
        pieces = fused.train(parameters, feed)
        return Chunk(tuple(group), [piece.part(slice(len(group))) for piece in pieces])
