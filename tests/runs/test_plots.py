from pathlib import Path
from typing import Any

import pytest

from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Schedule, Step
from incrowd.runs.folder import Record
from incrowd.runs.plots import plot_plans, plot_run


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


RECORDS = [
    Record(round=0, epsilon=1.0, accuracy=0.5, loss=1.0),
    Record(round=1, epsilon=1.5, lost=True),
    Record(round=2, epsilon=2.0, accuracy=0.7, loss=0.5),
]


def drawn(folder: Path, **facts: Any) -> str:
    """The words of a run's figure; `facts` are those of its summary."""
    settings = {"config": {"privacy": {"unit": "client"}}}
    summary = {"data": "digits", "clients": 100, "epsilon": 2.0, "delta": 1e-5, "simulated": False}
    summary |= {"accuracy": 0.7, "loss": 0.5, "metrics": {"baseline": {"accuracy": 0.125}}}
    return text(plot_run(folder / "run.svg", settings, summary | facts, RECORDS))


@pytest.mark.slow
def test_the_title_says_data_and_promise_and_a_simulation_is_marked(tmp_path: Path) -> None:
    shown = drawn(tmp_path)
    assert "<!-- digits, 100 clients, ε = 2, δ = 10⁻⁵, for one client -->" in shown
    assert "<!-- always the most frequent class: 0.125 -->" in shown
    assert "SIMULATION" not in shown
    assert "<!-- SIMULATION: seeded noise -->" in drawn(tmp_path, simulated=True)


def test_a_run_of_numbers_has_its_loss_beside_the_mean_s(tmp_path: Path) -> None:
    metrics = {"mse": 1.0, "baseline": {"mse": 4.0}}
    assert "<!-- always the mean: 2 -->" in drawn(tmp_path, accuracy=None, metrics=metrics)
    assert "always" not in drawn(tmp_path, accuracy=None, metrics=None)
