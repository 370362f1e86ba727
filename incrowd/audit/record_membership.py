"""Was this record in? What people would try on the model that a federation of silos releases.

The run of silos is trained again and again: its own plans, accounts, batches, clip, noise and mean. In each silo some
records are targets, and each is in or out by a fair coin; all others are always in. So few are out that every silo
stays within what its declared number of records allows, and nothing of the settings has to be another for the audit.
The attacks are those of `membership`.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from incrowd._random import Floats, Integers, SeededRandomness
from incrowd.algorithms import FedAvg, SiloCohort
from incrowd.algorithms.silos import Answer, Ask
from incrowd.data.examples import Examples
from incrowd.errors import ConfigError
from incrowd.learning.arithmetic import with_threads
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.learning.dpsgd.records import Records
from incrowd.learning.execution import Execution
from incrowd.learning.inputs import chosen
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.sampling import fewest
from incrowd.runs.silo_work import SiloWork


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordTargets:
    """The records of some silos that are in or out by a coin: the first of each, so many as may be missing."""

    federation: SiloWork
    unit: ClassVar[str] = "record"

    def __post_init__(self) -> None:
        if not len(self.rows):
            remedy = "a record may be left out of ten or more: give silos with more records"
            given = [plan.config.members for plan in self.federation.plans]
            raise ConfigError(field="membership", value=given, remedy=remedy)

    @property
    def public(self) -> bool:
        """See `Population`."""
        return self.federation.data.public and not self.federation.elsewhere

    @property
    def delta(self) -> float:
        """See `Population`."""
        return self.federation.config.privacy.delta

    @property
    def owners(self) -> Integers:
        """See `Population`."""
        return np.arange(len(self.rows))

    @cached_property
    def each(self) -> tuple[int, ...]:
        """How many targets each silo has."""
        both = zip(self.federation.records, self.federation.plans, strict=True)
        return tuple(max(0, len(records) - fewest(plan.config.members)) for records, plan in both)

    @cached_property
    def rows(self) -> Integers:
        """Which examples of the data they are, silo by silo."""
        data = self.federation.data
        return np.concatenate([data.client(silo)[:count] for silo, count in enumerate(self.each)]).astype(np.int64)

    @property
    def examples(self) -> Examples:
        """The targets themselves."""
        return self.federation.data.examples.some(self.rows)

    def trained(
        self, inside: NDArray[np.bool_], randomness: SeededRandomness, *, private: bool
    ) -> tuple[nn.Module, float]:
        """See `Population`; nobody is charged for a model that is not private."""
        silos = self.without(inside, randomness)
        if not private:
            asks = tuple(_noiseless(silos, place) for place in range(len(silos.plans)))
            return self._published(silos.asking(asks)), 0.0
        ledgers = [Ledger.in_memory(budget=plan.budget, relation=plan.relation) for plan in silos.plans]
        members = [silos.silo(place, ledger, label="audit") for place, ledger in enumerate(ledgers)]
        algorithm = silos.asking(tuple(member.answer for member in members))
        return self._published(algorithm), max(member.epsilon for member in members)

    def _published(self, algorithm: FedAvg[SiloCohort]) -> nn.Module:
        """The model after all rounds."""
        state = algorithm.init()
        for _ in range(algorithm.cohort.rounds):
            state, _ = algorithm.apply(state)
        return self.federation.model.with_weights(state.published)

    def without(self, inside: NDArray[np.bool_], randomness: SeededRandomness) -> SiloWork:
        """The silos without the targets that are out; their plans are what they were."""
        federation = self.federation
        coins = np.split(inside, np.cumsum(self.each)[:-1])
        records = tuple(_kept(held, coin) for held, coin in zip(federation.records, coins, strict=True))
        config = federation.config
        engines = tuple(
            BatchedRecords(
                federation.model,
                some,
                config.local,
                loss=federation.loss,
                execution=Execution(device=config.run.device),
            )
            for some in records
        )
        return replace(federation, records=records, engines=engines, randomness=randomness)


def _kept(records: Records, coins: NDArray[np.bool_]) -> Records:
    """A silo's records without the first ones whose coins say out."""
    stay = np.concatenate([np.flatnonzero(coins), np.arange(len(coins), len(records))])
    rows = torch.from_numpy(stay.astype(np.int64))
    return replace(records, features=chosen(records.features, rows), labels=records.labels.index_select(0, rows))


def _noiseless(silos: SiloWork, place: int) -> Ask:
    """A silo that learns as its plan has it, but for the noise."""
    plan, engine = silos.plans[place], silos.engines[place]

    def answer(number: int, weights: Floats) -> Answer:
        start = weights.astype(np.float32)
        batches = silos.randomness.stream("batches", place, number)
        with with_threads(silos.threads):
            trained = engine.train(start, plan.training(), noise=lambda total: total, batches=batches)
        return Answer(silo=silos.names[place], round=number, epsilon=0.0, update=trained.update(start))

    return answer
