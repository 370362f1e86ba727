"""The article's private average, against brute force."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from incrowd.privacy.account.accounting import Relation, price
from papers.fedn.average_query import AverageQuery, plot_average_query
from tests.command import Command

QUERY = AverageQuery(users=10, bound=1.0, noise_std=0.2)


def test_the_averages_are_those_of_the_worst_case() -> None:
    values = np.clip(np.array([5.0] * 10), -1, 1)
    assert values.mean() == pytest.approx(QUERY.without)
    assert np.append(values, -1.0).mean() == pytest.approx(QUERY.present)


def test_answers_are_between_the_lines_as_often_as_said_and_the_loss_is_bounded_there() -> None:
    inside = norm.cdf(QUERY.high, QUERY.present, 0.2) - norm.cdf(QUERY.low, QUERY.present, 0.2)
    assert inside == pytest.approx(0.99)
    answers = np.linspace(QUERY.low, QUERY.high, 1000)
    assert QUERY.loss(answers).max() <= QUERY.largest_loss * (1 + 1e-12)
    assert QUERY.loss(np.array([QUERY.low - 1.0])).max() > QUERY.largest_loss


def test_the_figures_epsilon_is_a_bound_and_the_exact_one_is_smaller() -> None:
    facts = QUERY.facts()
    assert facts["epsilon_exact"] < facts["epsilon_of_the_figure"]
    assert facts["delta_exact_at_the_figures_epsilon"] < facts["delta"] == 0.01
    exact = price(QUERY.event, delta=0.01, relation=Relation.ADD_OR_REMOVE_ONE).epsilon
    assert facts["epsilon_exact"] == exact
    # Balle and Wang 2018, theorem 8, from the two densities.
    grid = np.linspace(-4, 6, 2_000_001)
    over = norm.pdf(grid, QUERY.present, 0.2) - math.exp(exact) * norm.pdf(grid, QUERY.without, 0.2)
    assert np.clip(over, 0, None).sum() * (grid[1] - grid[0]) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.slow
def test_the_command_draws_and_prints(reproduce: Command, tmp_path: Path) -> None:
    finished = reproduce("fedn-average-query", "--plot", "loss.png", "--json")
    assert finished.object()["epsilon_exact"] == QUERY.facts()["epsilon_exact"]
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "epsilon of the figure" in reproduce("fedn-average-query").out
    plot_average_query(tmp_path / "again.png", QUERY)
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "loss.png").read_bytes()
