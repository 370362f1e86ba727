import math
from dataclasses import replace

import numpy as np
import pytest

from incrowd._random import Floats, SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.account.accounting import Budget, price
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.permit import Permit
from incrowd.privacy.plan.silo_plan import RELATION
from tests.federated.silos import BUDGET, MODEL, account, plan
from tests.privacy.ledgers import reads

LARGE = plan(clip_norm=0.5, count_std=30.0, records=3000, batch_size=3000)


def total(size: int = MODEL.size) -> Floats:
    return np.zeros(size)


def test_the_event_is_on_the_ledger_as_soon_as_there_is_a_permit() -> None:
    its = account()
    Permit(plan(), its, number=2, multiplier=5.0)
    assert its.paid() == {2: 5.0}
    expected = price(plan().event(5.0), delta=BUDGET.delta, relation=RELATION).epsilon
    assert its.ledger.spent().epsilon == expected


def test_what_was_paid_is_read_once_however_long_the_ledger_is() -> None:
    its = account(Ledger.in_memory(budget=Budget(epsilon=100.0, delta=1e-5), relation=RELATION))
    for number in range(5):
        its.ledger.charge(plan().event(50.0))  # someone else's
        its.paid()
        Permit(plan(), its, number=number, multiplier=50.0)
        assert reads(its.paid) == 1  # the round's own charge; what was there before was read for the permit
        assert reads(its.paid) == 0
    assert its.paid() == dict.fromkeys(range(5), 50.0)
    assert reads(its.ledger.entries) == 11


def test_noise_can_be_drawn_once_a_step_and_not_once_more() -> None:
    its = account()
    permit = Permit(plan(), its, number=0, multiplier=5.0)
    first, second = permit.noise(total()), permit.noise(total())
    assert not np.array_equal(first, second)
    with pytest.raises(BudgetExceeded, match=r"all noise that was paid for \(noise\) is drawn"):
        permit.noise(total())
    assert len(its.paid()) == 1


def test_what_the_budget_does_not_allow_gets_no_permit_and_leaves_no_entry() -> None:
    its = account()
    with pytest.raises(BudgetExceeded, match="the budget is 4"):
        Permit(plan(), its, number=0, multiplier=0.3)
    assert its.paid() == {}
    assert its.ledger.spent().epsilon == 0


@pytest.mark.parametrize(("factor", "accepted"), [(1, True), (2 / 3, False), (3 / 2, False)])
def test_the_noise_is_that_of_the_multiplier_that_was_charged(factor: float, accepted: bool) -> None:
    permit = Permit(LARGE, account(), number=0, multiplier=4.0 * factor)
    values = permit.noise(total(20_000))
    error = float(np.std(values)) / (4.0 * 0.5) - 1
    assert (abs(error) < 4 / math.sqrt(2 * 20_000)) is accepted
    assert abs(values.mean()) < 4 * np.std(values) / math.sqrt(20_000)


@pytest.mark.parametrize(("factor", "accepted"), [(1, True), (2 / 3, False), (3 / 2, False)])
def test_counts_have_the_noise_that_was_charged_and_are_drawn_once(factor: float, accepted: bool) -> None:
    its = plan(count_std=30.0 * factor, records=3000, batch_size=3000, rounds=400)
    # A ledger that is roomy enough for many rounds, since a round has two counts only.
    roomy = account(Ledger.in_memory(budget=Budget(epsilon=1e4, delta=1e-5), relation=RELATION))
    permits = [Permit(its, roomy, number=number, multiplier=200.0) for number in range(200)]
    errors = np.array([permit.counts(2900, 1500) for permit in permits]) - (2900, 1500)
    assert (abs(float(np.std(errors)) / 30.0 - 1) < 4 / math.sqrt(2 * 400)) is accepted
    with pytest.raises(ConfigError, match="it was drawn already"):
        permits[0].counts(2900, 1500)


def test_counts_that_were_not_planned_are_not_released() -> None:
    with pytest.raises(ConfigError, match="counts are released where the plan asks for them"):
        Permit(plan(), account(), number=0, multiplier=5.0).counts(40, 20)


def test_a_simulation_repeats_a_round_that_was_charged_with_the_very_same_noise() -> None:
    its = account()
    first = Permit(LARGE, its, number=1, multiplier=5.0)
    again = Permit(LARGE, its, number=1, multiplier=5.0)
    assert len(its.paid()) == 1
    assert np.array_equal(first.noise(total()), again.noise(total()))
    assert first.counts(7, 3) == again.counts(7, 3)
    np.testing.assert_array_equal(first.batches.bits(9), again.batches.bits(9))
    with pytest.raises(ConfigError, match="it is paid for already, and another event was"):
        Permit(LARGE, its, number=1, multiplier=6.0)


def test_in_earnest_a_round_is_not_repeated() -> None:
    its = account(randomness=SystemRandomness())
    Permit(plan(), its, number=1, multiplier=5.0)
    with pytest.raises(ConfigError, match="fresh noise would cost again"):
        Permit(plan(), its, number=1, multiplier=5.0)
    assert len(its.paid()) == 1


def test_rounds_purposes_and_silos_of_one_seed_never_share_noise_or_batches() -> None:
    permits = [
        Permit(plan(), account(place=place), number=number, multiplier=9.0) for place in (0, 1) for number in (0, 1)
    ]
    drawn = [permit.noise(total()).tobytes() for permit in permits]
    bits = [permit.batches.bits(4).tobytes() for permit in permits]
    assert len({*drawn, *bits}) == 8


def test_runs_with_other_labels_share_the_budget_and_not_the_rounds() -> None:
    its = account()
    other = replace(its, label="another")
    Permit(plan(), its, number=0, multiplier=9.0)
    Permit(plan(), other, number=0, multiplier=8.0)
    assert (its.paid(), other.paid()) == ({0: 9.0}, {0: 8.0})
    its.ledger.charge(plan().event(20.0))  # someone else's, without a note
    assert its.paid() == {0: 9.0}
