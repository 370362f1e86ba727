"""Every accountant keeps the same contract, for every event that it supports."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting import NeighboringRelation as Relation
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import rdp_privacy_accountant
from mpmath import mp, mpf  # type: ignore[import-untyped]  # it ships no types
from scipy import stats

from incrowd.errors import AccountingError
from incrowd.privacy.account.accounting import ORDERS, Curve, GaussianCurve, LossDistributionCurve, RenyiCurve
from incrowd.privacy.account.events import PureDpEvent, RepeatedEvent, mechanisms

GRID = 1e-3
DELTAS = (1e-2, 1e-5, 1e-8)


def poisson(sampling_prob: float, noise_multiplier: float) -> DpEvent:
    return PoissonSampledDpEvent(sampling_prob, GaussianDpEvent(noise_multiplier))


def relation_for(event: DpEvent) -> Relation:
    return Relation.REPLACE_ONE if "WithoutReplacement" in str(event) else Relation.ADD_OR_REMOVE_ONE


# Each kind of event, as a function of its noise.
KINDS: dict[str, Callable[[float], DpEvent]] = {
    "gaussian": GaussianDpEvent,
    "laplace": LaplaceDpEvent,
    "poisson gaussian": lambda noise: poisson(0.2, noise),
    "poisson laplace": lambda noise: PoissonSampledDpEvent(0.2, LaplaceDpEvent(noise)),
    "fixed size": lambda noise: SampledWithoutReplacementDpEvent(50, 10, GaussianDpEvent(noise)),
}


def curves(event: DpEvent) -> dict[str, Curve]:
    runs = mechanisms(event)
    found: dict[str, Curve] = {}
    if GaussianCurve.supports(runs):
        found["GDP"] = GaussianCurve(runs)
    if LossDistributionCurve.supports(runs):
        found["PLD"] = LossDistributionCurve(runs, GRID)
    if RenyiCurve.supports(runs):
        found["RDP"] = RenyiCurve(runs, relation_for(event))
    return found


each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


@each_kind
def test_n_fold_costs_as_much_as_n_times(make: Callable[[float], DpEvent]) -> None:
    """Not through `mechanisms`, which would count together before an accountant could get it wrong."""
    event = make(3.0)
    builders: dict[str, Callable[[Sequence[RepeatedEvent]], Curve]] = {
        "GDP": GaussianCurve,
        "PLD": lambda runs: LossDistributionCurve(runs, GRID),
        "RDP": lambda runs: RenyiCurve(runs, relation_for(event)),
    }
    for name in curves(event):
        folded, unfolded = builders[name]([(event, 5)]), builders[name]([(event, 1)] * 5)
        for delta in DELTAS:
            assert folded.epsilon(delta) == pytest.approx(unfolded.epsilon(delta), rel=1e-5)
        assert folded.delta(1.0) == pytest.approx(unfolded.delta(1.0), rel=1e-5)
        assert folded.epsilon(1e-5) > builders[name]([(event, 4)]).epsilon(1e-5)


@each_kind
def test_a_delta_of_zero_is_priced_or_proven_not_to_be(make: Callable[[float], DpEvent]) -> None:
    for name, curve in curves(SelfComposedDpEvent(make(2.0), 3)).items():
        largest = curve.epsilon(0.0)
        if name == "PLD" and "Laplace" in str(make(2.0)):
            assert curve.delta(largest) == 0 < curve.delta(largest * (1 - 1e-6))
            assert all(curve.epsilon(delta) <= largest for delta in (1e-300, 1e-17, *DELTAS))
        else:
            assert largest == math.inf


def test_pure_releases_cost_at_most_the_sum_of_their_epsilons() -> None:
    """Dwork and Roth (2014), theorem 3.16; no grid can round it up, and no rounding falls below it."""
    log3 = math.log(3)
    once = LossDistributionCurve([(LaplaceDpEvent(1 / log3), 1)], GRID)
    for delta in (0.0, 1e-300, 1e-9):
        assert once.epsilon(delta) == pytest.approx(log3, rel=1e-15)
    mixed = [(LaplaceDpEvent(z), count) for z, count in ((0.1, 1), (3.0, 7), (1e5, 10**6))]
    exact = sum(Fraction(count) / Fraction(laplace.noise_multiplier) for laplace, count in mixed)
    assert 0 <= Fraction(LossDistributionCurve(mixed, GRID).epsilon(0.0)) / exact - 1 < 2**-52
    for z in (3.0, 10.0, 1 / 3, 0.7):
        assert Fraction(LossDistributionCurve([(LaplaceDpEvent(z), 3)], GRID).epsilon(0.0)) >= 3 / Fraction(z)
    # With many of them the grid proves less than the sum.
    many = LossDistributionCurve([(LaplaceDpEvent(20.0), 400)], GRID)
    assert many.epsilon(1e-6) < 0.5 * many.epsilon(0.0)
    # Where a grid is too coarse to prove anything, the sum is still there; without any noise, nothing is.
    assert LossDistributionCurve([(LaplaceDpEvent(1e-9), 1)], GRID).epsilon(1e-5) == pytest.approx(1e9)
    assert LossDistributionCurve([(LaplaceDpEvent(1e-9), 1)], GRID).delta(2e9) == 0
    assert LossDistributionCurve([(LaplaceDpEvent(5e-324), 1)], GRID).epsilon(0.0) == math.inf
    gaussian = LossDistributionCurve([(LaplaceDpEvent(1.0), 1), (GaussianDpEvent(9.0), 1)], GRID)
    assert gaussian.epsilon(0.0) == math.inf


def binomial_delta(epsilon: float, count: int, at: float) -> float:
    """The exact curve of so many answers to yes or no, each right with the odds e^epsilon."""
    right = 1 / (1 + math.exp(-epsilon))
    chances = [math.comb(count, wrong) * right ** (count - wrong) * (1 - right) ** wrong for wrong in range(count + 1)]
    losses = [(count - 2 * wrong) * epsilon for wrong in range(count + 1)]
    return sum(p * max(0.0, 1 - math.exp(at - loss)) for p, loss in zip(chances, losses, strict=True))


@pytest.mark.parametrize("epsilon", [0.1, 0.123456, 1.0, 8.0])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_whatever_is_pure_costs_what_the_worst_of_its_kind_costs(epsilon: float, count: int) -> None:
    """Never less than the exact curve, and hardly more; noise of the same epsilon would cost less, and is no bound."""
    curve = LossDistributionCurve([(PureDpEvent(epsilon), count)], 1e-4)
    for share in (0.0, 0.3, 0.7, 0.95):
        at = share * count * epsilon
        exact = binomial_delta(epsilon, count, at)
        assert exact <= curve.delta(at) <= binomial_delta(epsilon + 3e-4, count, at) + 1e-6
    assert Fraction(curve.epsilon(0.0)) >= count * Fraction(epsilon)
    assert curve.epsilon(0.0) == pytest.approx(count * epsilon, rel=1e-15)
    laplace = LossDistributionCurve([(LaplaceDpEvent(1 / epsilon), count)], 1e-4)
    assert laplace.delta(0.95 * count * epsilon) < binomial_delta(epsilon, count, 0.95 * count * epsilon)


@pytest.mark.parametrize("sampling_prob", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("noise", [0.2, 1.0, 5.0, 1e-3])
def test_a_sample_amplifies_a_pure_release(sampling_prob: float, noise: float) -> None:
    """Balle, Barthe and Gaboardi (2018), theorem 8: log(1 + q (e^epsilon - 1))."""
    event = PoissonSampledDpEvent(sampling_prob, LaplaceDpEvent(noise))
    with mp.workdps(60):
        exact = mp.log(1 + mpf(sampling_prob) * mp.expm1(1 / mpf(noise)))
    bound = LossDistributionCurve([(event, 1)], GRID).epsilon(0.0)
    assert exact <= bound <= max(exact * (1 + 1e-14), 1 / noise if noise == 1e-3 else 0)


@each_kind
def test_accountants_agree_as_far_as_they_can(make: Callable[[float], DpEvent]) -> None:
    for count in (1, 30):
        found = curves(SelfComposedDpEvent(make(4.0), count))
        for delta in DELTAS[1:]:
            figures = {name: curve.epsilon(delta) for name, curve in found.items()}
            exact = figures.get("GDP", 0.0)
            if "PLD" in figures:
                assert (
                    exact
                    <= figures["PLD"]
                    <= max(exact, figures["PLD"] if "GDP" not in figures else 0.0) * 1.001 + 1e-6
                )
            if {"PLD", "RDP"} <= figures.keys():
                assert figures["PLD"] <= figures["RDP"] <= 2.5 * figures["PLD"] + 0.2


def gaussian_delta(mu: float, epsilon: float) -> mpf:
    """Balle and Wang 2018, theorem 8, in 60 digits."""
    with mp.workdps(60):
        mu, epsilon = mpf(mu), mpf(epsilon)
        return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("mu", [1e-6, 0.01, 0.3, 1.0, 3.0, 30.0, 1000.0])
def test_gdp_is_exact_and_on_the_private_side(mu: float) -> None:
    curve = GaussianCurve([(GaussianDpEvent(2 / mu), 4)])
    for delta in (0.3, 1e-2, 1e-5, 1e-12, 1e-30):
        epsilon = curve.epsilon(delta)
        assert gaussian_delta(mu, epsilon) <= delta
        if epsilon > 0:
            assert gaussian_delta(mu, epsilon * (1 - 1e-8) - 1e-10) > delta
    for epsilon in (0.0, mu * mu / 2, mu * mu / 2 + 5 * mu):
        true = gaussian_delta(mu, epsilon)
        assert true <= curve.delta(epsilon) <= true * (1 + 1e-6)


@pytest.mark.slow
def test_pld_is_above_the_exact_curve_even_where_rounding_is_as_large_as_delta() -> None:
    """dp_accounting's own figures are below it here: pessimistic rounding does not cover its Fourier transforms."""
    lowest = math.inf
    for noise, count in ((50.0, 2500), (4.4, 54), (300.0, 10**5), (1000.0, 10**6)):
        runs = [(GaussianDpEvent(noise), count)]
        exact, bound = GaussianCurve(runs), LossDistributionCurve(runs, 1e-4)
        library = PLDAccountant(value_discretization_interval=1e-4)
        library.compose(PoissonSampledDpEvent(1.0, GaussianDpEvent(noise)), count)
        for delta in (1e-5, 1e-8, 1e-10, 1e-11, 1e-12, 1e-14):
            assert bound.epsilon(delta) >= exact.epsilon(delta) * (1 - 1e-9)
            lowest = min(lowest, library.get_epsilon(delta) / exact.epsilon(delta))
        for epsilon in (1.0, 5.0, 8.0, 10.0):
            assert bound.delta(epsilon) >= exact.delta(epsilon) * (1 - 1e-8)
    assert lowest < 0.995


