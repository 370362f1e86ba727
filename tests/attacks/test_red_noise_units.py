"""What is paid per number does not pay for all numbers together, whoever holds the ledger."""

import pytest

from incrowd.drawdiscard.device import pay
from incrowd.errors import LedgerMismatch
from incrowd.privacy.account.accounting import Budget, price
from incrowd.privacy.daily import DailyLimit
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.device import RELATION, Mechanism, Unit

pytestmark = pytest.mark.watched

SIZE = 32
PER_NUMBER = Mechanism(size=SIZE, clip=1.0, epsilon=1.0, privacy="feature")
WHOLE = Mechanism(size=SIZE, clip=1.0, epsilon=1.0, privacy="model")


def a_day(ledger: Ledger, unit: Unit) -> DailyLimit:
    return DailyLimit(ledger=ledger, epsilon=4.0, per=unit)


def a_ledger() -> Ledger:
    return Ledger.in_memory(budget=Budget(epsilon=4.0, delta=1e-6), relation=RELATION, data_identity="a device")


@pytest.mark.parametrize(("first", "second"), [("feature", "model"), ("model", "feature")])
def test_a_ledger_counts_in_one_unit(first: Unit, second: Unit) -> None:
    ledger = a_ledger()
    for _ in range(2):
        pay(PER_NUMBER if first == "feature" else WHOLE, limit=a_day(ledger, first))
    with pytest.raises(LedgerMismatch, match=f"the ledger counts per {first}, not per {second}"):
        pay(WHOLE, limit=a_day(ledger, second))
    with pytest.raises(LedgerMismatch):
        a_day(ledger, second).spent()


def test_control_the_ledger_by_itself_would_add_up_what_does_not() -> None:
    """What was found: a device of one unit went on with the ledger of the other, whose epsilon was too small."""
    ledger = a_ledger()
    for mechanism, unit in ((PER_NUMBER, "feature"), (WHOLE, "model")):
        ledger.charge(mechanism.event(unit))  # type: ignore[arg-type]  # one of two texts
    assert ledger.spent().epsilon < 2.1
    assert price(PER_NUMBER.event("model"), delta=1e-6, relation=RELATION).epsilon > 20
