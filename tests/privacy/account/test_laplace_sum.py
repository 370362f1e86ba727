import math

import numpy as np
import pytest
from scipy.stats import norm

from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.privacy.account.laplace_sum import LaplaceSum


def by_fourier(terms: int) -> tuple[Floats, Floats]:
    """A grid and the density on it, from the characteristic function: absolute errors of about 1e-12."""
    size, step = 2**16, 0.005 * math.sqrt(terms)
    frequencies = 2 * np.pi * np.fft.rfftfreq(size, step)
    density: Floats = np.fft.irfft((1 + frequencies**2) ** -float(terms), size)[: size // 2] / step
    return step * np.arange(size // 2, dtype=np.float64), density


@pytest.mark.parametrize("x", [0.0, 0.3, 5.0, 80.0, 600.0])
def test_one_and_two_terms_in_closed_form_far_into_the_tail(x: float) -> None:
    assert LaplaceSum(1).density(x) == pytest.approx(math.exp(-x) / 2, rel=1e-12)
    assert LaplaceSum(1).tail(x) == pytest.approx(math.exp(-x) / 2, rel=1e-12)
    assert LaplaceSum(2).density(x) == pytest.approx((1 + x) * math.exp(-x) / 4, rel=1e-12)
    assert LaplaceSum(2).tail(x) == pytest.approx((2 + x) * math.exp(-x) / 4, rel=1e-12)


@pytest.mark.parametrize("terms", [3, 10, 100, 5_000])
def test_against_the_characteristic_function(terms: int) -> None:
    grid, density = by_fourier(terms)
    total = LaplaceSum(terms)
    step = grid[1]
    for place in (0, 100, 700, 1500):
        assert total.density(grid[place]) == pytest.approx(density[place], abs=1e-10)
        beyond = step * (density[place:].sum() - density[place] / 2)
        assert total.tail(grid[place]) == pytest.approx(beyond, rel=1e-3, abs=1e-10)


def test_the_tail_is_the_integral_of_the_density_to_the_last_digits() -> None:
    total = LaplaceSum(40)
    for low in (0.0, 30.0, 150.0):
        nodes, weights = np.polynomial.legendre.leggauss(40)
        integral = sum(w * total.density(low + 1 + x) for x, w in zip(nodes, weights, strict=True))
        assert total.tail(low) - total.tail(low + 2) == pytest.approx(float(integral), rel=1e-11)


def test_it_is_symmetric() -> None:
    total = LaplaceSum(7)
    assert total.tail(0) == pytest.approx(0.5, rel=1e-14)
    assert total.tail(-2.5) == pytest.approx(1 - total.tail(2.5), rel=1e-14)
    assert total.density(-2.5) == total.density(2.5)


@pytest.mark.parametrize("terms", [10**7, 10**9])
def test_very_many_terms_are_a_normal_value(terms: int) -> None:
    total, deviation = LaplaceSum(terms), math.sqrt(2 * terms)
    for x in (0.5, 3.0, 6.0):
        assert total.tail(x * deviation) == pytest.approx(norm.sf(x), rel=2e-4)
        assert total.density(x * deviation) * deviation == pytest.approx(norm.pdf(x), rel=2e-4)


def test_what_is_below_every_float_is_zero() -> None:
    assert LaplaceSum(3).tail(1e5) == 0
    assert LaplaceSum(3).density(1e5) == 0


def test_no_terms_are_refused() -> None:
    with pytest.raises(ConfigError, match="terms = 0"):
        LaplaceSum(0)
