"""Client-level private federated averaging (Geyer, Klein, Nabi 2017, algorithm 1) as a pair of functions.

`init` gives the state before the first round, `apply` takes a state through one round. The state is plain arrays, so a
run can stop anywhere and go on bit for bit.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from incrowd import _validate
from incrowd._random import Floats
from incrowd.algorithms.diagnostics import Diagnostics, Watch, noise_to_signal
from incrowd.errors import ConfigError
from incrowd.learning import CohortEngine
from incrowd.learning.engine import EngineTrainer
from incrowd.learning.label_shares import ClassPrior
from incrowd.learning.mean_query import MeanQuery
from incrowd.privacy.mechanism.clipped_sum import Observed
from incrowd.privacy.mechanism.clipping import QuantileClip
from incrowd.privacy.mechanism.correlated import NoiseState
from incrowd.privacy.release import Carry, PrivateRun, Release, Trainer
from incrowd.settings.server import ServerOptimizer


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelQuery:
    """The query of the first round, and how its answer adjusts the weights that are published."""

    query: MeanQuery
    prior: ClassPrior

    @classmethod
    def of(cls, engine: CohortEngine, private: PrivateRun) -> "LabelQuery | None":
        """That of an engine's settings. Edge cases: plans and models that it does not fit are refused."""
        query = engine.label_query
        if query is None:
            return None
        query.check(engine.data, private)
        if private.plan.rounds < 2:
            remedy = "plan at least 2: the first is for local.label_distribution"
            raise ConfigError(field="rounds", value=private.plan.rounds, remedy=remedy)
        prior = ClassPrior.of(engine.model, engine.data, engine.local, query)
        return cls(query=query, prior=prior)

    def adjustment(self, release: Release) -> Floats:
        """What is added to the flat weights when they are published."""
        return self.prior.shift(self.query.answer(release))


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """Where a federation stands: the next round, the weights, and what the server and the plan remember.

    Clients start a round with `weights` and the numbers that their algorithm has `shared`: zeros, to which each round
    adds the released mean. With a `query` the first round asks for the label distribution: the server's rates and
    averages count from the next, and `adjustment` is added to the weights that are published.

    All of it comes from releases alone, so that it is public, but for `secret`: what correlated noise remembers, for
    the server alone and only until the last round is over.

    Guarantee: `to_arrays` holds nothing secret, and neither does the repr.
    """

    round: int
    weights: Floats
    memory: Mapping[str, Floats]
    tail: Floats
    tail_rounds: int
    carry: Carry
    shared: Floats = field(default_factory=lambda: np.zeros(0))
    query: LabelQuery | None = None
    adjustment: Floats | None = None

    @property
    def secret(self) -> NoiseState | None:
        """What nobody else may know: with the releases it gives the sums away."""
        return self.carry.noise

    @property
    def start(self) -> Floats:
        """Every client of the next round starts from these numbers."""
        return np.concatenate([self.weights, self.shared])

    @property
    def published(self) -> Floats:
        """The weights to publish: the tail's mean where one is kept, otherwise the latest."""
        found = self.tail / self.tail_rounds if self.tail_rounds else self.weights.copy()
        return found if self.adjustment is None else found + self.adjustment

    @classmethod
    def first(
        cls,
        weights: Floats,
        *,
        server: ServerOptimizer,
        carry: Carry,
        shares: int = 0,
        query: "LabelQuery | None" = None,
    ) -> "State":
        """The state before the first round, from these weights."""
        return cls(
            round=0,
            weights=weights,
            memory=server.start(weights.size),
            tail=np.zeros_like(weights),
            tail_rounds=0,
            carry=carry,
            shared=np.zeros(shares),
            query=query,
            adjustment=None if query is None else np.zeros_like(weights),
        )

    def after(self, release: Release, *, server: ServerOptimizer, rounds: int, carry: Carry) -> "State":
        """The state after its round, out of so many, that released this."""
        if self.query is None or self.round > 0:
            return self.moved(release.mean, server=server, rounds=rounds, carry=carry)
        return replace(self, round=self.round + 1, adjustment=self.query.adjustment(release), carry=carry)

    def moved(self, mean: Floats, *, server: ServerOptimizer, rounds: int, carry: Carry) -> "State":
        """The state after its round, out of so many, whose released mean this is."""
        number, of = server_round(self.round, rounds, asks=self.query is not None)
        direction, memory = server.direction(mean[: self.weights.size], self.memory)
        weights = self.weights + server.rate(number, of) * direction
        counts = server.counts(number, of)
        return replace(
            self,
            round=self.round + 1,
            weights=weights,
            memory=memory,
            tail=self.tail + weights if counts else self.tail,
            tail_rounds=self.tail_rounds + counts,
            carry=carry,
            shared=self.shared + mean[self.weights.size :],
        )

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """The public part of the state as named arrays, for a file.

        Guarantee: `restored` gives back the very same numbers.
        """
        arrays: dict[str, NDArray[np.generic]] = {
            "round": np.array([self.round]),
            "weights": self.weights,
            "tail": self.tail,
            "tail_rounds": np.array([self.tail_rounds]),
        }
        arrays |= {f"memory.{name}": array for name, array in self.memory.items()}
        if self.shared.size:
            arrays["shared"] = self.shared
        if self.adjustment is not None:
            arrays["adjustment"] = self.adjustment
        if isinstance(self.carry.clip, QuantileClip):
            arrays["clip_norm"] = np.array([self.carry.clip.clip_norm])
        return arrays

    def secret_arrays(self) -> dict[str, NDArray[np.generic]] | None:
        """The private part, for a file that nobody else may read; None where there is none."""
        if self.secret is None:
            return None
        memory = {f"noise.{index}": array for index, array in enumerate(self.secret.memory)}
        return {"round": np.array([self.secret.round]), **memory}

    def restored(
        self, arrays: Mapping[str, NDArray[np.generic]], secret: Mapping[str, NDArray[np.generic]] | None = None
    ) -> "State":
        """The state that `to_arrays` and `secret_arrays` wrote; this one, from `FedAvg.init`, says what belongs to it.

        Edge cases: arrays of another kind of run, or other sizes, are refused, and so are two parts that are not of the
        same round.
        """
        clip = self.carry.clip
        _check_forms(arrays, {name: _form(array) for name, array in self.to_arrays().items()})
        if isinstance(clip, QuantileClip):
            clip = replace(clip, clip_norm=float(arrays["clip_norm"][0]))
        number = int(arrays["round"][0])
        noise = None if secret is None else self._remembered(secret, number)
        return replace(
            self,
            round=number,
            weights=_floats(arrays, "weights"),
            memory={name: _floats(arrays, f"memory.{name}") for name in self.memory},
            tail=_floats(arrays, "tail"),
            tail_rounds=int(arrays["tail_rounds"][0]),
            shared=_floats(arrays, "shared") if self.shared.size else self.shared,
            adjustment=None if self.adjustment is None else _floats(arrays, "adjustment"),
            carry=Carry(clip=clip, noise=noise),
        )

    def _remembered(self, arrays: Mapping[str, NDArray[np.generic]], number: int) -> NoiseState:
        """What the noise remembers after so many rounds; how many arrays that are may grow over the rounds."""
        names = [f"noise.{index}" for index in range(len(arrays) - 1)] if self.secret is not None else []
        _check_forms(arrays, {"round": _form(np.array([0])), **{name: _form(self.start) for name in names}})
        round_number = int(arrays["round"][0])
        if self.secret is None or round_number != number:
            raise ConfigError(
                field="secret", value=round_number, remedy=f"give what belongs to the state after {number} rounds"
            )
        return NoiseState(
            round=round_number, size=self.secret.size, memory=tuple(_floats(arrays, name) for name in names)
        )


