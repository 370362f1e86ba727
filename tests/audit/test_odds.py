"""Areas, true positives at few false ones, and what promises allow."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from incrowd.audit import bounds
from incrowd.audit.odds import allowed, allowed_by_curve, allowed_by_mu, auc, odds


def test_the_area_is_the_chance_of_the_larger_score() -> None:
    inside, outside = np.array([1.0, 3.0, 3.0]), np.array([0.0, 3.0])
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in inside for b in outside]
    assert auc(inside, outside) == pytest.approx(np.mean(pairs))


def test_the_odds_of_gaussian_scores() -> None:
    draws = np.random.default_rng(0).normal(size=(2, 100_000))
    found = odds(draws[0] + 3, draws[1])
    assert found.auc == pytest.approx(ndtr(3 / math.sqrt(2)), abs=0.003)
    assert found.true_positives == pytest.approx(allowed_by_mu(1e-3, 3), abs=0.03)
    assert 1e-3 < found.false_positives_at_most < 1.3e-3


def test_of_few_others_the_false_positives_are_hardly_known() -> None:
    found = odds(np.arange(10.0) + 100, np.arange(20.0))
    assert found.true_positives == 1
    assert found.false_positives_at_most > 0.1


@given(st.floats(0.0, 1.0), st.floats(0.0, 10.0), st.floats(0.0, 0.1))
def test_a_promise_allows_at_least_guessing_and_at_most_all(false: float, epsilon: float, delta: float) -> None:
    assert false - 1e-9 <= allowed(false, epsilon=epsilon, delta=delta) <= 1


def test_a_gaussian_curve_allows_what_its_mu_does() -> None:
    def delta_at(epsilon: float) -> float:
        return float(ndtr(0.5 - epsilon) - math.exp(epsilon) * ndtr(-0.5 - epsilon))

    by_curve = allowed_by_curve(1e-3, delta_at)
    assert allowed_by_mu(1e-3, 1.0) <= by_curve <= 1.02 * allowed_by_mu(1e-3, 1.0)
    one = bounds.epsilon_of_mu(1.0, delta=1e-5)
    assert allowed(1e-3, epsilon=one, delta=1e-5) > by_curve
