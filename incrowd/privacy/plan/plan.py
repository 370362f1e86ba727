"""From a few numbers to a promise: config -> calibrate(budget) -> plan.

The plan is the one place that states the sampling probability, the clip bound, the noise multiplier and the number of
rounds. Sampler, noise and accounting event of a round come out of it together, so they cannot disagree.
"""

import math
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import get_args

from dp_accounting import DpEvent, GaussianDpEvent

from incrowd import _validate
from incrowd._html import html_table
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import ACCOUNTANTS, Budget, Price, Relation, price
from incrowd.privacy.account.calibrate import smallest_noise
from incrowd.privacy.account.events import RepeatedEvent, compose
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.receipt import Receipt
from incrowd.privacy.mechanism.clipping import Clip, MedianClip, NormalisedClip, QuantileClip
from incrowd.privacy.mechanism.correlated import NoiseState
from incrowd.privacy.mechanism.noise import GaussianNoise
from incrowd.privacy.plan.promise import Carry, NoisedSum, NoisePlace, Noises, Pending, RoundPlan
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson, Sampler
from incrowd.privacy.plan.schedule import Schedule, Step
from incrowd.privacy.statement import CENTRAL_TRUST, LOCAL_TRUST, MEDIAN, Statement, stated

Sampling = type[Poisson] | type[FixedSize] | type[Everyone]

SAMPLING: dict[str, Sampling] = {
    "poisson": Poisson,
    "fixed": FixedSize,
    "everyone": Everyone,
}
"""The samplers by the names that configuration files and the command line use."""


LOCAL_SENSITIVITY = 2
"""By how many clip bounds two values of one client differ at most."""


