"""Federated averaging as a pair of functions: `init` gives the first state, `apply` takes a state through one round.

A cohort trains and combines the answers: clients whose sum the server noises (Geyer, Klein, Nabi 2017, algorithm 1), or
silos that noise their own records. The state is plain arrays, so a run can stop after any round and resume bit for bit.

The server's step along a released mean is post-processing, so it costs no privacy. An optimizer is a pair of functions:
`init` gives named arrays, `update` takes a mean and the arrays to a direction and the next arrays.
`incrowd.types.ServerOptimizer` is the protocol for one of your own.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from incrowd import _extensions, _validate
from incrowd._random import Floats, Randomness
from incrowd.errors import ConfigError
from incrowd.learning.models import Model
from incrowd.privacy.mechanism.clipped_sum import Observed
from incrowd.privacy.mechanism.clipping import NormalisedClip, QuantileClip
from incrowd.privacy.mechanism.correlated import NoiseState
from incrowd.privacy.release import Carry, PrivateRun, Release
from incrowd.settings import ServerOptimizer
from incrowd.types import ServerOptimizer as Optimizer

Arrays = Mapping[str, NDArray[np.generic]]
Memory = Mapping[str, Floats]

SECOND_MOMENT = 0.99
"""The decay of the second moment in Adam and Yogi (beta_2)."""

NO_CLIP = Carry(clip=NormalisedClip())
"""The carry of a federation whose server clips nothing: its clip is never used."""


def optimizer_of(settings: ServerOptimizer) -> Optimizer:
    """The optimizer that settings name: a built-in one, or a registered one of another package."""
    if settings.built_in:
        return _BuiltIn(settings)
    made: Optimizer = _extensions.found("server_optimizers", settings.kind)(settings)
    return made


def stepped(settings: ServerOptimizer, mean: Floats, memory: Memory) -> tuple[Floats, Memory]:
    """The direction of one step for a learning rate of 1, and the next memory, checked if the optimizer is not ours."""
    direction, after = optimizer_of(settings).update(mean, memory)
    if not settings.built_in:
        shapes = {name: np.shape(array) for name, array in memory.items()}
        right = np.shape(direction) == mean.shape and {name: np.shape(one) for name, one in after.items()} == shapes
        if not right or not all(np.isfinite(one).all() for one in (direction, *after.values())):
            remedy = f"return {mean.size} finite numbers, and the arrays {shapes}, finite too"
            raise ConfigError(field="server.kind", value=settings.kind, remedy=remedy)
    return direction, after


@dataclass(frozen=True)
class _BuiltIn:
    """A pair of functions of the settings. Yogi's second moment starts at the square of the adaptivity."""

    settings: ServerOptimizer

    def init(self, size: int) -> Memory:
        """See `incrowd.types.ServerOptimizer.init`."""
        start = self.settings.adaptivity**2 if self.settings.kind == "yogi" else 0.0
        return {name: np.full(size, start if name == "second" else 0.0) for name in _BUILT_IN[self.settings.kind][0]}

    def update(self, mean: Floats, state: Memory) -> tuple[Floats, Memory]:
        """See `incrowd.types.ServerOptimizer.update`."""
        return _BUILT_IN[self.settings.kind][1](self.settings, mean, state)


def _sgd(_: ServerOptimizer, mean: Floats, memory: Memory) -> tuple[Floats, Memory]:
    return mean, memory


def _momentum(settings: ServerOptimizer, mean: Floats, memory: Memory) -> tuple[Floats, Memory]:
    velocity = settings.momentum * memory["velocity"] + mean
    return velocity, {"velocity": velocity}


def _adam(settings: ServerOptimizer, mean: Floats, memory: Memory) -> tuple[Floats, Memory]:
    second = SECOND_MOMENT * memory["second"] + (1 - SECOND_MOMENT) * mean**2
    return _adaptive(settings, mean, memory, second)


