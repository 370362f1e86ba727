"""Private queries: the mean over clients of one vector each, clipped, noised and paid for as one round of a plan.

>>> import torch
>>> from incrowd import Clients, Budget, Everyone, Ledger, PlanConfig, PrivateRun, SeededRandomness, constant
>>> from incrowd.learning import MeanQuery
>>> clients = Clients.from_arrays([[3.0], [5.0], [4.0]], [0, 1, 1], owner=[0, 0, 1], classes=2)
>>> query = MeanQuery(name="column", size=1, bound=10.0, vector=lambda own: own.features.mean(0))
>>> plan = PlanConfig(members=2, schedule=constant(rounds=1, cohort=2), sampling=Everyone).calibrate(
...     Budget(epsilon=8, delta=0.1))
>>> ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
>>> run = PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(0), size=query.width)
>>> answer = query.ask(clients, run)
>>> answer.mean.shape, answer.noise_std < 10
((1,), True)
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from incrowd import _validate
from incrowd._random import Floats
from incrowd.data import Clients
from incrowd.errors import ConfigError
from incrowd.learning.arithmetic import one_thread
from incrowd.learning.contributions import ShortenedSum
from incrowd.learning.inputs import chosen, meant, zeros
from incrowd.learning.isolation import refused, remembered
from incrowd.learning.store import ClientTensors
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.clipped_sum import ClientNumbers
from incrowd.privacy.mechanism.clipping import FixedClip, NormalisedClip, part_norms
from incrowd.privacy.release import PrivateRun, Release

LONG = 2.0**20
"""Contributions are longer than any bound, so that every clip scales all of them to its bound."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The released mean and the standard deviation of the noise in each of its numbers."""

    mean: Floats
    noise_std: float


class ClientExamples(NamedTuple):
    """A client's own examples."""

    features: Any
    labels: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class MeanQuery:
    """The mean over the expected cohort of a `vector` of so many numbers that each client computes from its own
    examples.

    Guarantee: a client's vector is clipped to length `bound`, and enters one round of a plan, which clips, charges and
    noises it as any other. A vector that is not finite counts as zeros.

    Edge cases: a clip other than normalised or fixed, correlated noise, and a function that returns other numbers for
    the same examples, or another number of them, are a `ConfigError`.
    """

    name: str
    size: int
    vector: Callable[[ClientExamples], ArrayLike]
    bound: float = 1.0

    def __post_init__(self) -> None:
        _validate.count(size=self.size)
        _validate.positive(bound=self.bound)

    @property
    def width(self) -> int:
        """The least length of a contribution: the last number pads its norm up to the bound."""
        return self.size + 1

    def ask(self, data: Clients, private: PrivateRun, *, number: int = 0) -> Answer:
        """Ask the cohort of a round; declared clients that do not exist contribute zeros."""
        tensors = ClientTensors.of(data)
        self.check(tensors, private)
        private.check_clients(clients=data.clients, declared=data.declared is not None)
        private.name_third_party(f"query {self.name}")
        opened = private.round(number)
        trainer = self.trainer(tensors, width=private.size)
        opened.ask(trainer, present=lambda clients: clients[clients < tensors.present])
        return self.answer(opened.release())

    def check(self, data: ClientTensors, private: PrivateRun) -> None:
        """Refuse a plan that scales contributions otherwise, and a function that does not fit synthetic examples."""
        start = private.start()
        if not isinstance(start.clip, NormalisedClip | FixedClip) or start.clip.clip_norm > LONG:
            remedy = f"give a normalised or a fixed clip of at most {LONG:.0f}"
            raise ConfigError(field="clip", value=start.clip, remedy=remedy)
        if start.noise is not None:
            raise ConfigError(field="noise", value="correlated", remedy="ask a query under independent noise")
        if private.size < self.width:
            remedy = f"the query {self.name} needs {self.width} numbers"
            raise ConfigError(field="size", value=private.size, remedy=remedy)
        features = meant(zeros(data.features, 3), scale=data.scale, offset=data.offset)
        made_up = ClientExamples(features, data.labels.new_zeros(3, *data.labels.shape[1:]))
        first, before = _numbers(self.vector(made_up)), remembered(self.vector)
        second = _numbers(self.vector(made_up))
        if remembered(self.vector) != before:
            raise refused("vector", self.name)
        if first.shape != (self.size,) or not np.array_equal(first, second, equal_nan=True):
            remedy = f"return the same {self.size} numbers for the same examples"
            raise ConfigError(field="vector", value=first.shape, remedy=remedy)

    def row(self, data: ClientTensors, client: int) -> Floats:
        """A client's vector in units of the bound: a function of its own examples alone."""
        own = torch.from_numpy(data.examples(client).astype(np.int64)).to(data.device)
        features = meant(chosen(data.features, own), scale=data.scale, offset=data.offset)
        vector = _numbers(self.vector(ClientExamples(features, data.labels[own]))) / self.bound
        vector = vector if vector.shape == (self.size,) and np.isfinite(vector).all() else np.zeros(self.size)
        return vector / max(1.0, float(np.linalg.norm(vector)))

    def trainer(self, data: ClientTensors, *, width: int) -> "VectorTrainer":
        """The trainer of a round of so many numbers: see `incrowd.privacy.release.Trainer`."""

        def rows(clients: Sequence[int]) -> Floats:
            found, before = np.zeros((len(clients), width)), remembered(self.vector)
            with one_thread(), torch.no_grad():
                for row, client in zip(found, clients, strict=True):
                    vector = self.row(data, client)
                    row[: self.size] = LONG * vector
                    row[-1] = LONG * math.sqrt(max(0.0, 1 - float(vector @ vector)))
            if remembered(self.vector) != before:
                raise refused("vector", self.name)
            return found

        return VectorTrainer(rows)

    def answer(self, release: Release) -> Answer:
        """The mean that a round released."""
        unit = self.bound / release.clip_norm
        return Answer(mean=unit * release.mean[: self.size], noise_std=unit * release.noise_std / release.cohort)


