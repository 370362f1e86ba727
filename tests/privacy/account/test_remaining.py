import math
from collections.abc import Sequence

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from hypothesis import given
from hypothesis import strategies as st

from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.account.accounting import Budget, Relation, price
from incrowd.privacy.account.events import RepeatedEvent, compose
from incrowd.privacy.account.remaining import (
    CONSTANT_EPSILON,
    CONSTANT_NOISE,
    PACES,
    SQUARE_ROOT,
    NoiseRuns,
    Pace,
    Remaining,
    named,
)

BUDGET = Budget(epsilon=3.0, delta=1e-5)
LITTLE = Budget(epsilon=0.6, delta=1e-5)
RELATION = Relation.ADD_OR_REMOVE_ONE
BY_NAME = pytest.mark.parametrize("pace", PACES.values(), ids=lambda pace: pace.name)


def everyone(multiplier: float) -> list[RepeatedEvent]:
    """A round of two steps about everyone, whose price is exact and takes no time."""
    return [(GaussianDpEvent(multiplier), 2)]


def sampled(multiplier: float) -> list[RepeatedEvent]:
    """A round of DP-SGD, and a count that is released beside it."""
    return [(PoissonSampledDpEvent(0.02, GaussianDpEvent(multiplier)), 50), (GaussianDpEvent(40.0), 1)]


def remaining(spent: Sequence[RepeatedEvent] = (), *, rounds: int, budget: Budget = BUDGET) -> Remaining:
    return Remaining(budget=budget, relation=RELATION, spent=tuple(spent), rounds=rounds)


def cost(spent: Sequence[RepeatedEvent]) -> float:
    return price(compose(spent), delta=BUDGET.delta, relation=RELATION).epsilon


def run(
    pace: Pace, rounds: int, *, runs: NoiseRuns = everyone, spent: Sequence[RepeatedEvent] = (), budget: Budget = BUDGET
) -> tuple[list[float], list[float]]:
    """The noise of each round, and what epsilon is after it."""
    past, noise, epsilons = list(spent), list[float](), list[float]()
    for number in range(rounds):
        usual = noise[-1] if noise else None
        left = remaining(past, rounds=rounds - number, budget=budget)
        noise.append(left.noise(runs, pace=pace, usual=usual))
        past += runs(noise[-1])
        epsilons.append(cost(past))
    return noise, epsilons


@BY_NAME
def test_the_budget_is_met_in_the_last_round_and_not_broken_before(pace: Pace) -> None:
    _, epsilons = run(pace, 6)
    assert epsilons == sorted(epsilons)
    assert 0.9995 * BUDGET.epsilon < epsilons[-1] <= BUDGET.epsilon


@pytest.mark.parametrize(
    ("pace", "shape"),
    [(CONSTANT_EPSILON, lambda t: t), (SQUARE_ROOT, math.sqrt)],
    ids=["constant-epsilon", "square-root"],
)
def test_epsilon_by_composition_follows_the_pace(pace: Pace, shape: object) -> None:
    assert callable(shape)
    noise, epsilons = run(pace, 5)
    for number, epsilon in enumerate(epsilons, 1):
        target = BUDGET.epsilon * shape(number / 5)
        assert 0.999 * target < epsilon <= target * (1 + 1e-12)
    assert len(set(noise)) == 5


def test_constant_noise_is_that_of_a_plan_made_at_once_to_the_last_bit() -> None:
    noise, epsilons = run(CONSTANT_NOISE, 7)
    assert len(set(noise)) == 1
    assert cost([(GaussianDpEvent(noise[0] / 1.0001), 14)]) > BUDGET.epsilon
    assert epsilons[-1] == cost([(GaussianDpEvent(noise[0]), 14)])


def test_rounds_of_sampled_steps_with_counts_beside_them_meet_the_budget_too() -> None:
    noise, epsilons = run(CONSTANT_NOISE, 2, runs=sampled, budget=LITTLE)
    assert 0.999 * LITTLE.epsilon < epsilons[-1] <= LITTLE.epsilon
    assert len(set(noise)) == 1


@pytest.mark.slow
def test_a_square_root_by_composition_of_sampled_steps() -> None:
    _, epsilons = run(SQUARE_ROOT, 3, runs=sampled, budget=LITTLE)
    for number, epsilon in enumerate(epsilons, 1):
        target = LITTLE.epsilon * math.sqrt(number / 3)
        assert 0.999 * target < epsilon <= target * (1 + 1e-12)


def quick(multiplier: float) -> list[RepeatedEvent]:
    """A few sampled steps, whose price takes little time."""
    return [(PoissonSampledDpEvent(0.2, GaussianDpEvent(multiplier)), 5)]


SOME = Budget(epsilon=1.2, delta=1e-5)
MUCH = [(GaussianDpEvent(3.45), 1)]  # leaves little of it, and is priced exactly on any grid


