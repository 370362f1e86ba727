"""Lower bounds hold as often as they say, and are not idle; a finding states its bound beside the claim."""

import json
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtr, ndtri

from incrowd._random import Floats
from incrowd.audit import bounds
from incrowd.audit.bounds import Audited, Check, Finding
from incrowd.audit.checks import least_epsilon
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Everyone, Poisson, constant


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

    @given(st.integers(0, 50), st.integers(0, 50), st.floats(0.5, 0.999), st.booleans())
    def test_any_counts_give_a_finite_bound(self, found: int, false: int, confidence: float, gaussian: bool) -> None:
        proven = bounds.proven(found, 50, false, 50, delta=1e-5, confidence=confidence, gaussian=gaussian)
        assert 0 <= proven < 20

    def test_more_confidence_proves_less_and_both_errors_count(self) -> None:
        """Nobody missed is as telling as nobody accused wrongly."""

        def proven(found: int, false: int, confidence: float) -> float:
            return float(bounds.proven(found, 1000, false, 1000, delta=0, confidence=confidence, gaussian=False))

        assert proven(900, 100, 0.95) > proven(900, 100, bounds.SURE) > 0
        assert proven(1000, 500, 0.95) > 4


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


def test_a_finding_has_the_odds_of_gaussian_scores() -> None:
    inside = np.arange(200_000) % 2 == 0
    scores = np.random.default_rng(0).normal(size=len(inside)) + 3 * inside
    of = partial(Finding.of, attack="guess", unit="client", claimed=1.0, delta=0.0, gaussian=True, note="")
    found = of(scores, inside)
    assert found.auc == pytest.approx(ndtr(3 / math.sqrt(2)), abs=0.003)
    assert found.true_positives == pytest.approx(ndtr(ndtri(1e-3) + 3), abs=0.03)
    assert 1e-3 * math.e < found.allowed < 1.7e-3 * math.e
    few = of(scores[:20], inside[:20])
    assert few.allowed > 0.1  # of few others the false positives are hardly known
    with pytest.raises(ConfigError, match="canaries"):
        of(scores[:1], inside[:1])


@given(st.floats(0.0, 1.0), st.floats(0.0, 10.0), st.floats(0.0, 0.1))
def test_a_promise_allows_what_both_inequalities_do_and_one_of_them_is_tight(
    false: float, epsilon: float, delta: float
) -> None:
    found = bounds.allowed(false, epsilon=epsilon, delta=delta)
    assert false - 1e-9 <= found <= 1
    room = [math.exp(epsilon) * false + delta - found, math.exp(epsilon) * (1 - found) + delta - 1 + false]
    assert min(room) == pytest.approx(0, abs=1e-6) or found == 1
    assert min(room) >= -1e-6 * math.exp(epsilon)


@pytest.mark.parametrize(("sampling", "cohort"), [(Poisson, 20), (Everyone, 60)])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_a_price_that_is_a_hundredth_too_low_is_seen(sampling: type, cohort: int, epsilon: float) -> None:
    config = PlanConfig(members=60, schedule=constant(rounds=6, cohort=cohort), sampling=sampling)
    plan = config.calibrate(Budget(epsilon=epsilon, delta=1e-3))
    assert 0.99 * plan.price.epsilon < least_epsilon(plan) <= plan.price.epsilon


def finding(**given: object) -> Finding:
    known = {"attack": "guess", "unit": "client", "claimed": 2.0, "delta": 1e-5, "trials": 2000, "auc": 0.5}
    known |= {"lower_bound": 0.0, "sure_bound": 0.0, "true_positives": 0.0, "allowed": 1.0}
    return Finding(**{**known, **given})  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        ({}, True),
        ({"sure_bound": 2.0}, True),
        ({"sure_bound": 2.1}, False),
        ({"lower_bound": 2.1, "sure_bound": 1.9}, True),
        ({"true_positives": 0.1, "allowed": 0.2}, True),
        ({"true_positives": 0.21, "allowed": 0.2}, True),
        ({"true_positives": 0.3, "allowed": 0.2}, False),
    ],
)
def test_a_promise_stands_unless_more_is_proven(given: dict[str, object], holds: bool) -> None:
    assert finding(**given).holds is holds


def test_the_verdict_is_that_of_all_and_names_what_is_wrong() -> None:
    """The best finding is one for no more than the claim: a device's life may tell more than one contribution."""
    wrong, right = Check("noise", "0.9", "1", holds=False), Check("clip", "1", "1", holds=True)
    life = finding(unit="device", claimed=6.0, lower_bound=2.7)
    findings = (finding(lower_bound=1.0), finding(lower_bound=1.5, confidence=0.9), life)
    found = Audited(claimed=2.0, delta=1e-5, findings=findings, checks=(right, wrong), settings={})
    assert not found.holds
    assert found.violations == ("noise: 0.9, where 1 is stated",)
    said = json.loads(json.dumps(found.to_json()))
    assert (said["epsilon_claimed"], said["epsilon_lower_bound"], said["confidence"]) == (2.0, 1.5, 0.9)
    assert "simulations" in said["simulated"]
    assert Audited(claimed=2.0, delta=0.0, findings=(), checks=(), settings={}).to_json()["epsilon_lower_bound"] is None
