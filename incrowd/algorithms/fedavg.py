"""Federated averaging as a pair of functions: `init` gives the first state, `apply` takes a state through one round.

A cohort trains and combines the answers: clients whose sum the server noises (Geyer, Klein, Nabi 2017, algorithm 1), or
silos that noise their own records. The state is plain arrays, so a run can stop after any round and resume bit for bit.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from incrowd import _validate
from incrowd._random import Floats, Randomness
from incrowd.algorithms.diagnostics import Diagnostics
from incrowd.algorithms.server import optimizer_of, stepped
from incrowd.errors import ConfigError
from incrowd.learning import Model
from incrowd.privacy.mechanism.clipped_sum import Observed
from incrowd.privacy.mechanism.clipping import NormalisedClip, QuantileClip
from incrowd.privacy.mechanism.correlated import NoiseState
from incrowd.privacy.release import Carry, PrivateRun, Release
from incrowd.settings import ServerOptimizer

Arrays = Mapping[str, NDArray[np.generic]]

NO_CLIP = Carry(clip=NormalisedClip())
"""The carry of a federation whose server clips nothing: its clip is never used."""


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
        """The public part of the state as named arrays, for a file.

        Guarantee: `restored` gives the same numbers back.
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
        """The secret part, for a private file; None without correlated noise."""
        if self.secret is None:
            return None
        memory = {f"noise.{index}": array for index, array in enumerate(self.secret.memory)}
        return {"round": np.array([self.secret.round]), **memory}

    def restored(self, arrays: Arrays, secret: Arrays | None = None) -> "State":
        """The state that `to_arrays` and `secret_arrays` wrote; `self` is the first state of the same run.

        Edge cases: arrays of another kind of run, of other sizes, or of two different rounds are refused.
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
        ...

    def answers(self, state: State) -> Answers:
        """Ask the participants for the round that starts from this state."""
        ...


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
