"""The moments accountant of the paper's time: its formula, its rows, and that it is a bound."""

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

from incrowd.privacy.account.accounting import Relation, delta_at, price
from papers.geyer.moments import LAMBDAS, log_moments, moments_delta, moments_epsilon

ADD_OR_REMOVE = Relation.ADD_OR_REMOVE_ONE


def rounds(sampling_prob: float, noise_multiplier: float, count: int) -> DpEvent:
    return SelfComposedDpEvent(PoissonSampledDpEvent(sampling_prob, GaussianDpEvent(noise_multiplier)), count)


def integrated_log_moment(sampling_prob: float, noise_multiplier: float, order: int) -> float:
    """The logarithm of E[(mixture / noise)^order] by quadrature, in 25 digits: the definition, no binomial sum."""
    with mp.workdps(25):
        q, sigma = mpf(sampling_prob), mpf(noise_multiplier)

        def integrand(x: mpf) -> mpf:
            return mp.npdf(x, 0, sigma) * (1 - q + q * mp.exp((2 * x - 1) / (2 * sigma**2))) ** order

        far = [mpf(order) * f + 12 * sigma * g for f in (0.5, 1) for g in (0, 1)]
        return float(mp.log(mp.quad(integrand, sorted([-12 * sigma, -3 * sigma, 0, 1, 3 * sigma + 1, *far]))))


@pytest.mark.slow
@pytest.mark.parametrize(("sampling_prob", "noise"), [(0.5, 1.193), (0.01, 4.0), (0.9, 0.7)])
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
    assert moments_epsilon(event(noise), delta=delta) == pytest.approx(8.0, abs=0.005)
    assert price(event(noise), delta=delta, relation=ADD_OR_REMOVE).epsilon == pytest.approx(honest, abs=0.01)
    stated = moments_delta(event(noise), epsilon=8.0)
    assert stated == pytest.approx(delta, rel=0.01)
    assert delta_at(event(noise), epsilon=8.0, relation=ADD_OR_REMOVE) < stated
    for off in (noise * 0.99, noise * 1.01):
        assert moments_epsilon(event(off), delta=delta) != pytest.approx(8.0, abs=0.005)


def test_nothing_costs_nothing_and_no_delta_exceeds_one() -> None:
    assert moments_epsilon(NoOpDpEvent(), delta=1e-5) == moments_delta(NoOpDpEvent(), epsilon=0.0) == 0
    assert moments_delta(GaussianDpEvent(0.1), epsilon=0.0) == 1
    assert moments_epsilon(GaussianDpEvent(1e6), delta=0.9) >= 0


@pytest.mark.parametrize(
    "event", [LaplaceDpEvent(1.0), SampledWithoutReplacementDpEvent(10, 5, GaussianDpEvent(1.0))], ids=str
)
def test_other_mechanisms_have_no_moments(event: DpEvent) -> None:
    with pytest.raises(TypeError, match="no formula for"):
        moments_epsilon(event, delta=1e-5)
