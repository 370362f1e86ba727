"""Client-level private federated averaging (Geyer, Klein, Nabi 2017, algorithm 1) as a pair of functions.

`init` gives the state before the first round, `apply` takes a state through one round. The state is plain arrays, so a
run can stop anywhere and go on bit for bit.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.federated.diagnostics import Diagnostics, Watch, noise_to_signal
from incrowd.federated.server import ServerStep
from incrowd.learning import CohortEngine
from incrowd.learning.cohort import EngineTrainer
from incrowd.privacy.mechanism.clipped_sum import Observed
from incrowd.privacy.mechanism.clipping import QuantileClip
from incrowd.privacy.mechanism.correlated import NoiseState
from incrowd.privacy.plan.declared import check_planned
from incrowd.privacy.plan.promise import Carry
from incrowd.privacy.release import PrivateRun, Release


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """Where a federation stands: the next round, the weights, and what the server and the plan remember.

    `published` is what may leave the server. The rest is for the server alone, because correlated noise has a memory.
    """

    round: int
    weights: Floats
    memory: Mapping[str, Floats]
    tail: Floats
    tail_rounds: int
    carry: Carry

    @property
    def published(self) -> Floats:
        """The weights to publish: the tail's mean where one is kept, otherwise the latest."""
        return self.tail / self.tail_rounds if self.tail_rounds else self.weights

    @classmethod
    def first(cls, weights: Floats, *, server: ServerStep, carry: Carry) -> "State":
        """The state before the first round, from these weights."""
        memory = server.start(weights.size)
        return cls(round=0, weights=weights, memory=memory, tail=np.zeros_like(weights), tail_rounds=0, carry=carry)

    def moved(self, mean: Floats, *, server: ServerStep, rounds: int, carry: Carry) -> "State":
        """The state after its round, out of so many, whose released mean this is."""
        direction, memory = server.direction(mean, self.memory)
        weights = self.weights + server.rate(self.round, rounds) * direction
        counts = server.counts(self.round, rounds)
        return State(
            round=self.round + 1,
            weights=weights,
            memory=memory,
            tail=self.tail + weights if counts else self.tail,
            tail_rounds=self.tail_rounds + counts,
            carry=carry,
        )

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """The state as named arrays, for a file.

        Guarantee: `restored` gives back the very same numbers.
        """
        arrays: dict[str, NDArray[np.generic]] = {
            "round": np.array([self.round]),
            "weights": self.weights,
            "tail": self.tail,
            "tail_rounds": np.array([self.tail_rounds]),
        }
        arrays |= {f"memory.{name}": array for name, array in self.memory.items()}
        if isinstance(self.carry.clip, QuantileClip):
            arrays["clip_norm"] = np.array([self.carry.clip.clip_norm])
        if self.carry.noise is not None:
            arrays |= {f"noise.{index}": array for index, array in enumerate(self.carry.noise.memory)}
        return arrays

    def restored(self, arrays: Mapping[str, NDArray[np.generic]]) -> "State":
        """The state that `to_arrays` wrote; this one, from `FedAvg.init`, says what belongs to it.

        Edge cases: arrays of another kind of run, or other sizes, are refused.
        """
        clip, noise = self.carry.clip, self.carry.noise
        remembered = (
            0 if noise is None else sum(name.startswith("noise.") for name in arrays)
        )  # may grow over the rounds
        expected = {name: _form(array) for name, array in self.to_arrays().items() if not name.startswith("noise.")}
        expected |= {f"noise.{index}": _form(self.weights) for index in range(remembered)}
        found = {name: _form(array) for name, array in arrays.items()}
        if expected != found:
            raise ConfigError(field="state", value=found, remedy=f"give the arrays of a run like this one: {expected}")
        if isinstance(clip, QuantileClip):
            clip = replace(clip, clip_norm=float(arrays["clip_norm"][0]))
        number = int(arrays["round"][0])
        if noise is not None:
            memory = tuple(_floats(arrays, f"noise.{index}") for index in range(remembered))
            noise = NoiseState(round=number, size=noise.size, memory=memory)
        return State(
            round=number,
            weights=_floats(arrays, "weights"),
            memory={name: _floats(arrays, f"memory.{name}") for name in self.memory},
            tail=_floats(arrays, "tail"),
            tail_rounds=int(arrays["tail_rounds"][0]),
            carry=Carry(clip=clip, noise=noise),
        )