def _yogi(settings: ServerOptimizer, mean: Floats, memory: Memory) -> tuple[Floats, Memory]:
    square, before = mean**2, memory["second"]
    return _adaptive(settings, mean, memory, before - (1 - SECOND_MOMENT) * square * np.sign(before - square))


def _adaptive(settings: ServerOptimizer, mean: Floats, memory: Memory, second: Floats) -> tuple[Floats, Memory]:
    first = settings.momentum * memory["first"] + (1 - settings.momentum) * mean
    return first / (np.sqrt(second) + settings.adaptivity), {"first": first, "second": second}


_BUILT_IN = {
    "sgd": ((), _sgd),
    "momentum": (("velocity",), _momentum),
    "adam": (("first", "second"), _adam),
    "yogi": (("first", "second"), _yogi),
}


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """The likeness of the clients' contributions before clipping (Geyer, Klein, Nabi 2017, section 3).

    `between_client_variance` is their V_c: the variance over the cohort, averaged over the weights. `update_scale` is
    their U_s: the squared mean over the cohort, averaged over the weights. `norms` are the minimum, the quartiles and
    the maximum of the L2 norms. `fraction_clipped` is the share of norms above the bound. `noise_to_signal` is the norm
    of the noise over the norm of the sum, estimated from the release; None if the noise hides the sum.
    """

    between_client_variance: float
    update_scale: float
    norms: tuple[float, float, float, float, float]
    fraction_clipped: float = 0.0
    noise_to_signal: float | None = None


def noise_to_signal(mean: Floats, noise_std_of_mean: float) -> float | None:
    """The norm of the noise on a released mean over the norm of the mean without it, estimated from the release."""
    noise = noise_std_of_mean**2 * mean.size
    signal = float(mean @ mean) - noise
    return math.sqrt(noise / signal) if signal > 0 else None


class Seen(Protocol):
    """Contributions on their way to the sum."""

    def norms(self) -> Floats:
        """The L2 norm of each, in one column."""

    def add_to(self, total: Floats, factors: Floats) -> None:
        """Add each contribution times its factor (in one column); a factor of 0 adds nothing, not even NaN."""


class Watch:
    """The figures of every finite contribution in one pass: the variances of all weights add up to the mean squared
    norm minus the squared norm of the mean.
    """

    def __init__(self, size: int) -> None:
        self._total = np.zeros(size)
        self._norms: list[Floats] = []

    def see(self, chunk: Seen) -> None:
        """Add a chunk's contributions."""
        norms = chunk.norms()[:, 0]
        finite = np.isfinite(norms)
        chunk.add_to(self._total, finite[:, None].astype(np.float64))
        self._norms.append(norms[finite])

    def diagnostics(self, *, fraction_clipped: float = 0.0, noise_to_signal: float | None = None) -> Diagnostics:
        """The figures; zeros without contributions."""
        norms = np.concatenate([np.empty(0), *self._norms])
        if norms.size == 0:
            norms = np.zeros(1)
        mean = self._total / norms.size
        squared_mean = float(mean @ mean)
        variance = max(0.0, float(np.mean(norms**2)) - squared_mean)
        smallest, lower, median, upper, largest = np.quantile(norms, [0, 0.25, 0.5, 0.75, 1])
        return Diagnostics(
            between_client_variance=variance / mean.size,
            update_scale=squared_mean / mean.size,
            norms=(float(smallest), float(lower), float(median), float(upper), float(largest)),
            fraction_clipped=fraction_clipped,
            noise_to_signal=noise_to_signal,
        )


