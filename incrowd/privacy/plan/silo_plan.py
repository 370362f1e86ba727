"""What a silo promises its records, and how it will learn: public, and decided before the first round."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dp_accounting import DpEvent, GaussianDpEvent

from incrowd import _validate
from incrowd._html import html_table
from incrowd.errors import BudgetExceeded
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.account.calibrate import CONSTANT_NOISE, Pace, Remaining
from incrowd.privacy.account.events import RepeatedEvent, compose
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.noise import GaussianNoise, RecordTraining
from incrowd.privacy.plan.declared import check_declared
from incrowd.privacy.statement import RECORDS_ASSUMED, SILO_TRUST, Statement, stated

RELATION = Relation.ADD_OR_REMOVE_ONE
"""Two neighbours differ by one record that is there or not."""

UNIT = "record"
"""Who is protected by a round's noise."""

COUNTED = math.sqrt(2)
"""By how much one record moves the two counts of a round (there is one more record, and it may be right), in L2."""


@dataclass(frozen=True, kw_only=True)
class SiloPlan:
    """The unit is one record of the silo.

    `records` is how many there are as the silo declares it once and in public, and never counts it: the silo has as
    many as `check` allows, and no number here follows what it really has. With `batch_size` as
    the expected batch it gives the probability with which a record takes part in a step, and with `epochs` the number
    of steps of a round.

    `noise` is the pace at which the budget is used up over the `rounds`; or a noise multiplier, and then there are as
    many rounds as the budget allows. A round that only noise of more than `most_noise` could pay for does not take
    place, because nobody would learn from it.

    With `count_std` each round also releases how many records there are and how many of them the model gets right,
    both with noise of this standard deviation (in records), paid from the same budget. Without it nothing is counted.

    With `report_std` the silo releases once, at the end, a table: how many records of each class the model calls which,
    each number with noise of this standard deviation. A record is in one place of it, so its sensitivity is 1.

    Guarantee: `event` is what all that leaves the silo in a round costs, and `report_runs` what its report does.

    Edge cases: a batch of all records takes part in full, and is priced so; one larger than that is refused.
    """

    name: str
    budget: Budget
    rounds: int
    records: int
    batch_size: float
    epochs: float = 1.0
    clip_norm: float = 1.0
    noise: Pace | float = CONSTANT_NOISE
    most_noise: float = 100.0
    count_std: float | None = None
    report_std: float | None = None
    physical_batch: int = 256

    def __post_init__(self) -> None:
        _validate.count(rounds=self.rounds, records=self.records, physical_batch=self.physical_batch)
        _validate.positive(
            batch_size=self.batch_size, epochs=self.epochs, clip_norm=self.clip_norm, most_noise=self.most_noise
        )
        _validate.at_most(self.records, "the declared number of records", batch_size=self.batch_size)
        if not isinstance(self.noise, Pace):
            _validate.positive(noise=self.noise)
        if self.count_std is not None:
            _validate.positive(count_std=self.count_std)
        if self.report_std is not None:
            _validate.positive(report_std=self.report_std)

    @property
    def sampling_prob(self) -> float:
        """The probability with which a record takes part in a step."""
        return self.batch_size / self.records

    @property
    def steps(self) -> int:
        """How many steps a round has."""
        return max(1, round(self.epochs / self.sampling_prob))

    @property
    def contributions(self) -> float:
        """How many records are expected to take part in steps, in all rounds together."""
        return self.rounds * self.steps * self.batch_size

    @property
    def most_records(self) -> int:
        """More records than this the silo does not hold, so that the rounding errors of sums are bounded."""
        return self.records

    def check(self, held: int) -> None:
        """Refuse a silo whose records are fewer or more than the declared number allows, without saying how many.

        Edge cases: this is for the silo itself, whose records they are, and before anything is spent.
        """
        check_declared(self.records, held=held, field="records", what=f"the records of {self.name}")

    def training(self, noise_multiplier: float) -> RecordTraining:
        """The settings of a round, for an engine."""
        return RecordTraining(
            steps=self.steps,
            sampling_prob=self.sampling_prob,
            expected_batch=self.batch_size,
            clip_norm=self.clip_norm,
            noise_multiplier=noise_multiplier,
            physical_batch=self.physical_batch,
            most_records=self.most_records,
        )

    @property
    def count_noise(self) -> GaussianNoise | None:
        """What hides a record in the two counts."""
        if self.count_std is None:
            return None
        return GaussianNoise(noise_multiplier=self.count_std / COUNTED, clip_norm=COUNTED)

    @property
    def report_noise(self) -> GaussianNoise | None:
        """What hides a record in the table of the report."""
        return None if self.report_std is None else GaussianNoise(noise_multiplier=self.report_std, clip_norm=1.0)

    @property
    def report_runs(self) -> list[RepeatedEvent]:
        """What the report costs: reserved before the first round, so that the rounds leave room for it."""
        noise = self.report_noise
        return [] if noise is None else [(noise.event(), 1)]

    def check_noise(self, noise_multiplier: float, *, size: int) -> None:
        """Refuse, before a round of a model of so many weights is paid for, noise that could not be drawn for it."""
        self.training(noise_multiplier).check_noise(size)
        if self.count_noise is not None:
            self.count_noise.step(2, contributions_bound=self.most_records)

    def check_report(self, numbers: int) -> None:
        """Refuse noise that could not be drawn for a report of so many numbers."""
        if self.report_noise is not None:
            self.report_noise.step(numbers, contributions_bound=self.most_records)

    def runs(self, noise_multiplier: float) -> list[RepeatedEvent]:
        """What a round costs: its steps, and its counts."""
        counts = self.count_noise
        beside: list[RepeatedEvent] = [] if counts is None else [(GaussianDpEvent(counts.noise_multiplier), 1)]
        return [*self.training(noise_multiplier).runs, *beside]

    def event(self, noise_multiplier: float) -> DpEvent:
        """A round as one event."""
        return compose(self.runs(noise_multiplier))

    def noise_multiplier(self, number: int, *, spent: Sequence[RepeatedEvent], usual: float | None = None) -> float:
        """The noise of a round (from 0), when so much was spent before it and the last round had the `usual` noise.

        Guarantee: where there is a pace, the round's price together with all that was spent keeps to it.

        Edge cases: a round that is not planned, or that the budget has no room for: `BudgetExceeded`. A given
        multiplier is given back: whether the budget allows the round is for the ledger to say.
        """
        _validate.natural(round=number)
        remaining = Remaining(
            budget=self.budget, relation=RELATION, spent=tuple(spent), rounds=max(0, self.rounds - number)
        )
        if not isinstance(self.noise, Pace):
            return self.noise
        multiplier = remaining.noise(self.runs, pace=self.noise, usual=usual, most=self.most_noise)
        if multiplier > self.most_noise:
            raise BudgetExceeded(
                f"what remains of epsilon = {self.budget.epsilon:g} would take a noise multiplier of {multiplier:.4g}, "
                f"and most_noise is {self.most_noise:g}: nobody would learn from that"
            )
        return multiplier

    def statement(self, ledger: Ledger, *, own: int) -> Statement:
        """What the silo may claim for all that was charged to its ledger, so many charges of it by this plan."""
        share = "all" if self.sampling_prob == 1 else f"{self.batch_size:g}"
        counts = "" if self.count_std is None else ", and two counts a round"
        counts += "" if self.report_std is None else ", and one table of counts at the end"
        return stated(
            ledger,
            unit=UNIT,
            trust=SILO_TRUST,
            own=own,
            sampler=(
                f"Poisson, {share} of {self.records} records a step, {self.steps} steps a round, at most {self.rounds} "
                f"rounds{counts}"
            ),
            assumed=RECORDS_ASSUMED,
            caveats=self._cautions(),
        )

    def _repr_html_(self) -> str:
        """A notebook's view: what the silo declares and promises, all of it public."""
        pace = f"by the pace {self.noise.name}" if isinstance(self.noise, Pace) else f"{self.noise:g}"
        return html_table(
            {
                "silo": self.name,
                "records": f"{self.records}, as declared",
                "rounds": f"at most {self.rounds}",
                "steps a round": self.steps,
                "records a step": f"{self.batch_size:g}",
                "noise multiplier": pace,
                "counts": "none" if self.count_std is None else f"two a round, noise {self.count_std:g}",
                "report": "none" if self.report_std is None else f"one table at the end, noise {self.report_std:g}",
                "epsilon": f"at most {self.budget.epsilon:g}",
                "delta": f"{self.budget.delta:g}",
            }
        )

    def _cautions(self) -> tuple[str, ...]:
        caution = self.budget.warn_for(self.records)
        return () if caution is None else (caution.replace("client", "record"),)
