"""The cohort engine: local training of many clients, a few at a time, whose memory does not grow with the cohort."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from incrowd._random import Floats, Randomness, SeededRandomness
from incrowd.errors import ConfigError, DataError
from incrowd.learning.backends import BACKENDS
from incrowd.learning.backends.backend import Backend, Choice, ClientRound, MakeBackend, Task
from incrowd.learning.contributions import Contributions, ShortenedSum, Shortening, summed
from incrowd.learning.execution import Execution, ieee, one_thread
from incrowd.learning.inputs import ClientTensors, draw_batches
from incrowd.learning.local_algorithms import algorithm_of, sent_parts
from incrowd.learning.losses import CROSS_ENTROPY, Loss, as_loss, check_label_shares
from incrowd.learning.mean_query import VectorCohort, label_query
from incrowd.learning.models import Model
from incrowd.learning.modules import drawing_from, ours
from incrowd.learning.trial import OwnCode, tried, tried_with_tokens
from incrowd.learning.workers import CAN_FORK, ClientGroup, WorkerPool
from incrowd.privacy.mechanism.clipped_sum import ClientNumbers
from incrowd.settings import Local
from incrowd.types import LocalAlgorithm

_MADE_UP = 3  # examples


class _CohortStart(NamedTuple):
    """The weights, randomness and round of a cohort."""

    weights: Tensor
    randomness: Randomness
    round: int


class CohortEngine:
    """Trains clients of one data set with one model. `loss` defaults to the loss that `local` names.

    Guarantee: a client's contribution is, bit for bit, a function of its own examples, the weights, the settings and
    the stream of its round and number. Other clients, the chunk, the threads and the order change nothing: every client
    trains alone, in batches of its own examples, and they, the model and the settings choose its backend. Memory does
    not grow with the cohort. A module or a loss of your own that keeps state is refused, at the latest after it ran.

    Edge cases: another processor or release of torch may round differently.
    """

    def __init__(
        self,
        model: Model,
        data: ClientTensors,
        local: Local,
        execution: Execution | None = None,
        *,
        loss: Loss | None = None,
        algorithm: LocalAlgorithm | None = None,
        backends: Sequence[MakeBackend] = BACKENDS,
    ) -> None:
        local.check_whole()
        self.model = model
        self.local = local
        self.loss = as_loss(local.loss or CROSS_ENTROPY) if loss is None else loss
        self.execution = execution or Execution()
        self._data = data.to(torch.device(self.execution.device))
        check_label_shares(local.label_shares, self.loss)
        outputs = tried(model, data.features, data.labels, self.loss, each_alone=False, what="examples")
        self.algorithm = algorithm or algorithm_of(local)
        self.parts = sent_parts(model.parts, self.algorithm)
        """The sizes of the parts of the vector that a client sends: the model's layers, then the algorithm's rest."""
        self.size = sum(self.parts)
        """The length of that vector, and of the one that a round starts with."""
        self._own = OwnCode(model.module, self.loss, self.algorithm)
        tried_with_tokens(model, data.features, what="examples")
        settings: dict[str, Any] = {"local": local, "algorithm": self.algorithm, "execution": self.execution}
        task = Task(model=model, loss=self.loss, data=self._data, outputs=outputs, **settings)
        alone = task.on_accelerator or not CAN_FORK
        self._processes = 1 if alone else self.execution.threads
        with drawing_from(0, task.device):  # modules that draw are tried
            self._choice = Choice(backends, task)
        self._pool: WorkerPool | None = None
        self.label_query = label_query(local, self._data.labels, self.loss, outputs)

    @property
    def backends(self) -> Sequence[Backend]:
        """The backends that train at least one client."""
        return self._choice.backends

    @property
    def third_party(self) -> str:
        """The loss, algorithm and backends that are not incrowd's, in words; a clip bounds any module."""
        backends = [f"backend {type(one).__name__}" for one in self.backends if not ours(one)]
        return ", ".join([*self._own.names, *backends])

    @property
    def clients(self) -> int:
        """The public number of clients."""
        return self._data.clients

    @property
    def data(self) -> ClientTensors:
        """The clients' examples, where it computes. Private."""
        return self._data

    def present(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the clients that exist, in the same order. Private where their number is declared."""
        return clients[clients < self._data.present]

    @property
    def chunk(self) -> int:
        """The number of contributions in memory at once, at most."""
        return self._choice.at_once

    def rehearse(self, weights: ArrayLike | Tensor) -> None:
        """Train a synthetic client from these weights: an error reveals nothing about the clients."""
        execution = replace(self.execution, threads=1, compile="never")
        made_up = CohortEngine(self.model, self._data.made_up(_MADE_UP), self.local, execution, loss=self.loss)
        for _ in made_up.train(weights, [0], randomness=SeededRandomness(seed=0), round=0):
            pass

    def train(
        self, weights: ArrayLike | Tensor, clients: ClientNumbers, *, randomness: Randomness, round: int
    ) -> Iterator[Contributions]:
        """Train these clients in this process, with one thread. Use a chunk before you take the next one."""
        start, groups = self._start_with(weights, randomness, round), self._groups([int(client) for client in clients])
        with one_thread():
            for group in groups:
                with ieee(self.execution.device):
                    chunks = self._train_group(start, group)
                yield from chunks

    def train_and_sum(
        self,
        weights: ArrayLike | Tensor,
        clients: ClientNumbers,
        shortening: Shortening,
        *,
        randomness: Randomness,
        round: int,
    ) -> ShortenedSum:
        """Train these clients and add up their clipped contributions where they are computed, exactly."""
        start, groups = self._start_with(weights, randomness, round), self._groups([int(client) for client in clients])
        with one_thread(), ieee(self.execution.device):
            if self._processes == 1:
                chunks = (chunk for group in groups for chunk in self._train_group(start, group))
                return summed(chunks, shortening, size=self.size)
            pool, self._pool = self._pool, None
            pool = pool or WorkerPool(self._train_group, workers=self._processes, size=self.size)
            try:
                return pool.summed(start, groups, shortening, here=self._train_group)
            finally:
                if pool.fit and self._pool is None:
                    self._pool = pool  # it stays for the next cohort
                else:
                    pool.dismiss()

    def _start_with(self, weights: ArrayLike | Tensor, randomness: Randomness, round: int) -> _CohortStart:
        start = torch.as_tensor(weights).to(torch.float32)
        if start.shape != (self.size,):
            remedy = f"give one vector of {self.size} numbers, as many as a client sends"
            raise ConfigError(field="weights", value=tuple(start.shape), remedy=remedy)
        # A copy, because sending a tensor moves its memory, and the caller may have other views of it.
        return _CohortStart(start.to(self._data.device).clone(), randomness, round)

    def _groups(self, clients: Sequence[int]) -> list[ClientGroup]:
        """Divide clients into groups, which change no client's update."""
        for client in clients:
            if not 0 <= client < self._data.present:
                remedy = f"give numbers from 0 to {self._data.clients - 1}, of clients that are there"
                raise ConfigError(field="clients", value=client, remedy=remedy)
            if len(self._data.examples(client)) == 0:
                raise DataError(f"client {client} has no examples: leave it out of the cohort")
        backend, kind = self._choice.of, {client: self._choice.kind(client) for client in clients}
        groups: list[ClientGroup] = []
        for client in sorted(clients, key=lambda k: (kind[k], backend(k).effort(k), k)):
            group, own = groups[-1] if groups else [], backend(client)
            share = max(1, -(-len(clients) // max(self._processes, own.shares)))
            if group and len(group) < min(share, own.at_once) and kind[group[0]] == kind[client]:
                group.append(client)
            else:
                groups.append([client])
        return groups

    def _client_round(self, client: int, start: _CohortStart) -> ClientRound:
        examples = len(self._data.examples(client))
        batches = draw_batches(examples, self.local, randomness=start.randomness, round=start.round, client=client)
        return ClientRound(client=client, round=start.round, batches=batches, randomness=start.randomness)

    def _train_group(self, start: _CohortStart, group: ClientGroup) -> list[Contributions]:
        """The contributions of a group."""
        with self._own.unchanged():
            rounds = [self._client_round(client, start) for client in group]
        with self._own.unchanged():
            return self._choice.of(group[0]).train(start.weights, rounds)


@dataclass(frozen=True, eq=False)
class EngineTrainer:
    """The engine as an `incrowd.privacy.release.Trainer`; `see` is shown every chunk, which a simulation may."""

    engine: CohortEngine
    weights: ArrayLike | Tensor
    randomness: Randomness = field(kw_only=True)
    see: Callable[[Contributions], object] | None = field(kw_only=True, default=None)

    def cohort(self, clients: Sequence[int] | NDArray[np.int64], *, round: int) -> "EngineCohort | VectorCohort":
        """The contributions of these clients to a round that starts with the weights."""
        its, query = [int(client) for client in clients], self.engine.label_query
        if query is not None and round == 0:
            return query.trainer(self.engine.data, width=self.engine.model.size).cohort(its, round=round)
        return EngineCohort(
            engine=self.engine, weights=self.weights, clients=its, randomness=self.randomness, round=round, see=self.see
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineCohort:
    """Clients of an engine's data, trained in a round from these weights when their contributions are asked for."""

    engine: CohortEngine
    weights: ArrayLike | Tensor
    clients: Sequence[int]
    randomness: Randomness
    round: int
    see: Callable[[Contributions], object] | None = None

    def chunks(self) -> Iterator[Contributions]:
        """See `CohortEngine.train`."""
        chunks = self.engine.train(self.weights, self.clients, randomness=self.randomness, round=self.round)
        for chunk in chunks:
            if self.see is not None:
                self.see(chunk)
            yield chunk

    def summed(
        self, *, bound: float, parts: tuple[int, ...] | None, factors: Callable[[Floats], Floats]
    ) -> ShortenedSum:
        """The contributions times factors of their norms, added up where they are computed; see `Shortening`."""
        how = Shortening(bound=bound, parts=parts, factors=factors)
        if self.see is not None:
            return summed(self.chunks(), how, size=self.engine.model.size)
        return self.engine.train_and_sum(self.weights, self.clients, how, randomness=self.randomness, round=self.round)
