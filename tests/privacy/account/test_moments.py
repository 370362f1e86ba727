import math
from collections.abc import Callable

import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.rdp import RdpAccountant
from mpmath import mp, mpf  # type: ignore[import-untyped]  # it ships no types

from incrowd.errors import ConfigError, UnpricedEvent
from incrowd.privacy.account.accounting import Relation, delta_at, price
from incrowd.privacy.account.moments import LAMBDAS, log_moments, moments_delta, moments_price, paper_delta_bound


def rounds(sampling_prob: float, noise_multiplier: float, count: int) -> DpEvent:
    return SelfComposedDpEvent(PoissonSampledDpEvent(sampling_prob, GaussianDpEvent(noise_multiplier)), count)


def integrated_log_moment(sampling_prob: float, noise_multiplier: float, order: int) -> float:
    """The logarithm of E[(mixture / noise)^order] by quadrature, in 25 digits: the definition, no binomial sum."""
    with mp.workdps(25):
        q, sigma = mpf(sampling_prob), mpf(noise_multiplier)

        def integrand(x: mpf) -> mpf:
            return mp.npdf(x, 0, sigma) * (1 - q + q * mp.exp((2 * x - 1) / (2 * sigma**2))) ** order

        places = [
            -12 * sigma,
            -3 * sigma,
            0,
            1,
            3 * sigma + 1,
            *(mpf(order) * f + 12 * sigma * g for f in (0.5, 1) for g in (0, 1)),
        ]
        return float(mp.log(mp.quad(integrand, sorted(places))))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling_prob", "noise"), [(0.5, 1.193), (0.05, 1.092), (0.01, 4.0), (1e-4, 1.0), (0.9, 0.7)]
)
def test_the_moments_are_those_of_the_definition(sampling_prob: float, noise: float) -> None:
    moments = log_moments(rounds(sampling_prob, noise, 1))
    for order in (2, 9, 33):
        expected = integrated_log_moment(sampling_prob, noise, order)
        assert moments[order - 2] == pytest.approx(expected, rel=1e-9, abs=1e-13)


@pytest.mark.parametrize(("sampling_prob", "noise"), [(0.22, 1.436), (0.001, 0.5), (1.0, 2.0)])
def test_the_moments_are_renyi_divergences_of_whole_orders(sampling_prob: float, noise: float) -> None:
    event = ComposedDpEvent([rounds(sampling_prob, noise, 7), GaussianDpEvent(5.0)])
    library = RdpAccountant(orders=LAMBDAS + 1).compose(event)
    np.testing.assert_allclose(log_moments(event), library.rdp * LAMBDAS, rtol=1e-10)


# The rows of the paper's table, K = 100, 1,000 and 10,000, at the noise that spends (8, delta) by its accountant.
@pytest.mark.parametrize(
    ("event", "delta", "noise", "honest"),
    [
        (lambda noise: rounds(0.5, noise, 11), 1e-3, 1.193, 5.94),
        (lambda noise: rounds(0.22, noise, 54), 1e-5, 1.436, 6.46),
        (lambda noise: rounds(0.05085, noise, 412), 1e-6, 1.092, 6.64),
    ],
)
def test_the_papers_rows(event: Callable[[float], DpEvent], delta: float, noise: float, honest: float) -> None:
    found = moments_price(event(noise), delta=delta)
    assert found.epsilon == pytest.approx(8.0, abs=0.005)
    assert found.honest == price(event(noise), delta=delta, relation=Relation.ADD_OR_REMOVE_ONE)
    assert found.honest.epsilon == pytest.approx(honest, abs=0.01)
    stated = moments_delta(event(noise), epsilon=8.0)
    assert stated.delta == pytest.approx(delta, rel=0.01)
    assert stated.honest == delta_at(event(noise), epsilon=8.0, relation=Relation.ADD_OR_REMOVE_ONE) < stated.delta
    for off in (noise * 0.99, noise * 1.01):
        epsilon = min((log_moments(event(off)) - math.log(delta)) / LAMBDAS)
        assert epsilon != pytest.approx(8.0, abs=0.005)


@pytest.mark.parametrize("noise", [0.7, 1.0, 5.0, 50.0])
def test_it_is_an_upper_bound_in_both_directions(noise: float) -> None:
    for event in (rounds(0.3, noise, 20), GaussianDpEvent(noise)):
        for delta in (1e-2, 1e-6):
            found = moments_price(event, delta=delta)
            assert found.epsilon > found.honest.epsilon
            assert moments_delta(event, epsilon=found.epsilon).delta == pytest.approx(delta, rel=1e-9)


def test_nothing_costs_nothing_and_no_delta_exceeds_one() -> None:
    assert moments_price(NoOpDpEvent(), delta=1e-5).epsilon == 0
    assert moments_delta(NoOpDpEvent(), epsilon=0.0).delta == 0
    assert moments_delta(GaussianDpEvent(0.1), epsilon=0.0).delta == 1
    assert moments_price(GaussianDpEvent(1e6), delta=0.9).epsilon >= 0


@pytest.mark.parametrize("event", [LaplaceDpEvent(1.0), PoissonSampledDpEvent(0.5, LaplaceDpEvent(1.0))])
def test_other_mechanisms_have_no_moments(event: DpEvent) -> None:
    for ask in (
        log_moments,
        lambda event: moments_price(event, delta=1e-5),
        lambda event: moments_delta(event, epsilon=1),
    ):
        with pytest.raises(UnpricedEvent, match="LaplaceDpEvent"):
            ask(event)


def test_the_relation_has_to_go_with_the_sampling() -> None:
    with pytest.raises(UnpricedEvent, match="REPLACE_ONE"):
        moments_price(rounds(0.5, 1.0, 1), delta=1e-5, relation=Relation.REPLACE_ONE)
    fixed = SampledWithoutReplacementDpEvent(10, 5, GaussianDpEvent(1.0))
    with pytest.raises(UnpricedEvent, match="REPLACE_ONE"):
        moments_price(fixed, delta=1e-5)
    with pytest.raises(UnpricedEvent, match="SampledWithoutReplacement"):
        moments_price(fixed, delta=1e-5, relation=Relation.REPLACE_ONE)


def test_the_papers_delta_is_no_bound_at_its_own_epsilon() -> None:
    stated = paper_delta_bound(noise_multiplier=0.5, epsilon=8.0)
    true = delta_at(GaussianDpEvent(0.5), epsilon=8.0, relation=Relation.ADD_OR_REMOVE_ONE)
    assert stated == pytest.approx(0.8 * math.exp(-8))
    assert true == pytest.approx(5.0e-4, rel=0.02)
    assert stated < 0.6 * true
    # Where the classical theorem holds (epsilon < 1, enough noise) it does bound.
    assert paper_delta_bound(noise_multiplier=4.0, epsilon=0.9) > 1.2e-3 * 0.99
    assert delta_at(GaussianDpEvent(4.0), epsilon=0.9, relation=Relation.ADD_OR_REMOVE_ONE) < 2e-5
    for wrong in ({"noise_multiplier": 0.0, "epsilon": 1.0}, {"noise_multiplier": 1.0, "epsilon": -1.0}):
        with pytest.raises(ConfigError):
            paper_delta_bound(**wrong)
