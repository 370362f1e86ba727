"""What a device may still say: its own ledger for all time, and a limit for each day."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import NamedTuple

from dp_accounting import DpEvent

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.errors import BudgetExceeded, ConfigError, LedgerMismatch
from incrowd.privacy.account.accounting import Budget, plainly_within, price
from incrowd.privacy.account.events import RepeatedEvent, compose, event_from_json
from incrowd.privacy.ledger.ledger import EARNEST, Ledger
from incrowd.privacy.ledger.receipt import Receipt
from incrowd.privacy.mechanism.device import RELATION, Mechanism, Unit

_WINDOW = 32
"""So many of the last entries are looked at first."""


def utc_today() -> date:
    """The day by the device's own clock."""
    return datetime.now(UTC).date()


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """A ledger with a daily limit, both in one unit of privacy.

    Guarantee: when `charge` returns, the contribution is on disk in the ledger; what was charged in total costs at most
    the ledger's budget, what was charged for one day at most `daily_epsilon` at the budget's delta, however many
    threads and processes of the device charge (`exclusive` keeps all but one waiting). Where `unit` is the model and a
    contribution is private per feature, all of its numbers are paid for.

    Edge cases: a ledger that holds charges of another unit is refused, for their prices do not add up. A clock that is
    put back does not bring a day back: the latest day that was charged goes on. One that
    was far ahead holds up the daily limit until that day; the total limit needs no clock.
    """

    ledger: Ledger
    daily_epsilon: float
    exclusive: Callable[[], AbstractContextManager[object]]
    unit: Unit = "model"
    today: Callable[[], date] = utc_today

    def __post_init__(self) -> None:
        _validate.positive(daily_epsilon=self.daily_epsilon)
        if self.ledger.relation is not RELATION:
            raise LedgerMismatch(
                f"the ledger's neighbouring relation is {self.ledger.relation.name}: a device's is {RELATION.name}"
            )

    def charge(
        self, mechanism: Mechanism, *, randomness: Randomness = EARNEST, note: Mapping[str, str] | None = None
    ) -> Receipt:
        """Pay for one contribution.

        Edge cases: `BudgetExceeded` where either limit does not allow it; nothing was written then.
        """
        if type(mechanism) is not Mechanism:
            remedy = "give a Mechanism of ours: others could state one noise and draw another"
            raise ConfigError(field="mechanism", value=type(mechanism).__name__, remedy=remedy)
        event = mechanism.event(self.unit)
        with self.exclusive():
            day, runs = self._day()
            self._check(day, [*runs, (event, 1)])
            its = {**(note or {}), "day": day, "per": self.unit}
            return self.ledger.charge(event, pays_for=mechanism.pays_for, randomness=randomness, note=its)

    def spent_today(self) -> float:
        """What the present day's contributions cost together."""
        _, runs = self._day()
        return self._cost(runs)

    def _check(self, day: str, runs: list[RepeatedEvent]) -> None:
        """So much fits into a day."""
        if plainly_within(runs, Budget(epsilon=self.daily_epsilon, delta=self.ledger.budget.delta)):
            return
        cost = self._cost(runs)
        if not cost <= self.daily_epsilon * (1 + 1e-12):  # beyond the rounding of sums, as of 3 times 0.1
            raise BudgetExceeded(
                f"on {day} this would come to epsilon = {cost:.6g}; the daily limit is {self.daily_epsilon:g}: "
                "wait for the next day"
            )

    def _cost(self, runs: list[RepeatedEvent]) -> float:
        return price(compose(runs), delta=self.ledger.budget.delta, relation=RELATION).epsilon

    def _day(self) -> tuple[str, list[RepeatedEvent]]:
        """The present day, and what was charged for it.

        Days that are noted never go back, and each of them was found to be in this unit and to come after all before
        it: so what lies before a noted day that has passed need not be read again.
        """
        length = self.ledger.mark.entries
        window = _WINDOW
        while True:
            charged = self._charged(start=max(0, length - window))
            day = max([self.today().isoformat(), *(each.day for each in charged)])
            if window >= length or any(each.noted and each.day < day for each in charged):
                return day, [(each.event, 1) for each in charged if each.day == day]
            window *= 8

    def _charged(self, *, start: int) -> list["_Charged"]:
        """What was charged from a position of the ledger on."""
        charged = []
        for entry in self.ledger.entries(start=start):
            if entry.kind == "charge":
                content = entry.content()
                note = content["note"]
                if note.get("per", self.unit) != self.unit:
                    raise LedgerMismatch(
                        f"the ledger counts per {note['per']}, not per {self.unit}: give one of its own"
                    )
                charged.append(
                    _Charged(note.get("day", entry.at[:10]), "day" in note, event_from_json(content["event"]))
                )
        return charged


class _Charged(NamedTuple):
    """A charge, the day that it counts for, and whether that was noted with it or is when it was written."""

    day: str
    noted: bool
    event: DpEvent