@pytest.mark.parametrize("pace", [SQUARE_ROOT, CONSTANT_EPSILON], ids=lambda pace: pace.name)
@pytest.mark.parametrize("spent", [quick(2.5), MUCH], ids=["sampled", "exact"])
@pytest.mark.parametrize("usual", [None, 3.0, 40.0])
def test_the_noise_after_other_rounds_is_the_least(pace: Pace, spent: list[RepeatedEvent], usual: float | None) -> None:
    left = remaining(spent, rounds=2, budget=SOME)
    found = left.noise(quick, pace=pace, usual=usual)
    goal = left.target(pace)
    assert cost([*spent, *quick(found)]) <= goal < cost([*spent, *quick(found / 1.0001)])
    assert left.noise(quick, pace=pace, usual=usual) == found


def test_what_another_accountant_prices_is_searched_for_in_full() -> None:
    def chosen(multiplier: float) -> list[RepeatedEvent]:
        return [(RepeatAndSelectDpEvent(GaussianDpEvent(multiplier), 3.0, 1.0), 5)]

    left = Remaining(budget=BUDGET, relation=RELATION, spent=tuple(chosen(20.0)), rounds=2)
    found = left.noise(chosen, pace=SQUARE_ROOT)

    def its_cost(multiplier: float) -> float:
        event = compose([*chosen(20.0), *chosen(multiplier)])
        return price(event, delta=BUDGET.delta, relation=RELATION).epsilon

    assert its_cost(found) <= left.target(SQUARE_ROOT) < its_cost(found / 1.0001)


@BY_NAME
def test_what_was_spent_otherwise_counts(pace: Pace) -> None:
    elsewhere = [(GaussianDpEvent(4.0), 1)]
    usual, _ = run(pace, 4)
    noise, epsilons = run(pace, 4, spent=elsewhere)
    assert sum(multiplier**-2 for multiplier in noise) < sum(multiplier**-2 for multiplier in usual)
    assert 0.9995 * BUDGET.epsilon < epsilons[-1] <= BUDGET.epsilon


@BY_NAME
def test_a_round_that_was_missed_leaves_more_for_the_others(pace: Pace) -> None:
    first = remaining(rounds=4).noise(everyone, pace=pace)
    with_all = remaining(everyone(first), rounds=3).noise(everyone, pace=pace, usual=first)
    missed_one = remaining(everyone(first), rounds=2).noise(everyone, pace=pace, usual=first)
    assert missed_one < with_all
    last = remaining([*everyone(first), *everyone(missed_one)], rounds=1).noise(everyone, pace=pace, usual=missed_one)
    spent = cost([*everyone(first), *everyone(missed_one), *everyone(last)])
    assert 0.9995 * BUDGET.epsilon < spent <= BUDGET.epsilon


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
    there = price(spent[0][0], delta=budget.delta, relation=RELATION).epsilon
    left = remaining(spent, rounds=rounds, budget=budget)
    if there >= epsilon:
        with pytest.raises(BudgetExceeded, match="nothing remains"):
            left.target(pace)
    else:
        assert there < left.target(pace) <= epsilon
        if rounds == 1:
            assert left.target(pace) == pytest.approx(epsilon, rel=1e-12)


def test_what_is_spent_leaves_nothing() -> None:
    spent = [(GaussianDpEvent(1.0), 1)]
    assert cost(spent) > BUDGET.epsilon
    with pytest.raises(BudgetExceeded, match="nothing remains for another round"):
        remaining(spent, rounds=2).noise(everyone)


def test_what_no_noise_can_pay_for_is_refused() -> None:
    def with_a_dear_count(multiplier: float) -> list[RepeatedEvent]:
        return [*everyone(multiplier), (GaussianDpEvent(1.0), 1)]

    def with_a_dear_sample(multiplier: float) -> list[RepeatedEvent]:
        return [*quick(multiplier), *quick(0.7)]

    with pytest.raises(BudgetExceeded, match="costs epsilon"):
        remaining(rounds=2).noise(with_a_dear_count)
    with pytest.raises(BudgetExceeded, match="costs epsilon"):
        remaining(quick(2.5), rounds=2).noise(with_a_dear_sample)


def test_more_noise_than_the_most_is_not_looked_for() -> None:
    left = remaining(everyone(4.0), rounds=3)
    needed = left.noise(everyone)
    assert left.noise(everyone, most=1.01 * needed) == needed
    with pytest.raises(BudgetExceeded, match="nobody would learn"):
        left.noise(everyone, most=0.99 * needed)


def test_after_the_last_round_nothing_is_planned() -> None:
    with pytest.raises(BudgetExceeded, match="all planned rounds are over"):
        remaining(rounds=0)
    with pytest.raises(ConfigError, match="rounds = -1"):
        remaining(rounds=-1)


def test_paces_have_names() -> None:
    assert named("square-root") is SQUARE_ROOT
    with pytest.raises(ConfigError, match="pace = 'fast': give one of constant-noise"):
        named("fast")