@pytest.mark.parametrize("release", [GaussianDpEvent, LaplaceDpEvent])
@pytest.mark.parametrize(("sampling_prob", "noise"), [(0.2, 1.0), (0.01, 0.7), (0.5, 3.0)])
def test_pld_of_a_poisson_sample_matches_numerical_integration(
    sampling_prob: float, noise: float, release: type[DpEvent]
) -> None:
    """delta is the integral of [p - e^epsilon q]_+; one sum over a fine line for each of the two directions."""
    x = np.linspace(-30 * noise, 30 * noise + 1, 500_001)
    law = stats.norm if release is GaussianDpEvent else stats.laplace
    without, moved = (law.pdf(x, at, noise) for at in (0.0, 1.0))
    among = (1 - sampling_prob) * without + sampling_prob * moved
    curve = LossDistributionCurve([(PoissonSampledDpEvent(sampling_prob, release(noise)), 1)], 1e-4)
    for epsilon in (0.05, 0.3, 1.0, 2.0):
        pairs = ((without, among), (among, without))
        true = max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) * (x[1] - x[0]) for p, q in pairs)
        assert true * (1 - 1e-9) - 1e-9 <= curve.delta(epsilon) <= true * 1.001 + 1e-6


def test_repetition_by_ten_thousands_changes_nothing() -> None:
    noise = 400.0
    at_once = PLDAccountant(value_discretization_interval=1e-3).compose(poisson(0.9, noise), 25_000)
    curve = LossDistributionCurve([(poisson(0.9, noise), 25_000)], 1e-3)
    assert curve.epsilon(1e-5) == pytest.approx(at_once.get_epsilon(1e-5), rel=1e-5)
    even = LossDistributionCurve([(poisson(0.9, noise), 20_000)], 1e-3)
    assert even.epsilon(1e-5) < curve.epsilon(1e-5)


