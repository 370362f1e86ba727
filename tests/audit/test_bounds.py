"""Lower bounds hold as often as they say, and are not idle."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtr

from incrowd._random import Floats
from incrowd.audit import bounds
from incrowd.audit.bounds import ErrorCounts
from incrowd.errors import ConfigError


def gaussian(mu: float, trials: int, seed: int) -> tuple[Floats, Floats]:
    draws = np.random.default_rng(seed).normal(size=(2, trials))
    return draws[0] + mu, draws[1]


def randomised(epsilon: float, trials: int, seed: int) -> tuple[Floats, Floats]:
    """Randomised response, which is exactly as private as it says."""
    draws = np.random.default_rng(seed).random((2, trials))
    true = 1 / (1 + math.exp(-epsilon))
    return (draws[0] < true).astype(float), (draws[1] >= true).astype(float)


class TestRates:
    def test_limits_are_those_of_clopper_and_pearson(self) -> None:
        expected = stats.binomtest(30, 100).proportion_ci(0.9, method="exact")
        assert bounds.at_least(30, 100, confidence=0.95) == pytest.approx(expected.low)
        assert bounds.at_most(30, 100, confidence=0.95) == pytest.approx(expected.high)

    @given(st.integers(0, 50), st.integers(0, 50), st.floats(0.5, 0.999))
    def test_any_counts_give_a_finite_bound(self, found: int, false: int, confidence: float) -> None:
        counts = ErrorCounts(found=found, members=50, false=false, others=50)
        assert 0 <= counts.epsilon(delta=1e-5, confidence=confidence) < 20
        assert 0 <= counts.mu(confidence=confidence) < 20

    def test_more_confidence_proves_less(self) -> None:
        counts = ErrorCounts(found=90, members=100, false=10, others=100)
        assert counts.epsilon(delta=0, confidence=0.95) > counts.epsilon(delta=0, confidence=bounds.SURE) > 0

    def test_both_errors_count(self) -> None:
        """Nobody missed is as telling as nobody accused wrongly."""
        counts = ErrorCounts(found=1000, members=1000, false=500, others=1000)
        assert counts.epsilon(delta=0, confidence=0.95) > 4

    def test_counts_beyond_the_trials_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="found"):
            ErrorCounts(found=11, members=10, false=0, others=10)


class TestScores:
    @pytest.mark.parametrize("epsilon", [0.5, 2.0])
    def test_bounds_are_exceeded_no_more_often_than_stated(self, epsilon: float) -> None:
        """400 audits of a mechanism that is exactly epsilon; above 45 at 5 % is a chance below 1e-6."""
        found = [bounds.lower_bound(*randomised(epsilon, 500, seed), delta=0.0) for seed in range(400)]
        assert sum(each > epsilon for each in found) <= 45
        assert np.median(found) > epsilon / 3

    def test_a_gaussian_bound_is_exceeded_no_more_often_than_stated(self) -> None:
        true = bounds.epsilon_of_mu(1.0, delta=1e-5)
        found = [bounds.lower_bound(*gaussian(1.0, 500, seed), delta=1e-5, gaussian=True) for seed in range(200)]
        assert sum(each > true for each in found) <= 30
        assert np.median(found) > true / 2

    def test_a_mechanism_with_less_noise_is_seen(self) -> None:
        claimed = bounds.epsilon_of_mu(1.0, delta=1e-5)
        scores = gaussian(2.0, 5000, 0)
        assert bounds.lower_bound(*scores, delta=1e-5, gaussian=True, confidence=bounds.SURE) > claimed
        right = gaussian(1.0, 5000, 0)
        assert bounds.lower_bound(*right, delta=1e-5, gaussian=True, confidence=bounds.SURE) <= claimed

    def test_the_threshold_comes_from_the_other_half(self) -> None:
        """Of scores without any signal hardly one in eight proves something; on the same half three in four would."""

        def share(*, twice: bool) -> float:
            found = []
            for seed in range(200):
                scores = [np.repeat(each[::2], 2) if twice else each for each in gaussian(0.0, 400, seed)]
                found.append(bounds.lower_bound(scores[0], scores[1], delta=0.0, confidence=0.5) > 0)
            return float(np.mean(found))

        assert share(twice=False) < 0.25
        assert share(twice=True) > 0.5  # the control: both halves are the same

    def test_hardly_any_scores_prove_nothing(self) -> None:
        assert bounds.lower_bound(np.ones(1), np.zeros(9), delta=0.0) == 0


def test_an_epsilon_of_mu_is_on_the_gaussian_curve() -> None:
    epsilon = bounds.epsilon_of_mu(1.5, delta=1e-3)
    assert ndtr(0.75 - epsilon / 1.5) - math.exp(epsilon) * ndtr(-0.75 - epsilon / 1.5) == pytest.approx(1e-3)
    assert bounds.epsilon_of_mu(0.0, delta=1e-3) == 0
