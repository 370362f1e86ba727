"""Plans of private rounds: config -> calibrate(budget) -> plan.

The plan is the one place that states the sampling probability, the clip bound, the noise multiplier and the number of
rounds. Sampler, noise and accounting event of a round come out of it together, so they cannot disagree.
"""

import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

from dp_accounting import DpEvent, GaussianDpEvent
from dp_accounting.dp_event import NoOpDpEvent

from incrowd import _validate
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import ACCOUNTANTS, Budget, Price, Relation, price
from incrowd.privacy.account.calibrate import smallest_noise
from incrowd.privacy.account.events import RepeatedEvent, compose
from incrowd.privacy.mechanism.clipping import Clip, FixedClip, MedianClip, NormalisedClip, QuantileClip, ThirdPartyClip
from incrowd.privacy.mechanism.correlated import CorrelatedNoise
from incrowd.privacy.mechanism.grid import GaussianNoise, RecordTraining
from incrowd.privacy.mechanism.shared import SharedNoise
from incrowd.privacy.plan.sampling import (
    Cyclic,
    Everyone,
    FixedSize,
    Poisson,
    Sampler,
    Schedule,
    Step,
    ThirdPartySampling,
    apart,
    check_declared,
)
from incrowd.privacy.statement import (
    ALWAYS_ASSUMED,
    MEDIAN,
    RECORDS_ASSUMED,
    SHARED_ASSUMED,
    TRUST,
    Statement,
    of_shares,
    stated,
)

if TYPE_CHECKING:
    from incrowd.privacy.ledger.ledger import Ledger

Unit = Literal["client", "record"]
"""Who is protected: a client with all its examples, or one record of a silo."""

NoiseBy = Literal["server", "party", "parties"]
"""Who adds noise: the server, to the sum; each party, enough for what it sends; or all parties, a share each."""

OwnSampling = type[Poisson] | type[FixedSize] | type[Everyone] | type[Cyclic]
Sampling = OwnSampling | ThirdPartySampling

SAMPLING: dict[str, OwnSampling] = {"poisson": Poisson, "fixed": FixedSize, "everyone": Everyone, "cyclic": Cyclic}
"""The samplers by the names that forms, configuration files and the command line use."""


