import json
import math
from typing import Any

import pytest

from incrowd.errors import ConfigError
from incrowd.privacy.survey import Wish, row

BASE: dict[str, Any] = {"clients": 100, "epsilon": 8.0, "delta": 1e-3}


def plans_of(**wish: Any) -> list[tuple[int, float]]:
    return [(plan.rounds, plan.config.schedule.steps[-1].cohort) for plan in Wish(**BASE | wish).plans()]


def test_every_combination_is_planned() -> None:
    assert plans_of(rounds=(2, 3), cohorts=(50, 100)) == [(2, 50), (2, 100), (3, 50), (3, 100)]


def test_what_is_left_out_comes_from_a_grid() -> None:
    assert plans_of(rounds=(2,)) == [(2, 2), (2, 10), (2, 50), (2, 100)]
    assert [rounds for rounds, _ in plans_of(cohorts=(100,))] == [10, 30, 100, 300]
    assert plans_of(rounds=(2,), sampling="everyone") == [(2, 100)]
    assert plans_of(clients=1, delta=1e-5, rounds=(2,)) == [(2, 1)]


def test_given_noise_finds_rounds_or_cohort_or_epsilon() -> None:
    assert plans_of(cohorts=(100,), noise_multiplier=2.0) == [(17, 100)]  # floor((2 * 2.0833)^2)
    ((rounds, cohort),) = plans_of(rounds=(17,), noise_multiplier=2.0)
    assert (rounds, cohort) == (17, 100)
    (plan,) = Wish(**BASE, rounds=(30,), cohorts=(100,), noise_multiplier=2.0).plans()
    assert plan.price.epsilon > 8.0


def test_a_growing_cohort_keeps_noise_squared_over_cohort() -> None:
    (plan,) = Wish(**BASE, rounds=(6,), cohorts=(60,), grow_from=10).plans()
    steps = plan.config.schedule.steps
    assert (steps[0].cohort, steps[-1].cohort) == (10, 60)
    ratios = [step.noise_multiplier**2 / step.cohort for step in steps]
    assert ratios == pytest.approx([ratios[0]] * len(ratios))
    assert 7.99 < plan.price.epsilon <= 8.0


def test_impossible_wishes_are_refused() -> None:
    with pytest.raises(ConfigError, match="grow_from"):
        Wish(**BASE, grow_from=3, noise_multiplier=1.0)
    with pytest.raises(ConfigError, match="clients"):
        Wish(**BASE | {"clients": 0})
    with pytest.raises(ConfigError, match="delta"):
        Wish(**BASE | {"delta": 1.0})


def test_a_row_is_json_and_says_what_the_plan_says() -> None:
    (plan,) = Wish(**BASE, rounds=(3,), cohorts=(50,), sampling="fixed", accountant="rdp").plans()
    found = json.loads(json.dumps(row(plan, weights=400)))
    assert found["sampling"] == "FixedSize"
    assert found["sensitivity_in_clips"] == 2
    assert found["sampling_prob"] == 0.5
    assert found["accountant"] == "RDP"
    assert found["noise_multiplier"] == plan.noise_multiplier
    assert found["communications"] == 150
    assert found["noise_to_signal"] == pytest.approx(plan.noise_multiplier * math.sqrt(400) / 50)
    step = {"rounds": 3, "cohort": 50, "sampling_prob": 0.5, "noise_multiplier": plan.noise_multiplier}
    assert found["schedule"] == [step]
