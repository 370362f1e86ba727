from pathlib import Path

import pytest

from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Schedule, Step
from incrowd.runs.plots import plot_plans


def text(path: Path) -> str:
    """An SVG holds its words as paths, unless it is told not to: the comments beside them say which."""
    return path.read_text()


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name a file that ends in"):
        plot_plans(tmp_path / "plans.doc", [plan()])


def plan(rounds: int = 5, *, cohort: float = 10, clients: int = 100, epsilon: float = 2.0, noise: float = 0) -> Plan:
    """A plan that needs no search: its noise is made up, and its budget is whatever it costs."""
    noise = noise or rounds * clients / epsilon
    schedule = Schedule((Step(rounds=rounds, cohort=cohort, noise_multiplier=noise),))
    return PlanConfig(members=clients, schedule=schedule, accountants=("RDP",)).plan(
        Budget(epsilon=epsilon, delta=1e-5)
    )


def test_there_is_a_curve_for_each_combination_of_what_differs(tmp_path: Path) -> None:
    plans = [plan(r, epsilon=e, cohort=m) for m in (10, 20) for e in (1, 2) for r in (5, 9)]
    plot_plans(tmp_path / "plans.svg", plans, weights=5000)
    shown = text(tmp_path / "plans.svg")
    assert "<!-- epsilon 1, cohort 20 -->" in shown
    assert "<!-- 100 clients, delta 1e-05 -->" in shown
    assert "<!-- noise to signal of the mean, 5,000 weights -->" in shown
