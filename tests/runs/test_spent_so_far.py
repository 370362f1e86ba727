from functools import cache

import pytest

from incrowd.privacy.account.accounting import Budget, price
from incrowd.privacy.account.events import compose
from incrowd.privacy.plan.plan import SAMPLING, Plan, PlanConfig
from incrowd.privacy.plan.sampling import Schedule, constant, growing
from incrowd.runs.work import spent_after

BUDGET = Budget(epsilon=2.0, delta=1e-5)


PLANS: dict[str, tuple[str, Schedule]] = {
    "everyone": ("everyone", constant(rounds=9, cohort=100)),
    "poisson": ("poisson", constant(rounds=9, cohort=20)),
    "fixed": ("fixed", constant(rounds=4, cohort=20)),
    "growing": ("poisson", growing(rounds=9, first_cohort=5, last_cohort=40, steps=3)),
}


@cache
def plan(name: str) -> Plan:
    sampling, schedule = PLANS[name]
    return PlanConfig(members=100, schedule=schedule, sampling=SAMPLING[sampling]).calibrate(BUDGET)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_the_epsilon_so_far_is_a_bound_that_rises_to_the_price_of_the_plan(name: str) -> None:
    one = plan(name)
    shown = [spent_after(one, rounds) for rounds in range(one.rounds + 1)]
    assert shown[0] == 0.0
    assert shown == sorted(shown)
    assert shown[-1] == one.price.epsilon
    for rounds in (1, one.rounds // 2, one.rounds - 1):
        events = compose([(one.round(number).event, 1) for number in range(rounds)])
        tight = price(events, delta=one.budget.delta, relation=one.relation).epsilon
        assert tight * (1 - 1e-9) <= shown[rounds] <= 1.5 * tight + 0.1


def test_after_the_last_round_it_is_the_plans_price_though_it_could_be_less() -> None:
    config = PlanConfig(
        members=100, schedule=constant(rounds=3, cohort=100), sampling=SAMPLING["everyone"], accountants=("RDP",)
    )
    one = config.calibrate(BUDGET)
    assert spent_after(one, 3) == one.price.epsilon
    assert spent_after(one, 2) < 0.9 * one.price.epsilon


def test_where_everyone_takes_part_it_is_exact() -> None:
    one = plan("everyone")
    events = compose([(one.round(0).event, 4)])
    exact = price(events, delta=one.budget.delta, relation=one.relation).epsilon
    assert spent_after(one, 4) == pytest.approx(exact, rel=1e-9)


def test_a_correlated_run_is_paid_in_its_first_round() -> None:
    one = PlanConfig.in_turns(clients=100, rounds=6, groups=4).calibrate(BUDGET)
    assert [spent_after(one, rounds) for rounds in range(7)] == [0.0] + [pytest.approx(one.price.epsilon)] * 6
