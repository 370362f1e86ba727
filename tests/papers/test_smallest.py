from hypothesis import given
from hypothesis import strategies as st

from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Everyone, constant
from papers.geyer.measure import Measured
from papers.geyer.smallest import smallest, two_digits

PLAN = PlanConfig(members=9, schedule=constant(rounds=1, cohort=9), sampling=Everyone).calibrate(
    Budget(epsilon=1, delta=1e-5)
)


def measured(accuracy: float) -> Measured:
    return Measured(plan=PLAN, accuracies=(accuracy,), weights=1, seconds=0.0, claim={})


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
