"""A federation's clients: the engine or a network trains them, the server clips, charges and noises their sum."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from incrowd import _validate
from incrowd._random import Floats, Integers, Randomness
from incrowd.algorithms.fedavg import Answers, Diagnostics, State, Watch, noise_to_signal
from incrowd.errors import ConfigError
from incrowd.learning.engine import CohortEngine, EngineTrainer
from incrowd.learning.mean_query import ClassPrior, MeanQuery
from incrowd.learning.models import Model
from incrowd.privacy.release import PrivateRound, PrivateRun, Release, Trainer

Trainers = Callable[[Floats], Trainer]
"""Gives the trainer of a round that starts from some weights."""


@dataclass(kw_only=True, eq=False)
class ClientCohort:
    """The clients of an engine's data, paid for by a `PrivateRun`.

    The engine trains them, unless `trainers` do so elsewhere. With `unavailable` that share of every cohort, chosen at
    random, never answers; denominator and noise stay the plan's. With `diagnose` each round has `Diagnostics`. With a
    declared number of clients, those who are drawn and do not exist contribute nothing.
    """

    engine: CohortEngine
    private: PrivateRun
    unavailable: float = 0.0
    diagnose: bool = False
    trainers: Trainers | None = None
    model: Model = field(init=False)
    rounds: int = field(init=False)
    randomness: Randomness = field(init=False, repr=False)
    size: int = field(init=False)
    queries: bool = field(init=False)

    def __post_init__(self) -> None:
        _validate.below_one(unavailable=self.unavailable)
        if self.diagnose and not self.private.randomness.simulated:
            remedy = "it shows single contributions, which only a simulation may: use seeded randomness"
            raise ConfigError(field="diagnose", value=True, remedy=remedy)
        if self.diagnose and self.trainers is not None:
            remedy = "single contributions are not seen where clients train elsewhere: leave it out"
            raise ConfigError(field="diagnose", value=True, remedy=remedy)
        engine, private = self.engine, self.private
        if private.size != engine.size:
            raise ConfigError(field="size", value=private.size, remedy=f"a client sends {engine.size} numbers")
        self.model, self.size = engine.model, engine.size
        self.rounds, self.randomness = private.plan.rounds, private.randomness
        self._query = self._checked_query()
        self.queries = self._query is not None
        private.check_clients(clients=engine.clients, declared=engine.data.declared is not None)
        private.name_third_party(engine.third_party)

    def answers(self, state: State) -> Answers:
        """See `Cohort.answers`."""
        watch = Watch(self.size) if self.diagnose else None
        begin = time.perf_counter()
        opened = self.private.round(state.round, carry=state.carry)
        opened.ask(self._trainer(state.start, watch), present=partial(self.present, number=state.round))
        return self.released(opened, watch, seconds=time.perf_counter() - begin)

    def released(self, opened: PrivateRound, watch: Watch | None = None, *, seconds: float | None = None) -> Answers:
        """Charge and release an open round."""
        release, adjustment = opened.release(), None
        if self._query is not None and release.round == 0:
            query, prior = self._query
            adjustment = prior.shift(query.answer(release))
        return Answers(
            mean=release.mean if adjustment is None else None,
            carry=opened.after,
            release=release,
            adjustment=adjustment,
            diagnostics=None if watch is None else self._diagnostics(watch, release),
            seconds=seconds,
        )

    def _trainer(self, weights: Floats, watch: Watch | None) -> Trainer:
        if self.trainers is not None:
            return self.trainers(weights)
        see = None if watch is None else watch.see
        return EngineTrainer(self.engine, weights, randomness=self.randomness, see=see)

    def present(self, cohort: Integers, *, number: int) -> Integers:
        """The clients of a round's cohort that exist and answer."""
        coins = self.randomness.stream("unavailable", number).bits(cohort.size)
        return self.engine.present(cohort[coins >= np.uint64(self.unavailable * 2**64)])

    def _checked_query(self) -> tuple[MeanQuery, ClassPrior] | None:
        """The label query and the biases that it adjusts; plans and models that it does not fit are refused."""
        engine, query = self.engine, self.engine.label_query
        if query is None:
            return None
        query.check(engine.data, self.private)
        if self.rounds < 2:
            remedy = "plan at least 2: the first is for local.label_distribution"
            raise ConfigError(field="rounds", value=self.rounds, remedy=remedy)
        return query, ClassPrior.of(engine.model, engine.data, engine.local, query)

    def _diagnostics(self, watch: Watch, release: Release) -> Diagnostics:
        return watch.diagnostics(
            fraction_clipped=release.observed.fraction_clipped if release.observed is not None else 0.0,
            noise_to_signal=noise_to_signal(release.mean, release.noise_std / release.cohort),
        )
