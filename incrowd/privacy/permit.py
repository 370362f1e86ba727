"""A round of a silo, or its report, that is paid for: the only way to noise, and so the only way out of the silo."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np
from dp_accounting import DpEvent

from incrowd._random import Floats, Randomness, Stream
from incrowd.errors import BudgetExceeded, ConfigError, LedgerMismatch
from incrowd.privacy.account.events import RepeatedEvent
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.forms import check_ours
from incrowd.privacy.plan.silo_plan import RELATION, UNIT, SiloPlan

Note = Mapping[str, str | int | float | bool | None]


@dataclass
class _Paid:
    """What was found in a ledger's first entries."""

    entries: int = 0
    rounds: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Account:
    """Where the rounds of one run are charged, and where their noise and batches are drawn from.

    Several runs can share a ledger under different labels. Silos that are simulated on one machine from one seed differ
    by their `place`.

    Guarantee: what was paid is read from the ledger, each entry once.
    """

    ledger: Ledger
    randomness: Randomness
    label: str = "run"
    place: int = 0
    _known: _Paid = field(default_factory=_Paid, init=False, repr=False)

    def paid(self) -> Mapping[int, float]:
        """The rounds of the run that were charged so far, each with its noise multiplier."""
        for entry in self.ledger.entries(start=self._known.entries):
            note = entry.content()["note"] if entry.kind == "charge" else {}
            if note.get("run") == self.label:
                self._known.rounds[note["round"]] = note["noise_multiplier"]
            self._known.entries = entry.position + 1
        return MappingProxyType(self._known.rounds)

    def check(self, plan: SiloPlan) -> None:
        """The ledger is one that this plan can be charged to (`LedgerMismatch`)."""
        ledger = self.ledger
        if ledger.budget != plan.budget or ledger.relation is not RELATION:
            raise LedgerMismatch(
                f"the ledger of {plan.name} has {ledger.budget} and {ledger.relation.name}, the plan {plan.budget} and "
                f"{RELATION.name}: give a ledger that was begun with the plan's"
            )

    def commitments(self, plan: SiloPlan) -> Sequence[RepeatedEvent]:
        """What was spent or promised of the plan's budget: what the noise of its next round is solved for."""
        return self.ledger.commitments()

    def admit(self, plan: SiloPlan, event: DpEvent, *, multiplier: float | None) -> None:
        """Refuse what the ledger would pay for and its owner does not want; of a report there is no multiplier."""

    def note(self, plan: SiloPlan, number: int) -> Note:
        """What the charge of a round says beside what it is; of the report, that of the round after the last."""
        return {}

    @property
    def report(self) -> str:
        """The label under which a report is reserved, and the key under which it is charged."""
        return f"{self.label}: report"

    def reserve_report(self, plan: SiloPlan) -> bool:
        """Reserve what the plan's report costs; whether there is one. Done again it changes nothing.

        Edge cases: a budget without room for it: no report.
        """
        if not plan.report_runs:
            return False
        try:
            self.ledger.reserve(plan.report_runs, label=self.report)
        except BudgetExceeded:
            return False
        return True

    def stream(self, purpose: str, number: int) -> Stream:
        """The stream of a round for a purpose."""
        return self.randomness.stream(purpose, number, self.place)


class Permit:
    """Noise for the steps of one round, and for its counts, and for nothing else.

    Guarantee: where there is a permit, the event of its round is on the ledger's disk; noise for a step can be drawn as
    often as the event has steps, noise for the counts once, both of the multiplier that was charged. Under seeded
    randomness a round that a crash cut off after its charge can be repeated, for it repeats the very same noise and
    batches; under the operating system's it cannot.

    Edge cases: a charge that the budget does not allow raises `BudgetExceeded`, and nothing was written or drawn.
    """

    def __init__(self, plan: SiloPlan, account: Account, *, number: int, multiplier: float) -> None:
        check_ours(plan)
        self.training = plan.training(multiplier)
        event, key = plan.event(multiplier), f"{account.label}: round {number}"
        if not account.ledger.paid(key):
            account.admit(plan, event, multiplier=multiplier)
        counts = () if plan.count_noise is None else ((plan.count_noise, 1),)
        self._receipt = account.ledger.charge(
            event,
            pays_for=((self.training.noise, self.training.steps), *counts),
            randomness=account.randomness,
            key=key,
            note={
                **account.note(plan, number),
                "run": account.label,
                "round": number,
                "noise_multiplier": multiplier,
                "unit": UNIT,
            },
        )
        self._plan = plan
        self._account = account
        self._number = number
        self._steps = 0

    @cached_property
    def batches(self) -> Stream:
        """Where the batches of the round's steps are drawn from, once."""
        return self._account.stream("batches", self._number)

    def noise(self, total: Floats) -> Floats:
        """Hide a step: its clipped sum, with noise on it."""
        at = "noise", self._number, self._account.place, self._steps
        self._steps += 1
        return self.training.noised(total, receipt=self._receipt, at=at)

    def counts(self, records: int, right: int) -> tuple[float, float]:
        """How many records there are, and how many of them the model gets right: both with noise."""
        noise = self._plan.count_noise
        if noise is None:
            raise ConfigError(field="count_std", value=None, remedy="counts are released where the plan asks for them")
        exact = np.array([records, right], dtype=np.float64)
        at = "counts", self._number, self._account.place
        noised = noise.add(exact, receipt=self._receipt, at=at, contributions_bound=self._plan.most_records).values
        return float(noised[0]), float(noised[1])


def reported(plan: SiloPlan, account: Account, table: Floats) -> Floats:
    """A table of a silo's records, a row for each class, with the noise of its report.

    Guarantee: the report is on the ledger's disk before any noise is drawn, on what `Account.reserve_report` reserved.
    Under seeded randomness a report that was charged repeats the very same noise.

    Edge cases: a plan without a report, and one that was charged before under the operating system's randomness, are
    refused, and nothing is drawn.
    """
    check_ours(plan)
    noise = plan.report_noise
    if noise is None:
        raise ConfigError(field="report_std", value=None, remedy="a table is released where the plan asks for one")
    if not account.ledger.paid(account.report):
        account.admit(plan, noise.event(), multiplier=None)
    receipt = account.ledger.charge(
        noise.event(),
        pays_for=((noise, 1),),
        randomness=account.randomness,
        key=account.report,
        reservation=account.report,
        note={**account.note(plan, plan.rounds), "report": account.label, "unit": UNIT},
    )
    flat = np.asarray(table, dtype=np.float64).ravel()
    noised = noise.add(flat, receipt=receipt, at=("report", account.place), contributions_bound=plan.most_records)
    return noised.values.reshape(table.shape)
