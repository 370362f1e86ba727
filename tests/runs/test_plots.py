from pathlib import Path

import pytest

from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.schedule import Schedule, Step
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
    return PlanConfig(clients=clients, schedule=schedule, accountants=("RDP",)).plan(
        Budget(epsilon=epsilon, delta=1e-5)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plans", "over", "curves"),
    [
        ([plan()], "rounds", ["cohort 10"]),
        ([plan(rounds, cohort=m) for rounds in (5, 9) for m in (10, 20)], "rounds", ["cohort 10", "cohort 20"]),
        ([plan(5, epsilon=e) for e in (1, 2, 4)], "epsilon", ["cohort 10"]),
        ([plan(5, clients=k, cohort=k / 5) for k in (100, 200)], "clients", ["cohort 0.2 of the clients"]),
        ([plan(r, epsilon=e) for r in (5, 9) for e in (1, 2)], "rounds", ["epsilon 1", "epsilon 2"]),
        (
            [plan(5, epsilon=e, clients=k) for k in (100, 200) for e in (1, 2)],
            "epsilon",
            ["100 clients", "200 clients"],
        ),
        ([plan(5, cohort=m) for m in (5, 10, 20)], "cohort", []),
    ],
)
def test_plans_are_drawn_over_what_differs_with_a_curve_for_everything_else(
    tmp_path: Path, plans: list[Plan], over: str, curves: list[str]
) -> None:
    plot_plans(tmp_path / "plans.svg", plans)
    found = text(tmp_path / "plans.svg")
    for words in (over, *curves, "noise of the mean, in clip bounds"):
        assert f"<!-- {words} -->" in found


@pytest.mark.slow
def test_what_if_has_a_panel_for_each_cohort_unless_there_are_many(tmp_path: Path) -> None:
    def drawn(cohorts: list[int]) -> str:
        plans = [plan(r, epsilon=e, cohort=m) for m in cohorts for e in (1, 2) for r in (5, 9)]
        plot_plans(tmp_path / "plans.svg", plans, weights=5000)
        return text(tmp_path / "plans.svg")

    few, many = drawn([10, 20]), drawn([10, 20, 30, 40, 50])
    assert few.count("<!-- epsilon 1 -->") == 2
    assert "<!-- 100 clients, delta 1e-05, cohort 20 -->" in few
    assert "<!-- noise to signal of the mean, 5,000 weights -->" in few
    assert "<!-- epsilon 1, cohort 50 -->" in many


def test_where_the_noise_is_given_the_rounds_that_it_allows_are_drawn(tmp_path: Path) -> None:
    plans = [plan(rounds, epsilon=epsilon, noise=50.0) for rounds, epsilon in ((5, 1.0), (9, 2.0))]
    plot_plans(tmp_path / "plans.svg", plans)
    found = text(tmp_path / "plans.svg")
    assert "<!-- rounds -->" in found
    assert "<!-- epsilon -->" in found
    assert "clip bounds" not in found
