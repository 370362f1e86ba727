"""What a device may still say: its own ledger for all time, and a limit for each day."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.errors import BudgetExceeded, LedgerMismatch
from incrowd.privacy.account.accounting import price
from incrowd.privacy.account.events import RepeatedEvent, compose, event_from_json
from incrowd.privacy.ledger.ledger import EARNEST, Ledger
from incrowd.privacy.ledger.receipt import Receipt
from incrowd.privacy.mechanism.device import RELATION, Mechanism, Unit


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
        event = mechanism.event(self.unit)
        with self.exclusive():
            day, runs = self._day()
            cost = self._cost([*runs, (event, 1)])
            if not cost <= self.daily_epsilon * (1 + 1e-12):  # beyond the rounding of sums, as of 3 times 0.1
                raise BudgetExceeded(
                    f"on {day} this would come to epsilon = {cost:.6g}; the daily limit is {self.daily_epsilon:g}: "
                    "wait for the next day"
                )
            its = {**(note or {}), "day": day, "per": self.unit}
            return self.ledger.charge(event, pays_for=mechanism.pays_for, randomness=randomness, note=its)

    def spent_today(self) -> float:
        """What the present day's contributions cost together."""
        _, runs = self._day()
        return self._cost(runs)

    def _cost(self, runs: list[RepeatedEvent]) -> float:
        return price(compose(runs), delta=self.ledger.budget.delta, relation=RELATION).epsilon

    def _day(self) -> tuple[str, list[RepeatedEvent]]:
        """The present day, and what was charged for it."""
        charged: list[tuple[str, dict[str, Any]]] = []
        for entry in self.ledger.entries():
            if entry.kind == "charge":
                content = entry.content()
                if content["note"].get("per", self.unit) != self.unit:
                    raise LedgerMismatch(
                        f"the ledger counts per {content['note']['per']}, not per {self.unit}: give one of its own"
                    )
                charged.append((content["note"].get("day", entry.at[:10]), content["event"]))
        day = max([self.today().isoformat(), *(noted for noted, _ in charged)])
        return day, [(event_from_json(event), 1) for noted, event in charged if noted == day]