@dataclass(frozen=True, kw_only=True)
class SiloStatus:
    """A silo after a round: its spent epsilon, and the reason if it sent nothing (see `Answer`)."""

    silo: str
    epsilon: float
    absence: str | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """The combined answers to one round.

    The server moves along `mean`; None leaves the weights as they are. A label query has an `adjustment` instead. The
    next round gets `carry`. A `release` exists if the server clipped, charged and noised the round.
    """

    mean: Floats | None
    carry: Carry
    release: Release | None = None
    adjustment: Floats | None = None
    silos: tuple[SiloStatus, ...] = ()
    diagnostics: Diagnostics | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """A federation between two rounds: the next round's number, the weights, the server optimizer's memory.

    Clients start a round from `weights` and the numbers that their algorithm has `shared`: zeros, to which each round
    adds the released mean. After a label query, `adjustment` is added to the published weights; the server's learning
    rates and averages then count from the second round.

    Everything is public except `secret`, the memory of correlated noise, which the server keeps until the last round.

    Guarantee: neither `to_arrays` nor the repr holds anything secret.
    """

    weights: Floats
    memory: Mapping[str, Floats]
    tail: Floats
    carry: Carry
    round: int = 0
    tail_rounds: int = 0
    shared: Floats = field(default_factory=lambda: np.zeros(0))
    adjustment: Floats | None = None

    @property
    def secret(self) -> NoiseState | None:
        """The memory of correlated noise: with the releases it reveals the sums."""
        return self.carry.noise

    @property
    def start(self) -> Floats:
        """The numbers from which every client starts the next round."""
        return np.concatenate([self.weights, self.shared])

    @property
    def published(self) -> Floats:
        """The weights to publish: the tail's mean if the server keeps one, otherwise the latest."""
        found = self.tail / self.tail_rounds if self.tail_rounds else self.weights.copy()
        return found if self.adjustment is None else found + self.adjustment

    def step_number(self, rounds: int) -> tuple[int, int]:
        """The number of the server's next step and of all its steps; a label query is step -1."""
        queries = self.adjustment is not None
        return self.round - queries, rounds - queries

    def after(self, answers: Answers, *, server: ServerOptimizer, rounds: int) -> "State":
        """The state after the round, out of `rounds`, that had these answers."""
        state = replace(self, round=self.round + 1, carry=answers.carry)
        if answers.mean is None:
            return state if answers.adjustment is None else replace(state, adjustment=answers.adjustment)
        number, steps = self.step_number(rounds)
        direction, memory = stepped(server, answers.mean[: self.weights.size], self.memory)
        weights = self.weights + server.rate(number, steps) * direction
        counts = server.counts(number, steps)
        return replace(
            state,
            weights=weights,
            memory=memory,
            tail=self.tail + weights if counts else self.tail,
            tail_rounds=self.tail_rounds + counts,
            shared=self.shared + answers.mean[self.weights.size :],
        )

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """The public part of the state as named arrays, for a file: `restored` gives the same numbers back."""
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
        """The secret part, for a private file; None without correlated noise."""
        if self.secret is None:
            return None
        memory = {f"noise.{index}": array for index, array in enumerate(self.secret.memory)}
        return {"round": np.array([self.secret.round]), **memory}

    def restored(self, arrays: Arrays, secret: Arrays | None = None) -> "State":
        """The state that `to_arrays` and `secret_arrays` wrote; `self` is the first state of the same run."""
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

    def _remembered(self, arrays: Arrays, number: int) -> NoiseState:
        """The noise's memory after `number` rounds; its number of arrays may grow over the rounds."""
        names = [f"noise.{index}" for index in range(len(arrays) - 1)] if self.secret is not None else []
        _check_forms(arrays, {"round": _form(np.array([0])), **{name: _form(self.start) for name in names}})
        found = int(arrays["round"][0])
        if self.secret is None or found != number:
            remedy = f"give what belongs to the state after {number} rounds"
            raise ConfigError(field="secret", value=found, remedy=remedy)
        return NoiseState(round=found, size=self.secret.size, memory=tuple(_floats(arrays, name) for name in names))


class Cohort(Protocol):
    """The participants of a federation: `ClientCohort` or `SiloCohort`.

    An answer has `size` numbers: the weights, then those that the local algorithm shares. With `queries` the first
    round is a label query.
    """

    model: Model
    rounds: int
    randomness: Randomness
    size: int
    queries: bool

    @property
    def private(self) -> PrivateRun | None:
        """The run that clips, charges and noises the answers on the server, if one does."""

    def answers(self, state: State) -> Answers:
        """Ask the participants for the round that starts from this state."""


