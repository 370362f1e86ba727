import json
import math
from typing import Any

import numpy as np
import pytest

from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.survey import Wish, over_all_rounds, ranked, row, what_if

# Asking one accountant is faster, and which one does not matter here.
BASE: dict[str, Any] = {"clients": 100, "epsilon": 1.0, "delta": 1e-3, "accountant": "pld"}


def plans_of(**wish: Any) -> list[tuple[int, float]]:
    return [(plan.rounds, plan.config.schedule.steps[-1].cohort) for plan in Wish(**BASE | wish).plans()]


def test_every_combination_is_planned() -> None:
    assert plans_of(rounds=(5, 9), cohorts=(50, 100)) == [(5, 50), (5, 100), (9, 50), (9, 100)]


def test_what_is_left_out_comes_from_a_grid() -> None:
    assert plans_of(rounds=(5,)) == [(5, 2), (5, 10), (5, 50), (5, 100)]
    assert [rounds for rounds, _ in plans_of(cohorts=(100,))] == [10, 30, 100, 300]
    assert plans_of(rounds=(2,), sampling="everyone") == [(2, 100)]
    assert plans_of(clients=1, delta=1e-5, rounds=(2,)) == [(2, 1)]


def test_given_noise_finds_rounds_or_cohort_or_epsilon() -> None:
    assert plans_of(cohorts=(100,), noise_multiplier=9.0) == [(12, 100)]  # floor((9 * 0.388)^2)
    ((rounds, cohort),) = plans_of(rounds=(12,), noise_multiplier=9.0)
    assert (rounds, cohort) == (12, 100)
    (plan,) = Wish(**BASE | {"epsilon": None}, rounds=(30,), cohorts=(100,), noise_multiplier=9.0).plans()
    assert plan.price.epsilon > 1.0


def test_a_growing_cohort_keeps_noise_squared_over_cohort() -> None:
    (plan,) = Wish(**BASE, rounds=(4,), cohorts=(60,), grow_from=10).plans()
    steps = plan.config.schedule.steps
    assert (steps[0].cohort, steps[-1].cohort) == (10, 60)
    ratios = [step.noise_multiplier**2 / step.cohort for step in steps]
    assert ratios == pytest.approx([ratios[0]] * len(ratios))
    assert 0.999 < plan.price.epsilon <= 1.0


def test_impossible_wishes_are_refused() -> None:
    with pytest.raises(ConfigError, match="grow_from"):
        Wish(**BASE, grow_from=3, noise_multiplier=1.0)
    with pytest.raises(ConfigError, match="the cohort to grow to"):
        Wish(**BASE, grow_from=3)
    with pytest.raises(ConfigError, match="clients"):
        Wish(**BASE | {"clients": 0})
    with pytest.raises(ConfigError, match="delta"):
        Wish(**BASE | {"delta": 1.0})
    with pytest.raises(ConfigError, match=r"epsilon = 1\.0: noise, rounds and cohort are given"):
        Wish(**BASE, rounds=(2,), sampling="everyone", noise_multiplier=2.0)
    with pytest.raises(ConfigError, match="epsilon = None: state it"):
        Wish(**BASE | {"epsilon": None}, rounds=(2,))


def what_ifs(wish: Wish, **wanted: Any) -> list[tuple[int, float, float, int, float]]:
    asked = {"clients": (wish.clients,), "epsilons": (wish.epsilon,), "deltas": (wish.delta,)} | wanted
    return [
        (
            plan.config.members,
            plan.budget.epsilon,
            plan.budget.delta,
            plan.rounds,
            plan.config.schedule.steps[-1].cohort,
        )
        for plan in what_if(wish, **asked)
    ]


