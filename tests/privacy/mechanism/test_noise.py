import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from incrowd._random import Floats, Randomness, SeededRandomness, SystemRandomness
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.grid import MOST_CONTRIBUTIONS, GaussianNoise, padded
from tests.privacy.receipts import noised
from tests.statistics import (
    NORMAL_MOMENTS,
    ODD,
    chi_square,
    ks,
    rejects_wrong_scale,
    uncorrelated,
)

SIZE = 100_000
SOURCES = pytest.mark.parametrize("source", [SystemRandomness(), SeededRandomness(4)], ids=["system", "seeded"])


def gaussian(multiplier: float = 1.0, bound: float = 1.0) -> GaussianNoise:
    return GaussianNoise(noise_multiplier=multiplier, clip_norm=bound)


def released(noise: GaussianNoise, total: Floats, source: Randomness, *, contributions_bound: int = 100) -> Floats:
    return noised(noise, total, randomness=source, contributions_bound=contributions_bound)


@SOURCES
@pytest.mark.parametrize(("multiplier", "bound"), [(1.0, 1.0), (0.31, 7.0), (20.0, 0.004)])
def test_a_released_sum_is_off_by_noise_of_the_promised_scale(
    source: Randomness, multiplier: float, bound: float
) -> None:
    total = np.linspace(-1, 1, SIZE) * bound / SIZE
    sample = (released(gaussian(multiplier, bound), total, source) - total) / (multiplier * bound)
    for check in (ks("norm"), NORMAL_MOMENTS):
        assert rejects_wrong_scale(check, sample)


@SOURCES
def test_the_noise_grows_with_what_float_sums_can_add_to_the_sensitivity(source: Randomness) -> None:
    sample = released(gaussian(3.0, 1.0), np.zeros(10_000), source, contributions_bound=MOST_CONTRIBUTIONS)
    assert padded(1.0, contributions_bound=MOST_CONTRIBUTIONS) > 2
    assert rejects_wrong_scale(ks("norm"), sample / 6)


@SOURCES
def test_what_leaves_is_whole_grid_steps_whose_low_bits_are_fair(source: Randomness) -> None:
    total = np.full(SIZE, math.pi / SIZE)
    found = released(gaussian(), total, source)
    step = min(math.ldexp(1.0, math.frexp(value)[1] - 53) for value in np.abs(found).tolist() if value)
    share = grid.SHARE / math.sqrt(SIZE)
    steps = found / grid.step(share=share, scale=1.0, largest_sum=100)
    assert step < share
    assert np.array_equal(steps, np.rint(steps))
    for shift in (0, 8):
        counts = np.bincount((steps.astype(np.int64) >> shift) & 255, minlength=256)
        assert chi_square(counts, np.full(256, 1 / 256)) > ODD


def test_operating_system_noise_is_never_the_same_whatever_is_seeded() -> None:
    def seeded_release() -> Floats:
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - the global seed is what must have no effect
        torch.manual_seed(0)
        return released(gaussian(), np.zeros(10_000), SystemRandomness())

    first, second = seeded_release(), seeded_release()
    assert np.mean(first == second) < 0.001
    assert uncorrelated(first, second) > ODD


def test_an_empty_sum_gives_an_empty_release() -> None:
    assert released(gaussian(), np.empty(0), SystemRandomness()).shape == (0,)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e200])
def test_a_sum_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(DataError, match="not finite"):
        released(gaussian(), np.array([0.0, value]), SystemRandomness())


def test_a_sum_larger_than_its_contributions_is_refused_without_showing_it() -> None:
    released(gaussian(1.0, 2.0), np.array([-6.0]), SystemRandomness(), contributions_bound=3)
    with pytest.raises(DataError, match="is not 3 contributions of at most 2: clip every contribution") as caught:
        released(gaussian(1.0, 2.0), np.array([6.125]), SystemRandomness(), contributions_bound=3)
    assert "6.12" not in str(caught.value)


@pytest.mark.parametrize("total", [np.zeros((2, 2)), np.zeros(3, np.float32), np.zeros(3, np.int64)])
def test_only_flat_float64_sums_are_taken(total: Floats) -> None:
    with pytest.raises(DataError, match="give a flat float64 array"):
        released(gaussian(), total, SystemRandomness())


@pytest.mark.parametrize("bad", [0, 0.0, -1.0, math.nan, math.inf])
def test_no_noise_and_no_bound_are_refused(bad: float) -> None:
    with pytest.raises(ConfigError, match="noise_multiplier"):
        gaussian(bad, 1.0)
    with pytest.raises(ConfigError, match="clip_norm"):
        gaussian(1.0, bad)


@pytest.mark.parametrize("bad", [0, -1, 1.5, 2**26 + 1])
def test_the_largest_number_of_contributions_is_a_whole_number_in_reach(bad: int) -> None:
    with pytest.raises(ConfigError, match="contributions_bound"):
        released(gaussian(), np.zeros(3), SystemRandomness(), contributions_bound=bad)


@pytest.mark.parametrize(("multiplier", "bound"), [(1e-12, 1.0), (1e12, 1.0), (1.0, 1e-300), (1.0, 1e300)])
def test_noise_too_extreme_for_the_grid_is_refused(multiplier: float, bound: float) -> None:
    with pytest.raises(ConfigError, match="does not fit one 64-bit grid"):
        released(gaussian(multiplier, bound), np.zeros(3), SystemRandomness())


@given(st.integers(1, 200), st.integers(0, 2**32), st.floats(1e-3, 1e3))
def test_rounding_to_the_grid_costs_at_most_its_share_of_the_sensitivity(size: int, seed: int, clip: float) -> None:
    generator = np.random.Generator(np.random.PCG64(seed))
    total, move = generator.normal(size=(2, size))
    move *= clip / np.linalg.norm(move)
    step = grid.step(share=grid.SHARE * clip / math.sqrt(size), scale=clip, largest_sum=1e6 * clip)
    nothing = np.zeros(size, np.int64)
    apart = grid.add(total + move, nothing, step=step).values - grid.add(total, nothing, step=step).values
    assert np.linalg.norm(apart) <= clip * (1 + grid.SHARE) * (1 + 1e-12)


def test_float_sums_of_neighbours_are_further_apart_than_real_ones_but_never_beyond_the_padding() -> None:
    generator = np.random.Generator(np.random.PCG64(5))
    clients, farthest = 60, Fraction(0)
    for _ in range(300):
        contributions = generator.choice([1.0, -1.0, 1 / 3, 0.7], size=clients).tolist()
        without = [*contributions[:-1]] if generator.random() < 0.5 else contributions[1:]
        apart = abs(Fraction(running_sum(contributions)) - Fraction(running_sum(without)))
        farthest = max(farthest, apart)
    assert 1 < farthest <= 1 + Fraction(clients**2, 2**52)


def running_sum(values: list[float]) -> float:
    return list(itertools.accumulate(values))[-1]
