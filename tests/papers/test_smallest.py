import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.errors import BudgetExceeded
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Everyone
from incrowd.privacy.plan.schedule import constant
from papers.geyer.measure import Measured
from papers.geyer.smallest import LEAST, MOST, smallest, two_digits

PLAN = PlanConfig(clients=9, schedule=constant(rounds=1, cohort=9), sampling=Everyone).calibrate(
    Budget(epsilon=1, delta=1e-5)
)


def measured(accuracy: float) -> Measured:
    return Measured(plan=PLAN, accuracies=(accuracy,), weights=1, seconds=0.0, claim={})


def test_candidates_have_two_digits_and_rise() -> None:
    candidates = two_digits()
    assert candidates[0] == LEAST
    assert candidates[-1] == MOST
    assert all(a < b for a, b in itertools.pairwise(candidates))
    assert {0.7, 0.17, 0.032} < set(candidates)
    assert all(float(f"{candidate:.1e}") == candidate for candidate in candidates)


@given(st.floats(1e-4, 10))
def test_it_is_the_least_that_suffices(enough: float) -> None:
    asked: list[float] = []

    def at(epsilon: float) -> Measured:
        asked.append(epsilon)
        return measured(epsilon / (epsilon + enough))  # one half at `enough`

    found = smallest(at, 0.5)
    expected = next(candidate for candidate in two_digits() if candidate / (candidate + enough) >= 0.5)
    assert found.accuracy == at(expected).accuracy
    assert len(asked) < 16


def test_where_nothing_suffices_it_says_so() -> None:
    with pytest.raises(BudgetExceeded, match=r"epsilon 10 reaches 0\.4000, below 0\.5"):
        smallest(lambda _epsilon: measured(0.4), 0.5)


def test_where_everything_suffices_it_is_the_least() -> None:
    assert smallest(lambda epsilon: measured(1 / epsilon), 0.05).accuracy == 1 / LEAST
