"""The limit of a day, as a device has it."""

from datetime import date, timedelta

import pytest

from incrowd import Budget, Ledger, Relation
from incrowd.drawdiscard.device import pay
from incrowd.errors import ConfigError, NotToday
from incrowd.privacy import daily
from incrowd.privacy.daily import DailyLimit
from incrowd.privacy.mechanism.device import Mechanism

MECHANISM = Mechanism(size=3, clip=1.0, epsilon=0.5)
MANY = Budget(epsilon=1e6, delta=1e-6)
FIRST = date(2026, 1, 1)


class Clock:
    """A day that goes on when it is told to."""

    def __init__(self) -> None:
        self.day = FIRST

    def __call__(self) -> date:
        return self.day


def limit(clock: Clock, *, epsilon: float | None = 1.0) -> DailyLimit:
    ledger = Ledger.in_memory(budget=MANY, relation=Relation.REPLACE_ONE)
    return DailyLimit(ledger=ledger, epsilon=epsilon, today=clock, per="model")


def test_a_day_without_a_limit_has_room_for_everything() -> None:
    one = limit(Clock(), epsilon=None)
    for _ in range(9):
        pay(MECHANISM, limit=one)
    assert one.check([(MECHANISM.event("model"), 1000)]) == str(FIRST)
    with pytest.raises(ConfigError, match="daily_epsilon"):
        limit(Clock(), epsilon=0.0)


def test_a_day_has_its_limit_and_the_next_one_its_own() -> None:
    clock = Clock()
    one = limit(clock)
    for _ in range(2):
        for _ in range(2):
            pay(MECHANISM, limit=one)
        with pytest.raises(NotToday, match=str(clock.day)):
            pay(MECHANISM, limit=one)
        assert one.spent() == pytest.approx(1.0, rel=1e-4)  # a delta of 1e-6 makes it a little less
        clock.day += timedelta(days=1)
    clock.day = FIRST  # put back: the latest day goes on
    with pytest.raises(NotToday):
        pay(MECHANISM, limit=one)


def test_a_day_of_more_contributions_than_are_looked_at_first_is_counted_whole() -> None:
    one = limit(Clock(), epsilon=1e5)
    count = 3 * daily._WINDOW
    for _ in range(count):
        pay(MECHANISM, limit=one)
    day, charged = one._present()
    assert (day, len(charged)) == (str(FIRST), count)


def test_a_day_is_full_at_what_it_costs_and_not_at_the_sum_of_its_epsilons() -> None:
    first = limit(Clock(), epsilon=9.0)
    for _ in range(2):
        pay(MECHANISM, limit=first)
    cost = first.spent()
    assert cost < 1.0
    second = limit(Clock(), epsilon=cost)
    for _ in range(2):
        pay(MECHANISM, limit=second)
    with pytest.raises(NotToday):
        pay(MECHANISM, limit=second)
