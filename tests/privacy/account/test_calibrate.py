import math
from collections.abc import Callable, Sequence

import pytest
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from incrowd.errors import BudgetExceeded, ConfigError, UnpricedEvent
from incrowd.privacy.account.accounting import Budget, Relation, first_bound, price
from incrowd.privacy.account.calibrate import (
    CONSTANT_EPSILON,
    CONSTANT_NOISE,
    LEAST_NOISE,
    MOST_ROUNDS,
    PACES,
    SQUARE_ROOT,
    NoiseRuns,
    Pace,
    Remaining,
    largest_cohort,
    most_rounds,
    named,
    smallest_noise,
)
from incrowd.privacy.account.events import RepeatedEvent, compose

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
    "selection": (lambda z: RepeatAndSelectDpEvent(rounds(0.1, z, 10), 5.0, 1.0), ADD_OR_REMOVE, BUDGET),
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


@pytest.mark.parametrize(
    ("make", "relation", "expected"),
    [
        (lambda cohort: rounds(cohort / 1000, 1.25, 54), ADD_OR_REMOVE, None),
        (lambda cohort: fixed_size(1000, cohort, 2.2, 54), REPLACE, None),
        (lambda cohort: rounds(cohort / 1000, 9.0, 54), ADD_OR_REMOVE, 1000),
    ],
)
def test_one_more_client_would_not_keep_to_the_budget(
    make: Callable[[int], DpEvent], relation: Relation, expected: int | None
) -> None:
    cohort = largest_cohort(make, clients=1000, budget=BUDGET, relation=relation)
    assert isinstance(cohort, int)
    assert price(make(cohort), delta=1e-5, relation=relation).epsilon <= 8
    if expected is None:
        assert first_bound(make(cohort + 1), delta=1e-5, relation=relation)[1] > 8
    else:
        assert cohort == expected


def test_what_no_value_can_reach_exceeds_the_budget() -> None:
    spent = LaplaceDpEvent(0.1)
    with pytest.raises(BudgetExceeded, match=r"noise of 1e\+09 .* costs epsilon = 10 .* budget is 8"):
        smallest_noise(lambda z: ComposedDpEvent([spent, poisson(0.1, z)]), budget=BUDGET, relation=ADD_OR_REMOVE)
    with pytest.raises(BudgetExceeded, match="one round"):
        most_rounds(lambda n: rounds(1.0, 0.3, n), budget=BUDGET, relation=ADD_OR_REMOVE)
    with pytest.raises(BudgetExceeded, match="a cohort of one client"):
        largest_cohort(lambda m: rounds(m / 2, 1.0, 20), clients=2, budget=BUDGET, relation=ADD_OR_REMOVE)


def test_what_costs_nothing_goes_to_the_end_of_the_way() -> None:
    assert most_rounds(lambda n: NoOpDpEvent(), budget=BUDGET, relation=ADD_OR_REMOVE) == MOST_ROUNDS  # noqa: ARG005  # nothing ever happens
    assert largest_cohort(lambda m: rounds(m / 5, 50.0, 1), clients=5, budget=BUDGET, relation=ADD_OR_REMOVE) == 5


@pytest.mark.slow
def test_a_cost_that_jumps_is_followed_to_its_jump() -> None:
    """Nothing about the event need be smooth: here the cost leaps at once, or sampling alone is private enough."""

    def jumping(noise: float) -> DpEvent:
        return rounds(0.5, 2.0 if noise >= 1.7 else 0.7, 5)

    noise = smallest_noise(jumping, budget=Budget(epsilon=4.0, delta=1e-5), relation=ADD_OR_REMOVE)
    assert 1.7 <= noise <= 1.7 * 1.0001
    assert smallest_noise(lambda z: rounds(1e-8, z, 1), budget=BUDGET, relation=ADD_OR_REMOVE) == LEAST_NOISE


def test_unusable_requests_are_refused() -> None:
    with pytest.raises(ConfigError, match="clients"):
        largest_cohort(lambda m: rounds(0.1, 1.0, m), clients=0, budget=BUDGET, relation=ADD_OR_REMOVE)
    with pytest.raises(UnpricedEvent):
        smallest_noise(lambda z: rounds(0.2, z, 2), budget=BUDGET, relation=REPLACE)
    with pytest.raises(ConfigError, match="accountants"):
        smallest_noise(GaussianDpEvent, budget=BUDGET, relation=REPLACE, accountants=("gdp",))


# The rest of a budget, round by round

SOME = Budget(epsilon=3.0, delta=1e-5)
BY_NAME = pytest.mark.parametrize("pace", PACES.values(), ids=lambda pace: pace.name)


def everyone(multiplier: float) -> list[RepeatedEvent]:
    """A round of two steps about everyone, whose price is exact and takes no time."""
    return [(GaussianDpEvent(multiplier), 2)]


def sampled(multiplier: float) -> list[RepeatedEvent]:
    """A round of DP-SGD, and a count that is released beside it."""
    return [(poisson(0.1, multiplier), 10), (GaussianDpEvent(40.0), 1)]


def remaining(spent: Sequence[RepeatedEvent] = (), *, rounds: int, budget: Budget = SOME) -> Remaining:
    return Remaining(budget=budget, relation=ADD_OR_REMOVE, spent=tuple(spent), rounds=rounds)


def cost(spent: Sequence[RepeatedEvent]) -> float:
    return price(compose(spent), delta=SOME.delta, relation=ADD_OR_REMOVE).epsilon