def test_extreme_losses_take_a_coarser_grid_or_prove_nothing() -> None:
    coarser = LossDistributionCurve([(poisson(0.1, 0.1), 3)], GRID)
    assert 150 < coarser.epsilon(1e-5) < RenyiCurve([(poisson(0.1, 0.1), 3)], Relation.ADD_OR_REMOVE_ONE).epsilon(1e-5)
    beyond = LossDistributionCurve([(poisson(0.1, 1e-4), 3)], 1e-4)
    assert beyond.epsilon(1e-5) == math.inf
    assert beyond.delta(1.0) == 1
    below_the_margin = LossDistributionCurve([(GaussianDpEvent(1000.0), 10**6)], GRID)
    assert below_the_margin.epsilon(1e-12) == math.inf


def test_a_mechanism_without_sampling_costs_the_same_under_every_relation() -> None:
    """The noise multiplier is relative to the relation's sensitivity; dp_accounting would count 2C a second time."""
    doubled = PLDAccountant(Relation.REPLACE_ONE).compose(GaussianDpEvent(2.0)).get_epsilon(1e-5)
    assert doubled > 1.9 * LossDistributionCurve([(GaussianDpEvent(2.0), 1)], 1e-4).epsilon(1e-5)
    one, other = (RenyiCurve([(GaussianDpEvent(2.0), 1)], relation) for relation in list(Relation)[:2])
    assert one.epsilon(1e-5) == other.epsilon(1e-5)


@pytest.mark.parametrize("wrong", [-1e-9, math.nan])
def test_failed_arithmetic_is_not_taken_for_a_price_of_nothing(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """dp_accounting turns a negative or NaN divergence into epsilon = 0."""
    broken = np.full(len(ORDERS), 0.5)
    broken[7] = wrong
    assert rdp_privacy_accountant.compute_epsilon(ORDERS, broken, 1e-5)[0] == 0
    monkeypatch.setattr(rdp_privacy_accountant, "_compute_rdp_poisson_subsampled_gaussian", lambda **_: broken)
    with pytest.raises(AccountingError, match="arithmetic failed"):
        RenyiCurve([(poisson(0.123, 4.56), 1)], Relation.ADD_OR_REMOVE_ONE)
