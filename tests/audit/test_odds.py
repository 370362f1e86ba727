"""Areas, true positives at few false ones, and what promises allow."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from incrowd.audit import bounds
from incrowd.audit.bounds import allowed, auc, odds


def test_the_area_is_the_chance_of_the_larger_score() -> None:
    inside, outside = np.array([1.0, 3.0, 3.0]), np.array([0.0, 3.0])
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in inside for b in outside]
    assert auc(inside, outside) == pytest.approx(np.mean(pairs))


def test_the_odds_of_gaussian_scores() -> None:
    draws = np.random.default_rng(0).normal(size=(2, 100_000))
    found = odds(draws[0] + 3, draws[1])
    assert found.auc == pytest.approx(ndtr(3 / math.sqrt(2)), abs=0.003)
    assert found.true_positives == pytest.approx(ndtr(ndtri(1e-3) + 3), abs=0.03)
    assert 1e-3 < found.false_positives_at_most < 1.3e-3


def test_of_few_others_the_false_positives_are_hardly_known() -> None:
    found = odds(np.arange(10.0) + 100, np.arange(20.0))
    assert found.true_positives == 1
    assert found.false_positives_at_most > 0.1


@given(st.floats(0.0, 1.0), st.floats(0.0, 10.0), st.floats(0.0, 0.1))
def test_a_promise_allows_at_least_guessing_and_at_most_all(false: float, epsilon: float, delta: float) -> None:
    assert false - 1e-9 <= allowed(false, epsilon=epsilon, delta=delta) <= 1


def test_promises_of_one_gaussian_release_allow_what_its_mu_does() -> None:
    deltas = {
        epsilon: ndtr(0.5 - epsilon) - math.exp(epsilon) * ndtr(-0.5 - epsilon) for epsilon in np.arange(0, 20, 0.25)
    }
    by_mu, by_curve = ndtr(ndtri(1e-3) + 1.0), min(allowed(1e-3, epsilon=e, delta=d) for e, d in deltas.items())
    assert by_mu <= by_curve <= 1.02 * by_mu
    one = bounds.epsilon_of_mu(1.0, delta=1e-5)
    assert allowed(1e-3, epsilon=one, delta=1e-5) > by_curve
