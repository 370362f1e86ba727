"""What a device may still say, without a device."""

from contextlib import nullcontext
from datetime import date, timedelta

import pytest

from incrowd import Budget, Ledger, Relation
from incrowd.errors import BudgetExceeded, LedgerMismatch
from incrowd.privacy import allowance
from incrowd.privacy.allowance import Allowance
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


def allowed(clock: Clock, *, relation: Relation = Relation.REPLACE_ONE, daily: float = 1.0) -> Allowance:
    ledger = Ledger.in_memory(budget=MANY, relation=relation)
    return Allowance(ledger=ledger, daily_epsilon=daily, exclusive=nullcontext, today=clock)


def test_a_ledger_of_another_relation_is_refused() -> None:
    with pytest.raises(LedgerMismatch, match="ADD_OR_REMOVE_ONE"):
        allowed(Clock(), relation=Relation.ADD_OR_REMOVE_ONE)


def test_a_day_has_its_limit_and_the_next_one_its_own() -> None:
    clock = Clock()
    one = allowed(clock)
    for _ in range(2):
        for _ in range(2):
            one.charge(MECHANISM)
        with pytest.raises(BudgetExceeded, match=str(clock.day)):
            one.charge(MECHANISM)
        assert one.spent_today() == pytest.approx(1.0, rel=1e-4)  # a delta of 1e-6 makes it a little less
        clock.day += timedelta(days=1)
    clock.day = FIRST  # put back: the latest day goes on
    with pytest.raises(BudgetExceeded):
        one.charge(MECHANISM)


def test_a_day_of_more_contributions_than_are_looked_at_first_is_counted_whole() -> None:
    one = allowed(Clock(), daily=1e5)
    count = 3 * allowance._WINDOW
    for _ in range(count):
        one.charge(MECHANISM)
    day, charged = one._day()
    assert (day, len(charged)) == (str(FIRST), count)


def test_a_day_is_full_at_what_it_costs_and_not_at_the_sum_of_its_epsilons() -> None:
    first = allowed(Clock(), daily=9.0)
    for _ in range(2):
        first.charge(MECHANISM)
    cost = first.spent_today()
    assert cost < 1.0
    second = allowed(Clock(), daily=cost)
    for _ in range(2):
        second.charge(MECHANISM)
    with pytest.raises(BudgetExceeded):
        second.charge(MECHANISM)
