"""From a few numbers to a promise: config -> calibrate(budget) -> plan.

The plan is the one place that states the sampling probability, the clip bound, the noise multiplier and the number of
rounds. Sampler, noise and accounting event of a round come out of it together, so they cannot disagree.
"""

import math
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from dp_accounting import DpEvent

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import ACCOUNTANTS, Budget, Price, Relation, price
from incrowd.privacy.account.calibration import smallest_noise
from incrowd.privacy.account.events import Run, compose
from incrowd.privacy.mechanism.clipping import Clip, MedianClip, NormalisedClip, QuantileClip
from incrowd.privacy.mechanism.correlated import NoiseState
from incrowd.privacy.mechanism.noise import GaussianNoise
from incrowd.privacy.plan.promise import Carry, Hidden, Pending, RoundPlan
from incrowd.privacy.plan.sampling import Everyone, FixedSize, LocalEveryone, Poisson, Sampler
from incrowd.privacy.plan.schedule import Schedule, Step
from incrowd.privacy.statement import CENTRAL_TRUST, LOCAL_TRUST, MEDIAN, SIMULATION, Statement

Sampling = type[Poisson] | type[FixedSize] | type[Everyone] | type[LocalEveryone]

SAMPLING: dict[str, Sampling] = {
    "poisson": Poisson,
    "fixed": FixedSize,
    "everyone": Everyone,
    "local": LocalEveryone,
}
"""The samplers by the names that configuration files and the command line use."""


