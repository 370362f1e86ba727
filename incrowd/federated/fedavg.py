"""Client-level private federated averaging (Geyer, Klein, Nabi 2017, algorithm 1) as a pair of functions.

`init` gives the state before the first round, `apply` takes a state through one round. The state is plain arrays, so a
run can stop anywhere and go on bit for bit.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.federated.diagnostics import Diagnostics, Watch, noise_to_signal
from incrowd.learning import CohortEngine
from incrowd.learning.class_shares import LONG, ClassShares
from incrowd.learning.cohort import EngineTrainer
from incrowd.privacy.mechanism.clipped_sum import Observed
from incrowd.privacy.mechanism.clipping import FixedClip, NormalisedClip, QuantileClip
from incrowd.privacy.mechanism.correlated import NoiseState
from incrowd.privacy.plan.promise import Carry
from incrowd.privacy.release import PrivateRun, Release, Trainer
from incrowd.settings.server import ServerOptimizer


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """Where a federation stands: the next round, the weights, and what the server and the plan remember.

    Clients start a round with `weights`. With `class_shares` these come after the weights of the model in the same
    vector, and the first round asks for them: the server's rates and averages count from the next.

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
    class_shares: ClassShares | None = None

    @property
    def secret(self) -> NoiseState | None:
        """What nobody else may know: with the releases it gives the sums away."""
        return self.carry.noise

    @property
    def published(self) -> Floats:
        """The weights to publish: the tail's mean where one is kept, otherwise the latest."""
        found = self.tail / self.tail_rounds if self.tail_rounds else self.weights.copy()
        return found if self.class_shares is None else found[: self.class_shares.weights]

    @classmethod
    def first(
        cls,
        weights: Floats,
        *,
        server: ServerOptimizer,
        carry: Carry,
        class_shares: ClassShares | None = None,
    ) -> "State":
        """The state before the first round, from these weights."""
        start = weights if class_shares is None else class_shares.start(weights)
        return cls(
            round=0,
            weights=start,
            memory=server.start(weights.size),
            tail=np.zeros_like(start),
            tail_rounds=0,
            carry=carry,
            class_shares=class_shares,
        )

    def after(self, release: Release, *, server: ServerOptimizer, rounds: int, carry: Carry) -> "State":
        """The state after its round, out of so many, that released this."""
        if self.class_shares is None or self.round > 0:
            return self.moved(release.mean, server=server, rounds=rounds, carry=carry)
        mean, noise_std = release.mean / release.clip_norm, release.noise_std / release.cohort / release.clip_norm
        start = self.class_shares.learnt(self.weights, mean, noise_std)
        return replace(self, round=self.round + 1, weights=start, carry=carry)

    def moved(self, mean: Floats, *, server: ServerOptimizer, rounds: int, carry: Carry) -> "State":
        """The state after its round, out of so many, whose released mean this is."""
        number, of = server_round(self.round, rounds, class_shares=self.class_shares)
        direction, memory = server.direction(mean, self.memory)
        weights = self.weights.copy()
        weights[: direction.size] += server.rate(number, of) * direction
        counts = server.counts(number, of)
        return replace(
            self,
            round=self.round + 1,
            weights=weights,
            memory=memory,
            tail=self.tail + weights if counts else self.tail,
            tail_rounds=self.tail_rounds + counts,
            carry=carry,
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
            carry=Carry(clip=clip, noise=noise),
        )

    def _remembered(self, arrays: Mapping[str, NDArray[np.generic]], number: int) -> NoiseState:
        """What the noise remembers after so many rounds; how many arrays that are may grow over the rounds."""
        names = [f"noise.{index}" for index in range(len(arrays) - 1)] if self.secret is not None else []
        _check_forms(arrays, {"round": _form(np.array([0])), **{name: _form(self.weights) for name in names}})
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
        if private.size != engine.model.size:
            raise ConfigError(field="size", value=private.size, remedy=f"the model has {engine.model.size} weights")
        if engine.class_shares is not None:
            _check_class_shares(private)
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
        asked = self.engine.class_shares
        return State.first(weights, server=self.server, carry=self.private.start(), class_shares=asked)

    def apply(self, state: State) -> tuple[State, RoundReport]:
        """Take the state through its round."""
        begin = time.perf_counter()
        watch = Watch(self.private.size) if self.diagnose else None
        open_round = self.private.round(state.round, carry=state.carry)
        open_round.ask(self._trainer(state.weights, watch), present=partial(self._present, number=state.round))
        trained = time.perf_counter()
        release = open_round.release()
        rounds = self.private.plan.rounds
        after = state.after(release, server=self.server, rounds=rounds, carry=open_round.after)
        number, of = server_round(state.round, rounds, class_shares=state.class_shares)
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


def server_round(round: int, rounds: int, *, class_shares: ClassShares | None) -> tuple[int, int]:
    """A round and how many there are as the server counts them: the round that asks for class shares is number -1."""
    asked = int(class_shares is not None)
    return round - asked, rounds - asked


def _check_class_shares(private: PrivateRun) -> None:
    """Refuse plans in which a mean would not come out as it went in, or no round would be left to learn."""
    clip = private.start().clip
    remedies = {
        "clip": (not isinstance(clip, NormalisedClip | FixedClip), "clip with normalised or fixed"),
        "clip_norm": (isinstance(clip, FixedClip) and clip.clip_norm > LONG, f"give {LONG:.0f} at most"),
        "noise": (private.start().noise is not None, "take independent noise"),
        "rounds": (private.plan.rounds < 2, "plan at least 2, of which one is for it"),
    }
    for field, (refused, remedy) in remedies.items():
        if refused:
            raise ConfigError(field="local.class_shares", value=field, remedy=f"{remedy}, or leave it out")


def _check_forms(arrays: Mapping[str, NDArray[np.generic]], expected: Mapping[str, object]) -> None:
    forms = {name: _form(array) for name, array in arrays.items()}
    if expected != forms:
        raise ConfigError(field="state", value=forms, remedy=f"give the arrays of a run like this one: {expected}")


def _form(array: NDArray[np.generic]) -> tuple[tuple[int, ...], str]:
    return array.shape, array.dtype.name


def _floats(arrays: Mapping[str, NDArray[np.generic]], name: str) -> Floats:
    return np.asarray(arrays[name], dtype=np.float64)