def test_what_if_there_were_more_clients_or_another_budget() -> None:
    wish = Wish(**BASE | {"accountant": "gdp"}, rounds=(2,), sampling="everyone")
    assert what_ifs(wish) == [(100, 1.0, 1e-3, 2, 100)]
    assert what_ifs(wish, clients=(100, 200), epsilons=(1.0, 2.0), deltas=(1e-4, 1e-5)) == [
        (clients, epsilon, delta, 2, clients)
        for clients in (100, 200)
        for epsilon in (1.0, 2.0)
        for delta in (1e-4, 1e-5)
    ]
    with pytest.raises(ConfigError, match="cohort"):
        what_ifs(Wish(**BASE, rounds=(2,), cohorts=(50,)), clients=(20, 100))


def test_what_if_looks_at_a_tenth_of_the_clients_unless_it_is_told_otherwise() -> None:
    settled: dict[str, Any] = BASE | {"accountant": "rdp", "rounds": (2,), "noise_multiplier": 2.0}
    tenth = Wish(**settled | {"noise_multiplier": None})
    assert [found[-1] for found in what_ifs(tenth, clients=(100, 250))] == [10, 25]
    shares = Wish(**settled | {"epsilon": None}, shares=(0.5, 0.001), cohorts=(7,))
    assert [found[-1] for found in what_ifs(shares, clients=(100, 250))] == [7, 50, 1, 7, 125, 1]
    cohorts = [found[-1] for found in what_ifs(Wish(**settled), epsilons=(0.5, 4.0))]
    assert cohorts[0] < cohorts[1]  # found, because rounds and noise are given
    with pytest.raises(ConfigError, match="cohort"):
        Wish(**BASE, shares=(0.0,))


def test_a_row_is_json_and_says_what_the_plan_says() -> None:
    (plan,) = Wish(**BASE | {"accountant": "rdp"}, rounds=(3,), cohorts=(50,), sampling="fixed").plans()
    found = json.loads(json.dumps(row(plan, weights=400)))
    assert found["sampling"] == "FixedSize"
    assert found["sensitivity_in_clips"] == 2
    assert found["sampling_prob"] == 0.5
    assert found["accountant"] == "RDP"
    assert found["noise_multiplier"] == plan.noise_multiplier
    assert found["communications"] == 150
    assert found["noise_to_signal"] == pytest.approx(plan.noise_multiplier * math.sqrt(400) / 50)
    assert found["over_all_rounds"] == pytest.approx(found["noise_to_signal"] / math.sqrt(3))
    certain = math.exp(plan.price.epsilon)
    assert found["odds"] == pytest.approx((certain + plan.budget.delta) / (1 + certain))
    step = {"rounds": 3, "cohort": 50, "sampling_prob": 0.5, "noise_multiplier": plan.noise_multiplier}
    assert found["schedule"] == [step]


def test_plans_are_ranked_by_the_noise_of_all_rounds_and_then_by_what_is_sent() -> None:
    wish = Wish(**BASE | {"accountant": "rdp"}, rounds=(3, 12), cohorts=(10, 50))
    plans = list(wish.plans())
    ranks = ranked(plans)
    assert sorted(ranks) == [1, 2, 3, 4]
    best = plans[ranks.index(1)]
    assert all(over_all_rounds(best, weights=7) <= over_all_rounds(plan, weights=7) for plan in plans)
    assert ranked([best, best]) == [1, 2]


def test_noise_that_is_taken_back_counts_as_what_is_left_of_it() -> None:
    """Round by round the noise is C^-1 z; together that is the row of column sums of C^-1, times z."""
    plan = PlanConfig.in_turns(clients=60, rounds=12, groups=6).calibrate(Budget(epsilon=2.0, delta=1e-5))
    noise = plan.correlated
    assert noise is not None
    column = noise._column
    matrix = np.array([[column[row - at] if row >= at else 0.0 for at in range(12)] for row in range(12)])
    left = np.linalg.norm(np.linalg.inv(matrix).sum(axis=0)) * plan.noise_multiplier * noise.sensitivity
    assert over_all_rounds(plan, weights=9) == pytest.approx(3 * left / 10 / 12)