def run(
    pace: Pace, rounds: int, *, runs: NoiseRuns = everyone, spent: Sequence[RepeatedEvent] = (), budget: Budget = SOME
) -> tuple[list[float], list[float]]:
    """The noise of each round, and epsilon after it."""
    past, noise, epsilons = list(spent), list[float](), list[float]()
    for number in range(rounds):
        left = remaining(past, rounds=rounds - number, budget=budget)
        noise.append(left.noise(runs, pace=pace, usual=noise[-1] if noise else None))
        past += runs(noise[-1])
        epsilons.append(cost(past))
    return noise, epsilons


@BY_NAME
@pytest.mark.parametrize("spent", [[], [(GaussianDpEvent(4.0), 1)]], ids=["nothing spent", "something spent"])
def test_the_budget_is_met_in_the_last_round_and_not_broken_before(pace: Pace, spent: list[RepeatedEvent]) -> None:
    noise, epsilons = run(pace, 6, spent=spent)
    assert epsilons == sorted(epsilons)
    assert 0.9995 * SOME.epsilon < epsilons[-1] <= SOME.epsilon
    more = run(pace, 6)[0]
    assert not spent or sum(z**-2 for z in noise) < sum(z**-2 for z in more)


@pytest.mark.parametrize(("pace", "share"), [(CONSTANT_EPSILON, lambda t: t), (SQUARE_ROOT, math.sqrt)])
def test_epsilon_by_composition_follows_the_pace(pace: Pace, share: Callable[[float], float]) -> None:
    noise, epsilons = run(pace, 5)
    for number, epsilon in enumerate(epsilons, 1):
        assert 0.999 < epsilon / (SOME.epsilon * share(number / 5)) <= 1 + 1e-12
    assert len(set(noise)) == 5


def test_constant_noise_is_that_of_a_plan_made_at_once_to_the_last_bit() -> None:
    noise, epsilons = run(CONSTANT_NOISE, 7)
    assert len(set(noise)) == 1
    assert cost([(GaussianDpEvent(noise[0] / 1.0001), 14)]) > SOME.epsilon
    assert epsilons[-1] == cost([(GaussianDpEvent(noise[0]), 14)])


@pytest.mark.slow
@BY_NAME
def test_rounds_of_sampled_steps_with_counts_beside_them_meet_the_budget_too(pace: Pace) -> None:
    little = Budget(epsilon=0.6, delta=1e-5)
    noise, epsilons = run(pace, 3, runs=sampled, budget=little)
    assert 0.999 * little.epsilon < epsilons[-1] <= little.epsilon
    assert (len(set(noise)) == 1) == (pace is CONSTANT_NOISE)


@pytest.mark.parametrize("pace", [SQUARE_ROOT, CONSTANT_EPSILON], ids=lambda pace: pace.name)
@pytest.mark.parametrize("usual", [None, 3.0, 40.0])
def test_the_noise_after_other_rounds_is_the_least(pace: Pace, usual: float | None) -> None:
    spent, budget = sampled(2.5), Budget(epsilon=1.2, delta=1e-5)
    left = remaining(spent, rounds=2, budget=budget)
    found = left.noise(sampled, pace=pace, usual=usual)
    assert cost([*spent, *sampled(found)]) <= left.target(pace) < cost([*spent, *sampled(found / 1.0001)])
    assert left.noise(sampled, pace=pace, usual=usual) == found


def test_the_usual_noise_is_kept_only_where_it_is_the_answer() -> None:
    right = remaining(rounds=4).noise(everyone)
    assert remaining(rounds=4).noise(everyone, usual=right) == right
    for wrong in (right / 1.001, right * 1.001):
        assert remaining(rounds=4).noise(everyone, usual=wrong) == pytest.approx(right, rel=2e-4)
        assert remaining(rounds=4).noise(everyone, usual=wrong) != wrong


@given(st.sampled_from(list(PACES.values())), st.floats(0.1, 20), st.integers(1, 30), st.floats(2, 200))
def test_no_round_may_take_more_than_is_left(pace: Pace, epsilon: float, rounds: int, before: float) -> None:
    budget = Budget(epsilon=epsilon, delta=1e-6)
    spent = [(GaussianDpEvent(before), 1)]
    there = price(spent[0][0], delta=budget.delta, relation=ADD_OR_REMOVE).epsilon
    left = remaining(spent, rounds=rounds, budget=budget)
    if there >= epsilon:
        with pytest.raises(BudgetExceeded, match="nothing remains for another round"):
            left.noise(everyone, pace=pace)
    else:
        assert there < left.target(pace) <= epsilon
        if rounds == 1:
            assert left.target(pace) == pytest.approx(epsilon, rel=1e-12)


def test_what_no_noise_can_pay_for_is_refused() -> None:
    for spent in ([], sampled(2.5)):
        with pytest.raises(BudgetExceeded, match="costs epsilon"):
            remaining(spent, rounds=2).noise(lambda z: [*sampled(z), (GaussianDpEvent(1.0), 1)])
    left = remaining(everyone(4.0), rounds=3)
    needed = left.noise(everyone)
    assert left.noise(everyone, most=1.01 * needed) == needed
    with pytest.raises(BudgetExceeded, match="noise alone"):
        left.noise(everyone, most=0.99 * needed)
    with pytest.raises(BudgetExceeded, match="all planned rounds are over"):
        remaining(rounds=0)
    with pytest.raises(ConfigError, match="rounds = -1"):
        remaining(rounds=-1)


def test_paces_have_names() -> None:
    assert named("square-root") is SQUARE_ROOT
    with pytest.raises(ConfigError, match="pace = 'fast': give one of constant-noise"):
        named("fast")