class PrivacyWarning(UserWarning):
    """A promise that holds as stated, but says less than its reader may think."""


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """The plan of one round."""

    sampler: Sampler
    noise_multiplier: float
    event: DpEvent


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """Participants, rounds and bounds on contributions; the noise is still relative.

    There are so many `members`: clients, or records, as the `unit` says. With `noise_by` "party" each client, or silo,
    adds noise to what it sends, and the server adds none; the records are then those of one silo. With "server" they
    are the records of all silos, and a round is one step: the server noises the sum of the silos' sums. With "parties"
    each of the `parties` (the clients, or so many silos) adds a share of the noise under masks. Any of them but
    `colluders` (1 unless it is given) have enough noise together.

    Under `Cyclic` sampling clients take turns in groups of the schedule's cohort. Then the noise is correlated over the
    rounds (DP-FTRL): each round takes back a part of the earlier rounds' noise, and the whole run is one event. Clips
    that change from round to round are refused then: correlated noise belongs to one bound.

    Records take part in `steps` noised sums a round, each of an expected batch that is the schedule's cohort.

    Records are sampled by `Poisson` and clipped by `FixedClip`. Clients that add noise are not sampled, and their clip
    does not need the cohort's norms.
    """

    members: int
    schedule: Schedule
    sampling: Sampling = Poisson
    unit: Unit = "client"
    noise_by: NoiseBy = "server"
    clip: Clip | MedianClip = field(default_factory=NormalisedClip)
    steps: int = 1
    parties: int | None = None
    colluders: int | None = None
    accountants: tuple[str, ...] = ACCOUNTANTS

    def __post_init__(self) -> None:
        _validate.count(members=self.members, steps=self.steps)
        known = ", ".join(kind.__name__ for kind in SAMPLING.values())
        remedy = f"give one of the classes {known}; SAMPLING has them by name"
        registered = type(self.sampling) is ThirdPartySampling
        _need(registered or self.sampling in SAMPLING.values(), sampling=self.sampling, remedy=remedy)
        _need(self.unit in get_args(Unit), unit=self.unit, remedy=f"give one of {', '.join(get_args(Unit))}")
        remedy = f"give one of {', '.join(get_args(NoiseBy))}"
        _need(self.noise_by in get_args(NoiseBy), noise_by=self.noise_by, remedy=remedy)
        for step in self.schedule.steps:
            self.sampler(step)
        self._check_shares()
        if self.unit == "record":
            self._check_records()
        else:
            self._check_clients()

    @classmethod
    def of_records(
        cls,
        *,
        records: int,
        rounds: int,
        clip_norm: float,
        batch_size: float | None = None,
        epochs: float = 1.0,
        noise_multiplier: float = 1.0,
    ) -> "PlanConfig":
        """Rounds of DP-SGD in a silo that declares so many records: so many epochs each, in expected batches."""
        batch = records if batch_size is None else batch_size
        _validate.count(records=records)
        _validate.positive(batch_size=batch, epochs=epochs)
        _validate.at_most(records, "the declared number of records", batch_size=batch)
        return cls(
            members=records,
            schedule=Schedule((Step(rounds=rounds, cohort=float(batch), noise_multiplier=noise_multiplier),)),
            unit="record",
            noise_by="party",
            clip=FixedClip(clip_norm=clip_norm),
            steps=max(1, round(epochs * records / batch)),
        )

    @classmethod
    def in_turns(cls, *, clients: int, rounds: int, groups: int, clip: Clip | MedianClip | None = None) -> "PlanConfig":
        """Rounds with correlated noise, over clients that take turns in so many groups."""
        _validate.count(clients=clients, groups=groups)
        schedule = Schedule((Step(rounds=rounds, cohort=clients / groups),))
        return cls(members=clients, schedule=schedule, sampling=Cyclic, clip=NormalisedClip() if clip is None else clip)

    @property
    def sharing(self) -> tuple[int, int]:
        """The number of parties that share the noise, and of those who may collude."""
        return self.members if self.parties is None else self.parties, 1 if self.colluders is None else self.colluders

    @property
    def relation(self) -> Relation:
        """The neighbouring relation of every round; a client that adds noise is protected against a replaced value."""
        if self.unit == "client" and self.noise_by == "party":
            return Relation.REPLACE_ONE
        return self.sampler(self.schedule.steps[0]).relation

    def sampler(self, step: Step) -> Sampler:
        """The sampler of the rounds of one step."""
        return self.sampling(clients=self.members, cohort=step.cohort)

    @property
    def third_party(self) -> tuple[str, ...]:
        """The parts of the plan that are not incrowd's, as statements name them."""
        return (
            *((f"clip {self.clip.name}",) if isinstance(self.clip, ThirdPartyClip) else ()),
            *((f"sampler {self.sampling.name}",) if isinstance(self.sampling, ThirdPartySampling) else ()),
            *(f"accountant {name}" for name in self.accountants if name not in ACCOUNTANTS),
        )

    @property
    def groups(self) -> int | None:
        """The number of groups in which clients take turns, where noise is correlated; otherwise None."""
        turns = self.sampler(self.schedule.steps[0])
        return turns.groups if isinstance(turns, Cyclic) else None

    def event(self, step: Step) -> DpEvent:
        """The cost of one round of a step, to a client itself where clients add the noise."""
        if self.unit == "record":
            return compose([(self.sampler(step).event(step.noise_multiplier), self.steps)])
        if self.noise_by == "party":
            return GaussianDpEvent(step.noise_multiplier / apart(self.relation))
        return self.sampler(step).event(step.noise_multiplier)

    def runs(self) -> list[RepeatedEvent]:
        """The accounting events of all rounds, in order, equal neighbours counted.

        The first round pays for all rounds with correlated noise; the ledger counts the others at no cost.
        """
        if self.sampling is Cyclic:
            rounds, multiplier = self.schedule.rounds, self.schedule.at(0).noise_multiplier
            later: list[RepeatedEvent] = [(NoOpDpEvent(), rounds - 1)] if rounds > 1 else []
            return [(GaussianDpEvent(multiplier), 1), *later]
        return [(self.event(step), step.rounds) for step in self.schedule.steps]

    @property
    def whole(self) -> DpEvent:
        """The rounds as one event."""
        return compose(self.runs())

    def scaled(self, factor: float) -> "PlanConfig":
        """The same config with every noise multiplier times a factor."""
        return replace(self, schedule=self.schedule.scaled(factor))

    def calibrate(self, budget: Budget) -> "Plan":
        """The plan that spends exactly this budget: the least noise, in the schedule's proportions."""
        factor = smallest_noise(
            lambda factor: self.scaled(factor).whole,
            budget=budget,
            relation=self.relation,
            accountants=self.accountants,
        )
        return self.scaled(factor).plan(budget)

    def plan(self, budget: Budget) -> "Plan":
        """The plan with the schedule's noise multipliers taken as they are, which must fit the budget."""
        return Plan(config=self, budget=budget)

    def _check_shares(self) -> None:
        if self.noise_by != "parties":
            remedy = 'it goes with noise_by = "parties": leave it out'
            _need(self.parties is None, parties=self.parties, remedy=remedy)
            _need(self.colluders is None, colluders=self.colluders, remedy=remedy)
            return
        remedy = "give the number of silos, each of which adds a share; of clients it is that of the members"
        wanted, (parties, colluders) = self.parties is not None, self.sharing
        _need(wanted if self.unit == "record" else parties == self.members, parties=self.parties, remedy=remedy)
        _validate.count(colluders=colluders, parties=parties)
        remedy = "somebody has to be honest: give fewer than there are parties"
        _need(colluders < parties, colluders=colluders, remedy=remedy)
        remedy = "a party may miss rounds, so all have the same noise: use constant(...)"
        _need(len(self.schedule.steps) == 1, schedule=len(self.schedule.steps), remedy=remedy)

    def _check_records(self) -> None:
        remedy = "a silo draws its records one by one: use Poisson"
        _need(self.sampling is Poisson, sampling=self.sampling.__name__, remedy=remedy)
        remedy = "a record's gradient has a stated bound: use FixedClip"
        _need(isinstance(self.clip, FixedClip), clip=type(self.clip).__name__, remedy=remedy)
        remedy = 'a round is one step where noise_by is not "party": leave it out'
        _need(self.noise_by == "party" or self.steps == 1, steps=self.steps, remedy=remedy)
        remedy = "a silo may miss rounds, so all have the same batch and noise: use constant(...)"
        _need(len(self.schedule.steps) == 1, schedule=len(self.schedule.steps), remedy=remedy)

    def _check_clients(self) -> None:
        clip, adaptive = type(self.clip).__name__, isinstance(self.clip, MedianClip | QuantileClip)
        if self.noise_by == "parties":
            remedy = "the server knows who is listed, so sampling hides nobody, and correlated shares are not proved"
            _need(self.sampling is Everyone, sampling=self.sampling.__name__, remedy=f"{remedy}: use Everyone")
            remedy = "bits of a cohort's norms have no shares that are proved: use a fixed or normalised clip"
            _need(not adaptive, clip=clip, remedy=remedy)
        elif self.noise_by == "party":
            remedy = "who answers is seen where noise is local, so nothing is gained from drawing some: use Everyone"
            _need(self.sampling is Everyone, sampling=self.sampling.__name__, remedy=remedy)
            remedy = "a client alone cannot know the cohort's norms: use a fixed or normalised clip"
            _need(not adaptive, clip=clip, remedy=remedy)
        elif self.sampling is Cyclic:
            remedy = "correlated noise belongs to one bound: use a fixed or normalised clip"
            _need(not adaptive, clip=clip, remedy=remedy)
            remedy = "correlated noise has one strength, and groups have one size: use constant(...)"
            _need(len(self.schedule.steps) == 1, schedule=len(self.schedule.steps), remedy=remedy)
        remedy = "only records take part in several steps a round: leave it out"
        _need(self.steps == 1, steps=self.steps, remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A frozen promise: every round's sampler, noise and event, and what they cost together.

    Guarantee: `price.epsilon` is an upper bound that does not exceed `budget.epsilon`; `round(t).event` is the event of
    exactly the sampler and noise multiplier of `round(t)`, or the first round's event is that of all correlated noise.
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
        if (caution := self._caution()) is not None:
            warnings.warn(caution, PrivacyWarning, stacklevel=2)

    @property
    def noise_by(self) -> NoiseBy:
        """The actor that adds the noise."""
        return self.config.noise_by

    @property
    def unit(self) -> Unit:
        """Who is protected."""
        return self.config.unit

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
        """The smallest of any round; that of correlated noise is relative to the sensitivity of the whole run."""
        return min(step.noise_multiplier for step in self.config.schedule.steps)

    @cached_property
    def correlated(self) -> CorrelatedNoise | None:
        """The noise of all rounds, where it is correlated over them: as many bands as there are groups."""
        config, groups = self.config, self.config.groups
        if groups is None or isinstance(config.clip, MedianClip):
            return None
        return CorrelatedNoise(
            noise_multiplier=self.noise_multiplier,
            clip_norm=config.clip.clip_norm,
            contributions_bound=config.members,
            rounds=self.rounds,
            groups=groups,
        )

    @cached_property
    def runs(self) -> list[RepeatedEvent]:
        """The events of all rounds, as a ledger reserves them."""
        return self.config.runs()

    @property
    def event(self) -> DpEvent:
        """The whole plan as one event."""
        return compose(self.runs)

    def round(self, number: int) -> RoundPlan:
        """The plan of one round, counted from 0."""
        config, step = self.config, self.config.schedule.at(number)
        event = self.runs[min(number, 1)][0] if config.sampling is Cyclic else config.event(step)
        return RoundPlan(sampler=config.sampler(step), noise_multiplier=step.noise_multiplier, event=event)

    def noise(self, number: int, clip: Clip) -> GaussianNoise | CorrelatedNoise:
        """The noise on the released sum of a round in which this clip was used."""
        if self.correlated is not None:
            return self.correlated
        if self.unit == "record":
            return self.training().noise
        multiplier = self.round(number).noise_multiplier
        if isinstance(clip, QuantileClip):
            multiplier = clip.update_multiplier(multiplier)
        return GaussianNoise(noise_multiplier=multiplier, clip_norm=clip.clip_norm)

    def party_noise(self, number: int, clip: Clip) -> GaussianNoise | None:
        """The noise that each client adds to what it sends; None where the server adds it."""
        noise = self.noise(number, clip)
        return noise if self.noise_by == "party" and isinstance(noise, GaussianNoise) else None

    def shared(self, number: int, clip: Clip) -> SharedNoise | None:
        """The noise of a round in shares, where parties add it together; otherwise None."""
        noise, (parties, colluders), bound = self.noise(number, clip), self.config.sharing, self.config.members
        if self.noise_by != "parties" or not isinstance(noise, GaussianNoise):
            return None
        return SharedNoise(noise=noise, parties=parties, colluders=colluders, contributions_bound=bound)

    def statement(self, ledger: "Ledger", *, own: int) -> Statement:
        """The promise of all that was charged to a ledger; so many of the charges are for rounds of this plan."""
        cautions = None if self.config.clip.private else MEDIAN, self._caution(), *self._of_shares()
        assumed = RECORDS_ASSUMED if self.unit == "record" else ALWAYS_ASSUMED
        parties, colluders = self.config.sharing
        return stated(
            ledger,
            unit=self.unit,
            own=own,
            trust=TRUST[self.unit, self.noise_by].format(parties=parties, colluders=colluders),
            sampler=self._sampling(),
            assumed=assumed if self.noise_by != "parties" else (*assumed, SHARED_ASSUMED),
            caveats=tuple(caution for caution in cautions if caution is not None),
        )

    def _of_shares(self) -> tuple[str, ...]:
        def costs(factor: float) -> float:
            return price(self.config.scaled(factor).whole, delta=self.budget.delta, relation=self.relation).epsilon

        return of_shares(*self.config.sharing, costs) if self.noise_by == "parties" else ()

    def _caution(self) -> str | None:
        caution = self.budget.warn_for(self.config.members)
        return caution if caution is None or self.unit == "client" else caution.replace("client", "record")

    def _sampling(self) -> str:
        config = self.config
        if config.groups is not None:
            return f"none: {config.members} clients take turns in {config.groups} groups over {self.rounds} rounds"
        cohorts = sorted({config.sampler(step).expected_cohort for step in config.schedule.steps})
        sizes = f"{cohorts[0]:g}" if len(cohorts) == 1 else f"{cohorts[0]:g} to {cohorts[-1]:g}"
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        if self.unit == "client":
            return f"{config.sampling.__name__}, {sizes} of {config.members} clients a round, {rounds}"
        share = "all" if cohorts[0] == config.members else sizes
        if self.noise_by != "party":
            return f"Poisson, {share} of {config.members} records of all silos a round, {rounds}"
        return f"Poisson, {share} of {config.members} records a step, {config.steps} steps a round, at most {rounds}"

    def training(self, size: int | None = None) -> RecordTraining:
        """The steps of a round over records; with a `size`, noise that fits no grid for so many weights is refused."""
        config, step = self.config, self.config.schedule.steps[0]
        if config.unit != "record" or not isinstance(config.clip, FixedClip):
            raise ConfigError(field="unit", value=config.unit, remedy='give a plan whose unit is "record"')
        training = RecordTraining(
            steps=config.steps,
            sampling_prob=step.cohort / config.members,
            expected_batch=step.cohort,
            clip_norm=config.clip.clip_norm,
            noise_multiplier=step.noise_multiplier,
            most_records=config.members,
        )
        if size is not None:
            training.grid_step(size)
        return training

    def check_held(self, held: int, *, silo: str) -> None:
        """Refuse a silo whose records are fewer or more than the declared number allows (`check_declared`)."""
        check_declared(self.config.members, held=held, field="records", what=f"the records of {silo}")

    def _priced(self) -> Price:
        for step in self.config.schedule.steps:
            if isinstance(self.config.clip, QuantileClip):
                self.config.clip.update_multiplier(step.noise_multiplier)
        return price(
            self.config.whole, delta=self.budget.delta, relation=self.relation, accountants=self.config.accountants
        )


def _need(holds: bool, *, remedy: str, **given: object) -> None:  # noqa: FBT001 - it reads as a sentence
    """Refuse a named value unless something holds."""
    if not holds:
        ((field, value),) = given.items()
        raise ConfigError(field=field, value=value, remedy=remedy)
