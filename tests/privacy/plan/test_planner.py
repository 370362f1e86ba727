import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.planner import Comparison, Question, over_all_rounds, ranked, row, signal

KNOWN = {"rounds": 20, "cohort": 100, "noise_multiplier": 1.2, "epsilon": 3.0, "delta": 1e-5}


def test_hardly_any_delta_is_still_one_that_can_be_promised() -> None:
    quiet = Question(clients=10, rounds=1, cohort=10, noise_multiplier=100.0, epsilon=8.0).answer()
    assert quiet.budget.delta == 1e-30
    assert quiet.price.epsilon <= 8.0


def test_exactly_one_number_must_be_unknown() -> None:
    for missing in ([], ["rounds", "cohort"]):
        question = Question(clients=1000, **KNOWN | dict.fromkeys(missing))  # type: ignore[arg-type]  # numbers by name
        with pytest.raises(ConfigError, match="leave out exactly one"):
            question.answer()
        if missing:
            with pytest.raises(ConfigError, match="only one number can be unknown"):
                question.config()


def test_the_signal_is_that_of_one_release_about_everyone() -> None:
    budget = Budget(epsilon=8.0, delta=1e-3)
    assert signal(100, budget) == pytest.approx(208.33, abs=0.01)  # 100 times mu, of which (8, 1e-3) is the price
    assert signal(300, budget) == pytest.approx(3 * signal(100, budget), rel=1e-6)


# Asking one accountant is faster, and which one does not matter here.
BASE: dict[str, Any] = {"clients": (100,), "epsilons": (1.0,), "deltas": (1e-3,), "accountant": "pld"}


def plans_of(**wanted: Any) -> list[tuple[int, float]]:
    return [(plan.rounds, plan.config.schedule.steps[-1].cohort) for plan in Comparison(**BASE | wanted).plans()]


def test_every_combination_is_planned() -> None:
    assert plans_of(rounds=(5, 9), cohorts=(50, 100)) == [(5, 50), (5, 100), (9, 50), (9, 100)]


def test_given_noise_finds_rounds_or_cohort_or_epsilon() -> None:
    assert plans_of(cohorts=(100,), noise_multiplier=9.0) == [(12, 100)]  # floor((9 * 0.388)^2)
    ((rounds, cohort),) = plans_of(rounds=(12,), noise_multiplier=9.0)
    assert (rounds, cohort) == (12, 100)
    (plan,) = Comparison(**BASE | {"epsilons": (None,)}, rounds=(30,), cohorts=(100,), noise_multiplier=9.0).plans()
    assert plan.price.epsilon > 1.0


def test_impossible_wishes_are_refused() -> None:
    with pytest.raises(ConfigError, match="clients"):
        Comparison(**BASE | {"clients": (0,)})
    with pytest.raises(ConfigError, match="delta"):
        Comparison(**BASE | {"deltas": (1.0,)})
    with pytest.raises(ConfigError, match=r"epsilon = 1\.0: noise, rounds and cohort are given"):
        Comparison(**BASE, rounds=(2,), sampling="everyone", noise_multiplier=2.0)
    with pytest.raises(ConfigError, match="epsilon = None: state it"):
        Comparison(**BASE | {"epsilons": (None,)}, rounds=(2,))


def test_more_clients_and_other_budgets_are_compared() -> None:
    several = BASE | {"clients": (100, 200), "epsilons": (1.0, 2.0), "deltas": (1e-4, 1e-5), "accountant": "gdp"}
    plans = list(Comparison(**several, rounds=(2,), sampling="everyone").plans())
    assert [(plan.config.members, plan.budget.epsilon, plan.budget.delta) for plan in plans] == list(
        product((100, 200), (1.0, 2.0), (1e-4, 1e-5))
    )
    with pytest.raises(ConfigError, match="cohort"):
        plans_of(rounds=(2,), cohorts=(50,), clients=(20, 100))


def test_a_comparison_is_for_a_tenth_of_the_clients_unless_it_says_otherwise() -> None:
    settled: dict[str, Any] = {"accountant": "rdp", "rounds": (2,)}
    assert [found[-1] for found in plans_of(**settled, clients=(100, 250))] == [10, 25]
    settled["noise_multiplier"] = 2.0
    shares: dict[str, Any] = {"epsilons": (None,), "shares": (0.5, 0.001), "cohorts": (7,)}
    assert [found[-1] for found in plans_of(**settled, **shares, clients=(100, 250))] == [7, 50, 1, 7, 125, 1]
    cohorts = [found[-1] for found in plans_of(**settled, epsilons=(0.5, 4.0))]
    assert cohorts[0] < cohorts[1]  # found, because rounds and noise are given
    with pytest.raises(ConfigError, match="cohort"):
        Comparison(**BASE, shares=(0.0,))


def test_plans_are_ranked_by_the_noise_of_all_rounds_and_then_by_what_is_sent() -> None:
    plans = list(Comparison(**BASE | {"accountant": "rdp"}, rounds=(3, 12), cohorts=(50,)).plans())
    ranks = ranked(plans)
    assert sorted(ranks) == [1, 2]
    best = plans[ranks.index(1)]
    assert all(over_all_rounds(best, weights=7) <= over_all_rounds(plan, weights=7) for plan in plans)
    assert ranked([best, best]) == [1, 2]


def test_noise_that_is_taken_back_counts_as_what_is_left_of_it() -> None:
    """Round by round the noise is C^-1 z; together that is the row of column sums of C^-1, times z."""
    plan = PlanConfig.in_turns(clients=60, rounds=12, groups=6).calibrate(Budget(epsilon=2.0, delta=1e-5))
    noise = plan.correlated
    assert noise is not None
    column = noise.column
    matrix = np.array([[column[row - at] if row >= at else 0.0 for at in range(12)] for row in range(12)])
    left = np.linalg.norm(np.linalg.inv(matrix).sum(axis=0)) * plan.noise_multiplier * noise.sensitivity
    assert over_all_rounds(plan, weights=9) == pytest.approx(3 * left / 10 / 12)


@pytest.mark.parametrize(("noise_by", "times"), [("server", 1.0), ("party", 20**0.5), ("parties", (20 / 14) ** 0.5)])
def test_a_row_counts_the_noise_of_all_who_add_some(noise_by: Any, times: float) -> None:
    colluders = 6 if noise_by == "parties" else None
    asked = Comparison(
        **BASE | {"clients": (20,)}, rounds=(5,), sampling="everyone", noise_by=noise_by, colluders=colluders
    )
    (plan,) = asked.plans()
    found: Any = row(plan, weights=9)
    assert found["colluders"] == colluders
    assert found["noise_to_signal"] == pytest.approx(times * plan.noise_multiplier * 3 / 20)
    assert found["over_all_rounds"] == pytest.approx(found["noise_to_signal"] / math.sqrt(5))