@dataclass(frozen=True, kw_only=True)
class RoundReport:
    """What happened in one round. All of it is public but `observed` and `diagnostics`, which are simulation only."""

    round: int
    clip_norm: float
    noise_std: float
    learning_rate: float
    seconds: float
    seconds_of_training: float
    observed: Observed | None
    diagnostics: Diagnostics | None


class FedAvg:
    """The algorithm: cohort, local training, clip, sum, charge, noise, server step.

    The first weights are fresh ones times `start`. With `dropout` that share of every cohort, at random, never answers;
    denominator and noise are the plan's all the same. With `diagnose` each round reports `Diagnostics`, which only a
    simulation (seeded randomness) may.

    Guarantee: `apply` of equal states gives equal results under seeded randomness.

    Edge cases: a plan for another number of clients than the engine's is refused. Where that number is declared, those
    who are drawn and not there contribute nothing, and everything else stays as it was planned.
    """

    def __init__(
        self,
        *,
        engine: CohortEngine,
        private: PrivateRun,
        server: ServerStep,
        start: float = 1.0,
        dropout: float = 0.0,
        diagnose: bool = False,
    ) -> None:
        _validate.non_negative(start=start, dropout=dropout)
        if dropout >= 1:
            raise ConfigError(field="dropout", value=dropout, remedy="give a share of at least 0 and below 1")
        if diagnose and not private.randomness.simulated:
            raise ConfigError(
                field="diagnose",
                value=True,
                remedy="it shows single contributions, which only a simulation may: use seeded randomness",
            )
        if private.size != engine.model.size:
            raise ConfigError(field="size", value=private.size, remedy=f"the model has {engine.model.size} weights")
        check_planned(private.plan.round(0).sampler.clients, clients=engine.clients)
        self.engine = engine
        self.private = private
        self.server = server
        self.start = start
        self.dropout = dropout
        self.diagnose = diagnose

    def init(self) -> State:
        """The state before the first round: fresh weights, times `start`."""
        weights = self.start * self.engine.model.initial(self.private.randomness).numpy().astype(np.float64)
        return State.first(weights, server=self.server, carry=self.private.start())

    def apply(self, state: State) -> tuple[State, RoundReport]:
        """Take the state through its round."""
        begin = time.perf_counter()
        watch = Watch(state.weights.size) if self.diagnose else None
        open_round = self.private.round(state.round, carry=state.carry)
        see = None if watch is None else watch.see
        trainer = EngineTrainer(self.engine, state.weights, randomness=self.private.randomness, see=see)
        open_round.ask(trainer, present=partial(self._present, number=state.round))
        trained = time.perf_counter()
        release = open_round.release()
        after = state.moved(release.mean, server=self.server, rounds=self.private.plan.rounds, carry=open_round.after)
        report = RoundReport(
            round=state.round,
            clip_norm=release.clip_norm,
            noise_std=release.noise_std,
            learning_rate=self.server.rate(state.round, self.private.plan.rounds),
            seconds=time.perf_counter() - begin,
            seconds_of_training=trained - begin,
            observed=release.observed,
            diagnostics=None if watch is None else self._seen(watch, release),
        )
        return after, report

    def _seen(self, watch: Watch, release: Release) -> Diagnostics:
        cohort = self.private.plan.round(release.round).sampler.expected_cohort
        return watch.diagnostics(
            fraction_clipped=release.observed.fraction_clipped if release.observed is not None else 0.0,
            noise_to_signal=noise_to_signal(release.mean, release.noise_std / cohort),
        )

    def _present(self, cohort: NDArray[np.int64], *, number: int) -> NDArray[np.int64]:
        """The clients of a round's cohort that are there and answer."""
        stays = self.private.randomness.stream("dropout", number).bits(cohort.size) >= np.uint64(self.dropout * 2**64)
        return self.engine.present(cohort[stays])


def _form(array: NDArray[np.generic]) -> tuple[tuple[int, ...], str]:
    return array.shape, array.dtype.name


def _floats(arrays: Mapping[str, NDArray[np.generic]], name: str) -> Floats:
    return np.asarray(arrays[name], dtype=np.float64)
