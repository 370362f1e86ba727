"""The audit's lower bound of a price is below the accountant's epsilon, and near it."""

import pytest

from incrowd.audit.checks import least_epsilon
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Everyone, Poisson, constant


@pytest.mark.parametrize(("sampling", "cohort"), [(Poisson, 20), (Everyone, 60)])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_a_price_that_is_a_hundredth_too_low_is_seen(sampling: type, cohort: int, epsilon: float) -> None:
    config = PlanConfig(members=60, schedule=constant(rounds=6, cohort=cohort), sampling=sampling)
    plan = config.calibrate(Budget(epsilon=epsilon, delta=1e-3))
    assert 0.99 * plan.price.epsilon < least_epsilon(plan) <= plan.price.epsilon
