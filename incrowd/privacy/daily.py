"""A limit for each day, beside the budget of a ledger for all time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from dp_accounting import DpEvent

from incrowd import _validate
from incrowd.errors import LedgerMismatch, NotToday
from incrowd.privacy.account.accounting import Budget, price, quickly_within
from incrowd.privacy.account.events import RepeatedEvent, compose, event_from_json
from incrowd.privacy.ledger.ledger import Ledger

_WINDOW = 32
"""So many of the last entries are read first."""


def utc_today() -> date:
    """The day by the machine's own clock."""
    return datetime.now(UTC).date()


@dataclass(frozen=True, kw_only=True)
class DailyLimit:
    """The most that a ledger may charge for one day; without an `epsilon` there is no limit.

    Guarantee: the charges that `check` let through, and that note its day, cost at most `epsilon` together, at the
    ledger's delta. The caller holds a lock from the check to the charge. A clock that is put back does not bring a day
    back: the latest day that was charged goes on.
    """

    ledger: Ledger
    epsilon: float | None
    today: Callable[[], date] = utc_today
    per: str | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            _validate.positive(daily_epsilon=self.epsilon)

    def day(self) -> str:
        """The present day, or the latest that was charged."""
        return self._present()[0]

    def spent(self) -> float:
        """The price of the present day's charges together."""
        return self._cost(self._present()[1])

    def check(self, new: Sequence[RepeatedEvent]) -> str:
        """The day for which these events may be charged, if it has room for them (`NotToday`)."""
        day, runs = self._present()
        runs = [*runs, *new]
        if self.epsilon is None:
            return day
        limit = Budget(epsilon=self.epsilon, delta=self.ledger.budget.delta)
        if quickly_within(runs, limit, self.ledger.relation):
            return day
        cost = self._cost(runs)
        if not cost <= self.epsilon * (1 + 1e-12):  # beyond the rounding of sums, as of 3 times 0.1
            raise NotToday(
                f"on {day} this would come to epsilon = {cost:.6g}; the daily limit is {self.epsilon:g}: "
                "wait for the next day"
            )
        return day

    def _cost(self, runs: Sequence[RepeatedEvent]) -> float:
        return price(compose(runs), delta=self.ledger.budget.delta, relation=self.ledger.relation).epsilon

    def _present(self) -> tuple[str, list[RepeatedEvent]]:
        """The present day, and its charges.

        Days that are noted never go back, and each charge came after all before it, so entries before a noted day that
        has passed need not be read again.
        """
        length, window = self.ledger.mark.entries, _WINDOW
        while True:
            charged = self._charged(start=max(0, length - window))
            day = max([self.today().isoformat(), *(its for its, _, _ in charged)])
            if window >= length or any(noted and its < day for its, noted, _ in charged):
                return day, [(event, 1) for its, _, event in charged if its == day]
            window *= 8

    def _charged(self, *, start: int) -> list[tuple[str, bool, DpEvent]]:
        """The charges from a position on: the day of each, whether that was noted with it, and the event."""
        charged = []
        for entry in self.ledger.entries(start=start):
            if entry.kind == "charge":
                content = entry.content()
                note = content["note"]
                if note.get("per", self.per) != self.per:
                    raise LedgerMismatch(
                        f"the ledger counts per {note['per']}, not per {self.per}: give one of its own"
                    )
                charged.append((note.get("day", entry.at[:10]), "day" in note, event_from_json(content["event"])))
        return charged