AnyCohort = TypeVar("AnyCohort", bound=Cohort)


@dataclass(frozen=True, kw_only=True)
class RoundReport:
    """One round. All of it is public; `observed`, `diagnostics` and seconds depend on the participants, so only
    simulations have them.

    Clip and noise are the server's, `silos` have a standing each.
    """

    round: int
    learning_rate: float
    seconds: float | None
    seconds_of_training: float | None
    clip_norm: float | None = None
    noise_std: float | None = None
    observed: Observed | None = None
    diagnostics: Diagnostics | None = None
    silos: tuple[SiloStatus, ...] = ()

    @property
    def epsilon(self) -> float:
        """The largest epsilon that any silo has spent."""
        return max(standing.epsilon for standing in self.silos)

    @property
    def stopped(self) -> tuple[str, ...]:
        """The silos whose budget did not allow this round."""
        return tuple(standing.silo for standing in self.silos if standing.absence == "budget spent")


class FedAvg(Generic[AnyCohort]):
    """Federated averaging: a cohort answers, and the server moves along the mean of the answers.

    The first weights are the model's, or fresh ones times `init_scale`.

    Guarantee: under seeded randomness equal states give equal results.
    """

    def __init__(self, cohort: AnyCohort, *, server: ServerOptimizer, init_scale: float = 1.0) -> None:
        _validate.non_negative(init_scale=init_scale)
        if cohort.private is not None and not server.built_in:
            cohort.private.name_third_party(f"server optimizer {server.kind}")
        self.cohort = cohort
        self.server = server
        self.init_scale = init_scale

    def init(self) -> State:
        """The state before the first round."""
        cohort = self.cohort
        first = cohort.model.initial(cohort.randomness, init_scale=self.init_scale)
        weights = first.numpy().astype(np.float64)
        return State(
            weights=weights,
            memory=optimizer_of(self.server).init(weights.size),
            tail=np.zeros_like(weights),
            carry=NO_CLIP if cohort.private is None else cohort.private.start(),
            shared=np.zeros(cohort.size - weights.size),
            adjustment=np.zeros_like(weights) if cohort.queries else None,
        )

    def apply(self, state: State) -> tuple[State, RoundReport]:
        """Take a state through its round."""
        begin = time.perf_counter()
        return self.applied(state, self.cohort.answers(state), begin=begin)

    def applied(self, state: State, answers: Answers, *, begin: float | None = None) -> tuple[State, RoundReport]:
        """The state after a round that had these answers, and its report; `begin` is when it began."""
        rounds = self.cohort.rounds
        after = state.after(answers, server=self.server, rounds=rounds)
        release, (number, steps) = answers.release, state.step_number(rounds)
        simulated = self.cohort.randomness.simulated
        report = RoundReport(
            round=state.round,
            learning_rate=self.server.rate(number, steps) if number >= 0 else 0.0,
            seconds=time.perf_counter() - begin if simulated and begin is not None else None,
            seconds_of_training=answers.seconds if simulated else None,
            clip_norm=None if release is None else release.clip_norm,
            noise_std=None if release is None else release.noise_std,
            observed=None if release is None else release.observed,
            diagnostics=answers.diagnostics,
            silos=answers.silos,
        )
        return after, report


def _check_forms(arrays: Arrays, expected: Mapping[str, object]) -> None:
    forms = {name: _form(array) for name, array in arrays.items()}
    if expected != forms:
        raise ConfigError(field="state", value=forms, remedy=f"give the arrays of a run like this one: {expected}")


def _form(array: NDArray[np.generic]) -> tuple[tuple[int, ...], str]:
    return array.shape, array.dtype.name


def _floats(arrays: Arrays, name: str) -> Floats:
    return np.asarray(arrays[name], dtype=np.float64)