@dataclass(frozen=True, kw_only=True)
class RoundReport:
    """What happened in one round. All of it is public but what only a simulation sees, and is None otherwise:
    `observed`, `diagnostics`, and the seconds, for how long a round takes depends on who took part.
    """

    round: int
    clip_norm: float
    noise_std: float
    learning_rate: float
    seconds: float | None
    seconds_of_training: float | None
    observed: Observed | None
    diagnostics: Diagnostics | None


Trainers = Callable[[Floats], Trainer]
"""Who trains the cohort of a round that begins with these weights."""


class FedAvg:
    """The algorithm: cohort, local training, clip, sum, charge, noise, server step.

    Who trains is the engine, or whom `trainers` gives, who knows the same clients elsewhere. The first weights are the
    model's own, or fresh ones times `init_scale`. With `unavailable` that share of every cohort, at random, never
    answers; denominator and noise are the plan's all the same. With `diagnose` each round reports `Diagnostics`, which
    only a simulation (seeded randomness) may.

    Guarantee: `apply` of equal states gives equal results under seeded randomness.

    Edge cases: see `PrivateRun.check_clients` for what is refused. Where the number of clients is declared, those
    who are drawn and not there contribute nothing, and everything else stays as it was planned.
    """

    def __init__(
        self,
        *,
        engine: CohortEngine,
        private: PrivateRun,
        server: ServerOptimizer,
        init_scale: float = 1.0,
        unavailable: float = 0.0,
        diagnose: bool = False,
        trainers: Trainers | None = None,
    ) -> None:
        _validate.non_negative(init_scale=init_scale, unavailable=unavailable)
        if unavailable >= 1:
            raise ConfigError(field="unavailable", value=unavailable, remedy="give a share of at least 0 and below 1")
        if diagnose and not private.randomness.simulated:
            raise ConfigError(
                field="diagnose",
                value=True,
                remedy="it shows single contributions, which only a simulation may: use seeded randomness",
            )
        if diagnose and trainers is not None:
            remedy = "single contributions are not seen where clients train elsewhere: leave it out"
            raise ConfigError(field="diagnose", value=True, remedy=remedy)
        if private.size != engine.size:
            raise ConfigError(field="size", value=private.size, remedy=f"a client sends {engine.size} numbers")
        self._query = LabelQuery.of(engine, private)
        private.check_clients(clients=engine.clients, declared=engine.data.declared is not None)
        private.third_party = engine.third_party
        self.engine = engine
        self.private = private
        self.server = server
        self.init_scale = init_scale
        self.unavailable = unavailable
        self.diagnose = diagnose
        self.trainers = trainers

    def init(self) -> State:
        """The state before the first round, from the model's `initial` weights."""
        first = self.engine.model.initial(self.private.randomness, init_scale=self.init_scale)
        weights = first.numpy().astype(np.float64)
        start, shares = self.private.start(), self.engine.size - weights.size
        return State.first(weights, server=self.server, carry=start, shares=shares, query=self._query)

    def apply(self, state: State) -> tuple[State, RoundReport]:
        """Take the state through its round."""
        begin = time.perf_counter()
        watch = Watch(self.private.size) if self.diagnose else None
        open_round = self.private.round(state.round, carry=state.carry)
        open_round.ask(self._trainer(state.start, watch), present=partial(self._present, number=state.round))
        trained = time.perf_counter()
        release = open_round.release()
        rounds = self.private.plan.rounds
        after = state.after(release, server=self.server, rounds=rounds, carry=open_round.after)
        number, of = server_round(state.round, rounds, asks=state.query is not None)
        simulated = self.private.randomness.simulated
        report = RoundReport(
            round=state.round,
            clip_norm=release.clip_norm,
            noise_std=release.noise_std,
            learning_rate=self.server.rate(number, of) if number >= 0 else 0.0,
            seconds=time.perf_counter() - begin if simulated else None,
            seconds_of_training=trained - begin if simulated else None,
            observed=release.observed,
            diagnostics=None if watch is None else self._seen(watch, release),
        )
        return after, report

    def _trainer(self, weights: Floats, watch: Watch | None) -> Trainer:
        if self.trainers is not None:
            return self.trainers(weights)
        see = None if watch is None else watch.see
        return EngineTrainer(self.engine, weights, randomness=self.private.randomness, see=see)

    def _seen(self, watch: Watch, release: Release) -> Diagnostics:
        cohort = self.private.plan.round(release.round).sampler.expected_cohort
        return watch.diagnostics(
            fraction_clipped=release.observed.fraction_clipped if release.observed is not None else 0.0,
            noise_to_signal=noise_to_signal(release.mean, release.noise_std / cohort),
        )

    def _present(self, cohort: NDArray[np.int64], *, number: int) -> NDArray[np.int64]:
        """The clients of a round's cohort that are there and answer."""
        coins = self.private.randomness.stream("unavailable", number).bits(cohort.size)
        stays = coins >= np.uint64(self.unavailable * 2**64)
        return self.engine.present(cohort[stays])


def server_round(round: int, rounds: int, *, asks: bool) -> tuple[int, int]:
    """A round and how many there are as the server counts them: a round that asks a query first is number -1."""
    return round - asks, rounds - asks


def _check_forms(arrays: Mapping[str, NDArray[np.generic]], expected: Mapping[str, object]) -> None:
    forms = {name: _form(array) for name, array in arrays.items()}
    if expected != forms:
        raise ConfigError(field="state", value=forms, remedy=f"give the arrays of a run like this one: {expected}")


def _form(array: NDArray[np.generic]) -> tuple[tuple[int, ...], str]:
    return array.shape, array.dtype.name


def _floats(arrays: Mapping[str, NDArray[np.generic]], name: str) -> Floats:
    return np.asarray(arrays[name], dtype=np.float64)
