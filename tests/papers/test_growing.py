import pytest

from incrowd.data import Split
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.sampling import constant
from papers.geyer.growing import Growing, grown

BUDGET = Budget(epsilon=8, delta=1e-5)


def test_cohorts_grow_at_a_constant_ratio() -> None:
    schedule = constant(rounds=1, cohort=200).scaled(1.4)
    found = grown(schedule, 0.25, clients=1000, budget=BUDGET)
    cohorts = [step.cohort for step in found.steps]
    assert cohorts == sorted(cohorts)
    assert cohorts[0] == 50
    assert cohorts[-1] == 200
    assert all(step.noise_multiplier**2 / step.cohort == pytest.approx(1.4**2 / 200) for step in found.steps)
    assert grown(schedule, 1.0, clients=1000, budget=BUDGET) == schedule


@pytest.mark.slow
def test_the_whole_budget_is_spent_by_cohorts_that_grow(split: Split) -> None:
    lines: list[str] = []
    (entry,) = Growing(split=split, factors=(0.25,), epsilon=3.5, seeds=1, say=lines.append).whole()
    assert entry["first_cohort"] < entry["last_cohort"] <= 100
    assert entry["epsilon"] == 3.5 < entry["epsilon_honest"]
    assert 0 <= entry["accuracy"] <= 1
    assert entry["rounds"] >= 1
    assert lines[0].startswith("100 clients, 25 to ")