class PrivacyWarning(UserWarning):
    """A promise that holds as stated, but says less than its reader may think."""


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """Who takes part, how often, and how contributions are bounded; the noise is still relative.

    Where the `place` of the noise is "local", every client adds its own to what it sends, and nobody else any.

    Edge cases: a cohort larger than the number of clients, a fractional cohort under fixed-size sampling and a cohort
    other than all clients under `Everyone` are refused; so are a sampling that is not one of the classes in `SAMPLING`,
    its name included, and a sample and a clip that needs the cohort's norms where noise is local.
    """

    clients: int
    schedule: Schedule
    sampling: Sampling = Poisson
    place: NoisePlace = "central"
    clip: Clip | MedianClip = field(default_factory=NormalisedClip)
    accountants: tuple[str, ...] = ACCOUNTANTS

    def __post_init__(self) -> None:
        _validate.count(clients=self.clients)
        if self.sampling not in SAMPLING.values():
            known = ", ".join(kind.__name__ for kind in SAMPLING.values())
            remedy = f"give one of the classes {known}; SAMPLING has them by name"
            raise ConfigError(field="sampling", value=self.sampling, remedy=remedy)
        for step in self.schedule.steps:
            self.sampler(step)
        if self.place not in get_args(NoisePlace):
            raise ConfigError(field="place", value=self.place, remedy=f"give one of {', '.join(get_args(NoisePlace))}")
        if self.place == "local":
            self._check_local()

    @property
    def relation(self) -> Relation:
        """The neighbouring relation of every round: of a client's own values, where its noise is its own."""
        return Relation.REPLACE_ONE if self.place == "local" else self.sampler(self.schedule.steps[0]).relation

    def sampler(self, step: Step) -> Sampler:
        """The sampler of the rounds of one step."""
        if self.sampling is Everyone:
            if step.cohort != self.clients:
                raise ConfigError(field="cohort", value=step.cohort, remedy=f"everyone means {self.clients} clients")
            return Everyone(clients=self.clients)
        if self.sampling is FixedSize:
            if step.cohort != int(step.cohort):
                raise ConfigError(field="cohort", value=step.cohort, remedy="a fixed-size cohort is a whole number")
            return FixedSize(clients=self.clients, cohort=int(step.cohort))
        return Poisson(clients=self.clients, cohort=step.cohort)

    def event(self, step: Step) -> DpEvent:
        """What one round of a step costs; where noise is local, what it costs each client for itself."""
        if self.place == "local":
            return GaussianDpEvent(step.noise_multiplier / LOCAL_SENSITIVITY)
        return self.sampler(step).event(step.noise_multiplier)

    def runs(self) -> list[RepeatedEvent]:
        """The accounting events of all rounds, in order, equal neighbours counted."""
        return [(self.event(step), step.rounds) for step in self.schedule.steps]

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

    def _check_local(self) -> None:
        if self.sampling is not Everyone:
            remedy = "who answers is seen where noise is local, so nothing is gained from drawing some: use Everyone"
            raise ConfigError(field="sampling", value=self.sampling.__name__, remedy=remedy)
        if isinstance(self.clip, MedianClip | QuantileClip):
            remedy = "a client alone cannot know the cohort's norms: use a fixed or normalised clip"
            raise ConfigError(field="clip", value=type(self.clip).__name__, remedy=remedy)


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
    def place(self) -> NoisePlace:
        """See `Promise.place`."""
        return self.config.place

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
    def runs(self) -> list[RepeatedEvent]:
        """The events of all rounds, as a ledger reserves them."""
        return self.config.runs()

    @property
    def event(self) -> DpEvent:
        """The whole plan as one event."""
        return compose(self.runs)

    def round(self, number: int) -> RoundPlan:
        """What the plan says about one round, counted from 0."""
        config, step = self.config, self.config.schedule.at(number)
        return RoundPlan(sampler=config.sampler(step), noise_multiplier=step.noise_multiplier, event=config.event(step))

    def start(self, size: int) -> Carry:
        """See `Promise.start`."""
        return Carry(clip=self.config.clip)

    def _repr_html_(self) -> str:
        """A notebook's view: the promise and its price, all of it public."""
        shown = {
            "clients": self.config.clients,
            "rounds": self.rounds,
            "sampling": self.config.sampling.__name__,
            "noise": f"added by the {'clients' if self.place == 'local' else 'server'}",
            "noise multiplier": f"{self.noise_multiplier:.6g}",
            "epsilon": f"{self.price.epsilon:.6g}, of {self.budget.epsilon:g}",
            "delta": f"{self.budget.delta:g}",
            "accountant": self.price.accountant,
        }
        return html_table(shown)

    def noises(self, number: int, clip: Clip) -> Noises:
        """See `Promise.noises`. A quantile's bits take their part of the round's noise."""
        gaussian, bits = self._gaussian(number, clip), None
        if isinstance(clip, QuantileClip):
            # A bit counts as -1/2 or +1/2: one client changes the sum by at most 1/2 (Andrew et al. 2021).
            bits = GaussianNoise(noise_multiplier=2 * clip.bit_noise, clip_norm=0.5)
        return Noises(party=gaussian) if self.place == "local" else Noises(server=gaussian, bits=bits)

    def add_noise(self, pending: Pending, *, memory: NoiseState | None, receipt: Receipt) -> NoisedSum:
        """See `Promise.add_noise`. Where noise is local it is in the sum already, that of as many as should answer."""
        gaussian, clients = self._gaussian(pending.round, pending.clip), self.config.clients
        std = gaussian.noise_multiplier * gaussian.clip_norm
        if self.place == "local":
            return NoisedSum(total=pending.total, std=std * math.sqrt(clients))
        at = "noise", pending.round
        return NoisedSum(
            total=gaussian.add(pending.total, receipt=receipt, at=at, contributions_bound=clients), std=std
        )

    def statement(self, ledger: Ledger, *, own: int, caveats: tuple[str, ...] = ()) -> Statement:
        """See `Promise.statement`."""
        cautions = None if self.config.clip.private else MEDIAN, self.budget.warn_for(self.config.clients)
        return stated(
            ledger,
            unit="client",
            own=own,
            trust=LOCAL_TRUST if self.place == "local" else CENTRAL_TRUST,
            sampler=self._sampling(),
            caveats=(*caveats, *(caution for caution in cautions if caution is not None)),
        )

    def _gaussian(self, number: int, clip: Clip) -> GaussianNoise:
        """The noise on what is released of the contributions, whoever adds it."""
        multiplier = self.round(number).noise_multiplier
        if isinstance(clip, QuantileClip):
            multiplier = clip.update_multiplier(multiplier)
        return GaussianNoise(noise_multiplier=multiplier, clip_norm=clip.clip_norm)

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
