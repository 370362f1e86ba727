"""The budget is a limit to the last digit: nothing above it is charged, reserved or found intact."""

import math
from collections.abc import Callable

import pytest
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from incrowd.errors import BudgetExceeded, LedgerDamaged
from incrowd.privacy.account.accounting import Budget, Relation, price
from incrowd.privacy.account.events import compose
from incrowd.privacy.ledger.ledger import Ledger

RELATION = Relation.ADD_OR_REMOVE_ONE
DELTA = 1e-5
EVENTS: dict[str, DpEvent] = {
    "exact": GaussianDpEvent(2.0),
    "sampled": PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)),
}

each_event = pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS.keys())
either_way = pytest.mark.parametrize(
    "promise",
    [lambda ledger, event: ledger.charge(event), lambda ledger, event: ledger.reserve([(event, 1)], label="one more")],
    ids=["charged", "reserved"],
)


def with_budget_for(event: DpEvent, times: int, share: float = 1.0) -> Ledger:
    """A ledger whose budget is this share of the price of so many of the event, to the last bit at a share of 1."""
    needed = price(compose([(event, times)]), delta=DELTA, relation=RELATION).epsilon
    epsilon = math.nextafter(needed, 0) if share == 1 - 2**-53 else needed * share
    return Ledger.in_memory(budget=Budget(epsilon=epsilon, delta=DELTA), relation=RELATION)


@each_event
@either_way
def test_what_meets_the_budget_exactly_is_allowed(event: DpEvent, promise: Callable[..., object]) -> None:
    ledger = with_budget_for(event, 3)
    ledger.reserve([(event, 2)], label="first")
    promise(ledger, event)
    assert ledger.promised().epsilon == ledger.budget.epsilon


@each_event
@either_way
@pytest.mark.parametrize("share", [1 - 2**-53, 1 - 1e-9, 1 / 1.005, 1 / 1.01])
def test_what_is_the_least_above_the_budget_is_refused(
    event: DpEvent, promise: Callable[..., object], share: float
) -> None:
    ledger = with_budget_for(event, 3, share)
    ledger.reserve([(event, 2)], label="first")
    before = ledger.head
    with pytest.raises(BudgetExceeded):
        promise(ledger, event)
    assert ledger.head == before


@each_event
@pytest.mark.parametrize(("share", "intact"), [(1 - 1e-12, True), (1 - 1e-8, False), (1 / 1.005, False)])
def test_a_ledger_with_the_least_too_much_is_not_intact(
    event: DpEvent, share: float, intact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only rounding may separate what was written from what is computed again."""
    ledger = with_budget_for(event, 3, share)
    with monkeypatch.context() as careless:
        careless.setattr(Ledger, "_check_budget", lambda *_: None)
        for _ in range(3):
            ledger.charge(event)
    if intact:
        ledger.verify()
    else:
        with pytest.raises(LedgerDamaged, match="promises epsilon"):
            ledger.verify()