@dataclass(frozen=True, eq=False)
class VectorTrainer:
    """Clients that contribute a row of numbers each, computed when asked for."""

    rows: Callable[[Sequence[int]], Floats] = field(repr=False)

    def cohort(self, clients: ClientNumbers, *, round: int) -> "VectorCohort":
        """The contributions of these clients."""
        return VectorCohort(self.rows, [int(client) for client in clients])


@dataclass(frozen=True, eq=False)
class VectorCohort:
    """The contributions of some clients: see `incrowd.privacy.mechanism.clipped_sum.CohortContributions`."""

    compute: Callable[[Sequence[int]], Floats] = field(repr=False)
    clients: Sequence[int]

    def chunks(self) -> Iterator["VectorRows"]:
        """All of them at once: they are a few numbers each."""
        yield VectorRows(self.clients, self.compute(self.clients))

    def summed(
        self, *, bound: float, parts: tuple[int, ...] | None, factors: Callable[[Floats], Floats]
    ) -> ShortenedSum:
        """Their sum, each times the factors that its norms ask for, in whole steps of `grid.coarse_step(bound)`."""
        rows = self.compute(self.clients)
        norms = part_norms(rows, parts)
        shortened = rows * np.repeat(factors(norms), (rows.shape[1],) if parts is None else parts, axis=1)
        step = grid.coarse_step(bound)
        return ShortenedSum(norms=norms, total=np.trunc(shortened / step).sum(axis=0) * step)


@dataclass(frozen=True, eq=False)
class VectorRows:
    """Contributions and whose they are: see `incrowd.privacy.mechanism.clipped_sum.ContributionRows`."""

    clients: Sequence[int]
    contributions: Floats = field(repr=False)

    def rows(self) -> NDArray[np.float64]:
        """See `ContributionRows.rows`."""
        return self.contributions


def _numbers(found: ArrayLike) -> Floats:
    return np.asarray(found.numpy(force=True) if isinstance(found, Tensor) else found, np.float64)
