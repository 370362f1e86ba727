"""A federation of silos as a pair of functions: each trains with DP-SGD on its own account, and the server averages.

`init` gives the state before the first round, `apply` takes a state through one round. What the silos send is released
already, so averaging it costs nothing. With a `PrivateRun` the silos are protected as a whole, too: the server clips
what each sends, and pays from a ledger of its own for the noise that it adds.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from incrowd import _validate
from incrowd._random import Floats, Randomness
from incrowd.algorithms.fedavg import State
from incrowd.algorithms.silo import Absence, Answer
from incrowd.errors import ConfigError
from incrowd.learning import Model
from incrowd.privacy.mechanism.clipping import NormalisedClip
from incrowd.privacy.plan.sampling import Everyone
from incrowd.privacy.release import Carry, PrivateRun
from incrowd.settings.server import ServerOptimizer

Ask = Callable[[int, Floats], Answer]
"""Asks one silo for its part in a round (from 0) that starts with some weights: see `Silo.answer`."""

AskAll = Callable[[int, Floats], Sequence[Answer]]
"""Asks all silos for their parts in a round, in their order."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How one silo stands after a round: what it has spent, and why it sent nothing."""

    silo: str
    epsilon: float
    absence: Absence | None


@dataclass(frozen=True, kw_only=True)
class SiloReport:
    """What happened in one round. All of it is public; `seconds`, which depend on the records that were drawn, are for
    simulations and None otherwise.
    """

    round: int
    silos: tuple[Standing, ...]
    learning_rate: float
    seconds: float | None

    @property
    def epsilon(self) -> float:
        """The most that any silo has spent."""
        return max(standing.epsilon for standing in self.silos)

    @property
    def stopped(self) -> tuple[str, ...]:
        """The silos whose budget did not allow this round."""
        return tuple(standing.silo for standing in self.silos if standing.absence == "budget spent")


@dataclass(frozen=True, kw_only=True, eq=False)
class SiloFedAvg:
    """The algorithm: every silo takes its noisy steps, and the server moves along the mean of what they send.

    The mean is weighted by public `weights`, equal ones unless given, over those who sent something; with `private`,
    which clips and noises, all weigh the same and the denominator is its plan's. The first weights are the
    model's own, or fresh ones times `init_scale`. The silos are asked one after the other, or all `together`.

    Guarantee: `apply` of equal states gives equal results under seeded randomness; a silo that had to stop does not
    stop the others.

    Edge cases: a round in which nobody sends anything leaves the weights as they are (with `private`, they get its
    noise). Who answers is public here, so a `PrivateRun` in which only a sample takes part is refused.
    """

    asks: Sequence[Ask]
    model: Model
    server: ServerOptimizer
    rounds: int
    randomness: Randomness
    weights: Sequence[float] | None = None
    private: PrivateRun | None = None
    init_scale: float = 1.0
    together: AskAll | None = None

    def __post_init__(self) -> None:
        _validate.count(rounds=self.rounds, silos=len(self.asks))
        _validate.non_negative(init_scale=self.init_scale)
        if self.weights is not None:
            if len(self.weights) != len(self.asks):
                remedy = f"give one for each of the {len(self.asks)} silos"
                raise ConfigError(field="weights", value=self.weights, remedy=remedy)
            for weight in self.weights:
                _validate.positive(weights=weight)
        if self.private is not None:
            self._check(self.private)

    def init(self) -> State:
        """The state before the first round, from the model's `initial` weights."""
        weights = self.model.initial(self.randomness, init_scale=self.init_scale).numpy().astype(np.float64)
        carry = NOTHING if self.private is None else self.private.start()
        return State.first(weights, server=self.server, carry=carry)

    def apply(self, state: State) -> tuple[State, SiloReport]:
        """Take the state through its round."""
        begin = time.perf_counter()
        if self.together is not None:
            answers = self.together(state.round, state.weights)
        else:
            answers = [ask(state.round, state.weights) for ask in self.asks]
        mean, carry = self._combined(state, answers)
        if mean is None:
            after = replace(state, round=state.round + 1)
        else:
            after = state.moved(mean, server=self.server, rounds=self.rounds, carry=carry)
        report = SiloReport(
            round=state.round,
            silos=tuple(Standing(silo=a.silo, epsilon=a.epsilon, absence=a.absence) for a in answers),
            learning_rate=self.server.rate(state.round, self.rounds),
            seconds=time.perf_counter() - begin if self.randomness.simulated else None,
        )
        return after, report

    def _combined(self, state: State, answers: Sequence[Answer]) -> tuple[Floats | None, Carry]:
        """The mean of what was sent, and what the next round is handed."""
        weights = self.weights or [1.0] * len(answers)
        if self.private is not None:
            opened = self.private.round(state.round, carry=state.carry)
            for place, answer in enumerate(answers):
                if answer.update is not None:
                    opened.add(answer.update, clients=[place])
            return opened.release().mean, opened.after
        sent = [(weight, a.update) for weight, a in zip(weights, answers, strict=True) if a.update is not None]
        if not sent:
            return None, state.carry
        total = sum(weight for weight, _ in sent)
        return np.sum([weight / total * update for weight, update in sent], axis=0), state.carry

    def _check(self, private: PrivateRun) -> None:
        sampler = private.plan.round(0).sampler
        if not isinstance(sampler, Everyone) or private.plan.noise_by != "server":
            remedy = "use Everyone: which silos answer is public, so nothing is gained from drawing some of them"
            raise ConfigError(field="sampling", value=type(sampler).__name__, remedy=remedy)
        if sampler.clients != len(self.asks) or private.plan.rounds != self.rounds or private.size != self.model.size:
            given = sampler.clients, private.plan.rounds, private.size
            remedy = f"plan for {len(self.asks)} clients, {self.rounds} rounds and {self.model.size} weights"
            raise ConfigError(field="private", value=given, remedy=remedy)
        if self.weights is not None:
            raise ConfigError(
                field="weights", value=self.weights, remedy="leave them out: the plan weighs all the same"
            )


NOTHING = Carry(clip=NormalisedClip())
"""What a round hands to the next where the server clips nothing: a clip that is never used."""
