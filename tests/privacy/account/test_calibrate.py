import math
from collections.abc import Callable

import pytest
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from incrowd.errors import BudgetExceeded, ConfigError, UnpricedEvent
from incrowd.privacy.account.accounting import Budget, Relation, first_bound, price
from incrowd.privacy.account.calibrate import LEAST_NOISE, most_rounds, smallest_noise

ADD_OR_REMOVE, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
BUDGET = Budget(epsilon=8.0, delta=1e-5)


def poisson(sampling_prob: float, noise_multiplier: float) -> DpEvent:
    return PoissonSampledDpEvent(sampling_prob, GaussianDpEvent(noise_multiplier))


def rounds(sampling_prob: float, noise_multiplier: float, count: int) -> DpEvent:
    return SelfComposedDpEvent(poisson(sampling_prob, noise_multiplier), count)


def fixed_size(clients: int, cohort: int, noise_multiplier: float, count: int) -> DpEvent:
    once = SampledWithoutReplacementDpEvent(clients, cohort, GaussianDpEvent(noise_multiplier))
    return SelfComposedDpEvent(once, count)


def schedule(factor: float) -> DpEvent:
    """Growing cohorts and noise at a constant ratio of noise variance to cohort."""
    steps = [(0.05 * step, factor * math.sqrt(step)) for step in range(1, 4)]
    return ComposedDpEvent([rounds(sampling_prob, noise, 4) for sampling_prob, noise in steps])


# Every way of adding noise, its relation and a budget.
NOISES: dict[str, tuple[Callable[[float], DpEvent], Relation, Budget]] = {
    "everyone": (lambda z: SelfComposedDpEvent(GaussianDpEvent(z), 54), ADD_OR_REMOVE, BUDGET),
    "Poisson": (lambda z: rounds(0.22, z, 54), ADD_OR_REMOVE, BUDGET),
    "Poisson, zeroed out": (lambda z: rounds(0.22, z, 54), Relation.REPLACE_SPECIAL, BUDGET),
    "Poisson, many rounds": (lambda z: rounds(0.05, z, 1000), ADD_OR_REMOVE, Budget(epsilon=0.3, delta=1e-6)),
    "fixed size": (lambda z: fixed_size(1000, 220, z, 54), REPLACE, BUDGET),
    "schedule": (schedule, ADD_OR_REMOVE, Budget(epsilon=1.0, delta=1e-5)),
    "Laplace": (lambda z: SelfComposedDpEvent(LaplaceDpEvent(z), 20), ADD_OR_REMOVE, BUDGET),
    "partly fixed": (lambda z: ComposedDpEvent([LaplaceDpEvent(0.15), poisson(0.5, z)]), ADD_OR_REMOVE, BUDGET),
    "below RDP's and above PLD's reach": (lambda z: rounds(0.2, z, 9), ADD_OR_REMOVE, Budget(epsilon=4.0, delta=1e-15)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "relation", "budget"), NOISES.values(), ids=NOISES.keys())
def test_the_noise_keeps_to_the_budget_and_a_ten_thousandth_less_would_not(
    make: Callable[[float], DpEvent], relation: Relation, budget: Budget
) -> None:
    noise = smallest_noise(make, budget=budget, relation=relation)
    assert price(make(noise), delta=budget.delta, relation=relation).epsilon <= budget.epsilon
    assert first_bound(make(noise * (1 - 1e-4)), delta=budget.delta, relation=relation)[1] > budget.epsilon


@settings(max_examples=50)
@given(epsilon=st.floats(1e-3, 50), delta=st.floats(1e-10, 0.1), count=st.integers(1, 10**5))
def test_the_noise_of_everyone_is_the_analytic_one(epsilon: float, delta: float, count: int) -> None:
    """mu = sqrt(count) / noise solves Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) = delta."""
    budget = Budget(epsilon=epsilon, delta=delta)
    noise = smallest_noise(lambda z: SelfComposedDpEvent(GaussianDpEvent(z), count), budget=budget, relation=REPLACE)

    def delta_of(factor: float) -> float:
        mu = math.sqrt(count) / (noise * factor)
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)))

    assert delta_of(1.0) <= delta * (1 + 1e-7)
    assert delta_of(1 - 1e-5) > delta or noise == LEAST_NOISE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "relation"),
    [
        (lambda count: rounds(0.22, 1.25, count), ADD_OR_REMOVE),
        (lambda count: SelfComposedDpEvent(GaussianDpEvent(300.0), count), ADD_OR_REMOVE),
        (lambda count: fixed_size(1000, 10, 1.0, count), REPLACE),
        (lambda count: ComposedDpEvent([GaussianDpEvent(1.0), rounds(0.2, 2.0, count)]), ADD_OR_REMOVE),
    ],
)
def test_one_more_round_would_not_keep_to_the_budget(make: Callable[[int], DpEvent], relation: Relation) -> None:
    count = most_rounds(make, budget=BUDGET, relation=relation)
    assert isinstance(count, int)
    assert price(make(count), delta=1e-5, relation=relation).epsilon <= 8
    assert first_bound(make(count + 1), delta=1e-5, relation=relation)[1] > 8


def test_what_no_value_can_reach_exceeds_the_budget() -> None:
    spent = LaplaceDpEvent(0.1)
    with pytest.raises(BudgetExceeded, match=r"noise of 1e\+09 .* costs epsilon = 10 .* budget is 8"):
        smallest_noise(lambda z: ComposedDpEvent([spent, poisson(0.1, z)]), budget=BUDGET, relation=ADD_OR_REMOVE)
    with pytest.raises(BudgetExceeded, match="one round"):
        most_rounds(lambda n: rounds(1.0, 0.3, n), budget=BUDGET, relation=ADD_OR_REMOVE)
    with pytest.raises(BudgetExceeded, match="one client"):
        most_rounds(lambda m: rounds(m / 2, 1.0, 20), most=2, one="one client", budget=BUDGET, relation=ADD_OR_REMOVE)


def test_unusable_requests_are_refused() -> None:
    with pytest.raises(UnpricedEvent):
        smallest_noise(lambda z: rounds(0.2, z, 2), budget=BUDGET, relation=REPLACE)
    with pytest.raises(ConfigError, match="accountants"):
        smallest_noise(GaussianDpEvent, budget=BUDGET, relation=REPLACE, accountants=("gdp",))