class PrivacyWarning(UserWarning):
    """A promise that holds as stated, but says less than its reader may think."""


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """Who takes part, how often, and how contributions are bounded; the noise is still relative.

    Edge cases: a cohort larger than the number of clients, a fractional cohort under fixed-size sampling and a cohort
    other than all clients under `Everyone` are refused.
    """

    clients: int
    schedule: Schedule
    sampling: Sampling = Poisson
    clip: Clip | MedianClip = field(default_factory=NormalisedClip)
    accountants: tuple[str, ...] = ACCOUNTANTS

    def __post_init__(self) -> None:
        _validate.count(clients=self.clients)
        for step in self.schedule.steps:
            self.sampler(step)
        if self.sampling is LocalEveryone and isinstance(self.clip, MedianClip | QuantileClip):
            remedy = "a client alone cannot know the cohort's norms: use a fixed or normalised clip"
            raise ConfigError(field="clip", value=type(self.clip).__name__, remedy=remedy)

    @property
    def relation(self) -> Relation:
        """The neighbouring relation of every round."""
        return self.sampler(self.schedule.steps[0]).relation

    def sampler(self, step: Step) -> Sampler:
        """The sampler of the rounds of one step."""
        if self.sampling is Everyone or self.sampling is LocalEveryone:
            if step.cohort != self.clients:
                raise ConfigError(field="cohort", value=step.cohort, remedy=f"everyone means {self.clients} clients")
            return self.sampling(clients=self.clients)
        if self.sampling is FixedSize:
            if step.cohort != int(step.cohort):
                raise ConfigError(field="cohort", value=step.cohort, remedy="a fixed-size cohort is a whole number")
            return FixedSize(clients=self.clients, cohort=int(step.cohort))
        return Poisson(clients=self.clients, cohort=step.cohort)

    def runs(self) -> list[Run]:
        """The accounting events of all rounds, in order, equal neighbours counted."""
        return [(self.sampler(step).event(step.noise_multiplier), step.rounds) for step in self.schedule.steps]

    def scaled(self, factor: float) -> "PlanConfig":
        """The same config with every noise multiplier times a factor."""
        return replace(self, schedule=self.schedule.scaled(factor))

    def calibrate(self, budget: Budget) -> "Plan":
        """The plan that spends exactly this budget: the least noise, in the schedule's proportions.

        Guarantee: the price of the plan, computed on the accountants' fine grid, is at most the budget.
        """
        factor = smallest_noise(
            lambda factor: compose(self.scaled(factor).runs()),
            budget=budget,
            relation=self.relation,
            accountants=self.accountants,
        )
        return self.scaled(factor).plan(budget)

    def plan(self, budget: Budget) -> "Plan":
        """The plan with the schedule's noise multipliers taken as they are, which must fit the budget."""
        return Plan(config=self, budget=budget)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A frozen promise: every round's sampler, noise and event, and what they cost together.

    Guarantee: `price.epsilon` is an upper bound that does not exceed `budget.epsilon`; `round(t).event` is the event of
    exactly the sampler and noise multiplier of `round(t)`.

    Edge cases: a plan that does not fit its budget cannot be made; a delta of 1/clients or more gives a
    `PrivacyWarning`.
    """

    config: PlanConfig
    budget: Budget
    price: Price = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "price", self._priced())
        if self.price.epsilon > self.budget.epsilon:
            raise ConfigError(
                field="epsilon",
                value=self.budget.epsilon,
                remedy=f"these rounds cost {self.price.epsilon:.6g}: raise the noise, or plan fewer or smaller rounds",
            )
        caution = self.budget.warn_for(self.config.clients)
        if caution is not None:
            warnings.warn(caution, PrivacyWarning, stacklevel=2)

    @property
    def rounds(self) -> int:
        """How many rounds are planned."""
        return self.config.schedule.rounds

    @property
    def relation(self) -> Relation:
        """The neighbouring relation of the promise."""
        return self.config.relation

    @property
    def noise_multiplier(self) -> float:
        """The smallest noise multiplier of any round (they are all the same in a constant schedule)."""
        return min(step.noise_multiplier for step in self.config.schedule.steps)

    @cached_property
    def runs(self) -> list[Run]:
        """The events of all rounds, as a ledger reserves them."""
        return self.config.runs()

    @property
    def event(self) -> DpEvent:
        """The whole plan as one event."""
        return compose(self.runs)

    def round(self, number: int) -> RoundPlan:
        """What the plan says about one round, counted from 0."""
        step = self.config.schedule.at(number)
        sampler = self.config.sampler(step)
        multiplier = step.noise_multiplier
        return RoundPlan(sampler=sampler, noise_multiplier=multiplier, event=sampler.event(multiplier))

    def start(self, size: int) -> Carry:
        """See `Promise.start`."""
        return Carry(clip=self.config.clip)

    def noise_state(self, size: int) -> NoiseState | None:
        """See `Promise.noise_state`: the noise of each round is its own."""
        return None

    def hide(self, pending: Pending, *, noise: NoiseState | None, randomness: Randomness) -> Hidden:
        """See `Promise.hide`. Clients that noise for themselves draw one by one, each from a stream of its own."""
        said = self.round(pending.round)
        multiplier = said.noise_multiplier
        if isinstance(pending.clip, QuantileClip):
            multiplier = pending.clip.update_multiplier(multiplier)
        gaussian = GaussianNoise(noise_multiplier=multiplier, clip_norm=pending.clip.clip_norm)
        std = multiplier * pending.clip.clip_norm
        if not isinstance(said.sampler, LocalEveryone):
            stream = randomness.stream("noise", pending.round)
            bound = said.sampler.clients
            return Hidden(total=gaussian.add(pending.total, stream=stream, contributions_bound=bound), std=std)
        total, nothing = pending.total.copy(), np.zeros_like(pending.total)
        for client in range(pending.contributions):
            stream = randomness.stream("noise", pending.round, client)
            total += gaussian.add(nothing, stream=stream, contributions_bound=1)
        return Hidden(total=total, std=std * math.sqrt(pending.contributions))

    def statement(self, *, simulated: bool) -> Statement:
        """What the finished run promises; `simulated` when its randomness was seeded."""
        cautions = (
            SIMULATION if simulated else None,
            None if self.config.clip.private else MEDIAN,
            self.budget.warn_for(self.config.clients),
        )
        return Statement(
            unit="client",
            relation=self.relation,
            trust=LOCAL_TRUST if self.config.sampling is LocalEveryone else CENTRAL_TRUST,
            epsilon=self.price.epsilon,
            delta=self.budget.delta,
            accountant=self.price.accountant,
            sampler=self._sampling(),
            caveats=tuple(caution for caution in cautions if caution is not None),
        )

    def _sampling(self) -> str:
        cohorts = sorted({self.config.sampler(step).expected_cohort for step in self.config.schedule.steps})
        sizes = f"{cohorts[0]:g}" if len(cohorts) == 1 else f"{cohorts[0]:g} to {cohorts[-1]:g}"
        return (
            f"{self.config.sampling.__name__}, {sizes} of {self.config.clients} clients a round, {_rounds(self.rounds)}"
        )

    def _priced(self) -> Price:
        for step in self.config.schedule.steps:
            if isinstance(self.config.clip, QuantileClip):
                self.config.clip.update_multiplier(step.noise_multiplier)
        event = compose(self.config.runs())
        return price(event, delta=self.budget.delta, relation=self.relation, accountants=self.config.accountants)


def _rounds(rounds: int) -> str:
    return "1 round" if rounds == 1 else f"{rounds} rounds"
