"""Noise in shares: the theorem in numbers, the noise of any list, and sums that fit their words."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr

from incrowd._random import Floats, SeededRandomness, SystemRandomness
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism.grid import GaussianNoise, Whole, coarse_step
from incrowd.privacy.mechanism.shared import LEAST_STEPS, NoiseShare, SharedNoise, largest_error
from tests.privacy.receipts import paid
from tests.statistics import ODD

NEAR = 4.0  # deviations within which probabilities are compared


def shared(*, parties: int = 5, colluders: int = 1, bound: int | None = None, multiplier: float = 2.147) -> SharedNoise:
    noise = GaussianNoise(noise_multiplier=multiplier, clip_norm=1.0)
    return SharedNoise(noise=noise, parties=parties, colluders=colluders, contributions_bound=bound or parties)


def part(values: Floats, step: float = coarse_step(1.0)) -> Whole:
    return Whole(steps=np.rint(values / step).astype(np.int64), step=step)


def answer(share: NoiseShare, its: Whole, *, party: int = 0, seed: int | None = None) -> Whole:
    randomness = SystemRandomness() if seed is None else SeededRandomness(seed)
    receipt = paid(share, randomness=randomness)
    return share.add(its, receipt=receipt, at=("noise", party), contributions_bound=share.shared.contributions_bound)


# The theorem. `exact` is the distribution of a sum of rounded, noised values; `central` is that of a random rounding of
# the central Gaussian: its characteristic function times that of one uniform number a party.


def exact(values: Floats, steps: float) -> tuple[NDArray[np.int64], Floats]:
    reach = math.ceil(10 * steps + float(np.abs(values).max())) + 5
    ends = np.arange(-reach, reach + 2)
    found = np.ones(1)
    for value in values:
        low, high = (ends[:-1] - value) / steps, (ends[1:] - value) / steps
        found = np.convolve(found, np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low)))
    return np.arange(len(found)) - reach * len(values), found


def central(total: float, steps: float, parties: int, at: NDArray[np.int64]) -> Floats:
    deviation = steps * math.sqrt(parties)
    angle = np.linspace(-12 / deviation, 12 / deviation, 20_001)
    smooth = np.exp(-0.5 * (deviation * angle) ** 2) * np.sinc(angle / (2 * math.pi)) ** parties
    places = at + parties / 2 - total
    return np.array([np.trapezoid(smooth * np.cos(angle * place), angle) / (2 * math.pi) for place in places])


def worst_ratio(steps: float, parties: int) -> float:
    values = np.random.default_rng(parties).uniform(-3, 3, parties)
    at, found = exact(values, steps)
    near = np.abs(at + parties / 2 - values.sum()) < NEAR * steps * math.sqrt(parties)
    return float(np.abs(found[near] / central(values.sum(), steps, parties, at[near]) - 1).max())


@pytest.mark.parametrize("parties", [2, 3, 10])
def test_a_sum_of_rounded_shares_is_a_rounding_of_the_central_gaussian(parties: int) -> None:
    assert largest_error(LEAST_STEPS, parties=parties) < 1e-65
    assert worst_ratio(LEAST_STEPS, parties) < 1e-10  # what convolutions in floats leave
    for steps in (0.7, 1.0):  # the bound holds where it says something, and one step a share is too little
        assert 1e-9 < worst_ratio(steps, parties) < 1.001 * largest_error(steps, parties=parties)


def released(noise: SharedNoise, listed: int, total: Floats, *, honest: int | None = None) -> Floats:
    shares = [answer(noise.share(listed), part(total / listed), party=place) for place in range(listed)]
    found: Floats = np.sum([each.values for each in shares[:honest]], axis=0) - total
    return found


@pytest.mark.parametrize(("parties", "colluders", "listed"), [(5, 1, 5), (5, 2, 4), (20, 6, 20), (20, 6, 8)])
def test_the_noise_of_a_list_is_what_is_planned(parties: int, colluders: int, listed: int) -> None:
    noise, size = shared(parties=parties, colluders=colluders), 100_000
    of_all = released(noise, listed, np.zeros(size)) / noise.released_std(listed)
    honest = released(noise, listed, np.zeros(size), honest=listed - colluders)
    least = noise.noise.noise_multiplier

    def odd(sample: Floats, scale: float) -> float:
        found = (sample**2).sum() / scale**2
        return math.exp(-(abs(found - size) ** 2) / (4 * size))  # a bound on what a chi-square sum has beyond

    assert odd(of_all, 1.0) > ODD
    assert odd(honest / math.sqrt(least**2 + (listed - colluders) * noise.step**2 / 12), 1.0) > ODD
    for wrong in (2 / 3, 3 / 2, 0.96):  # of the variance
        assert odd(of_all, math.sqrt(wrong)) < ODD


@given(
    parties=st.integers(2, 60),
    colluders=st.integers(1, 20),
    multiplier=st.floats(0.05, 200.0),
    bound=st.integers(1, 20_000),
)
def test_step_and_word_follow_from_the_plan_and_no_sum_leaves_its_word(
    parties: int, colluders: int, multiplier: float, bound: int
) -> None:
    if colluders >= parties:
        with pytest.raises(ConfigError, match="honest"):
            shared(parties=parties, colluders=colluders)
        return
    noise = shared(parties=parties, colluders=colluders, bound=bound, multiplier=multiplier)
    assert math.frexp(noise.step)[0] == 0.5
    for listed in range(colluders + 1, parties + 1):
        share = noise.deviation(listed)
        assert share >= LEAST_STEPS * noise.step
        assert share**2 * (listed - colluders) == pytest.approx(noise.noise.scale(bound) ** 2)
        assert bound * 1.0 + listed * 9.4 * share + listed * noise.step <= noise.largest * noise.step
    assert 2 * noise.largest < 2 ** (8 * np.dtype(noise.word).itemsize - 1)
    for listed in (colluders, parties + 1):
        with pytest.raises(ConfigError, match="may all collude"):
            noise.share(listed)


@pytest.mark.parametrize("step", [coarse_step(1.0), 2.0**-40])
def test_an_answer_moves_by_whole_steps_exactly_as_its_part_does(step: float) -> None:
    noise = shared()
    share, values = noise.share(5), np.random.default_rng(0).uniform(-0.2, 0.2, 10)
    its = part(values, step)
    moved = Whole(steps=its.steps + round(3 * noise.step / step), step=step)
    still = answer(share, its, seed=3)
    np.testing.assert_array_equal(answer(share, moved, seed=3).steps - still.steps, 3)
    assert still.step == noise.step
    assert np.abs(still.values).max() < 10 * noise.deviation(5)


def test_a_part_of_less_than_a_step_is_not_rounded_away() -> None:
    noise, size = shared(parties=2, bound=10_000), 400_000
    small = np.full(size, 0.3 * noise.step)
    found = answer(noise.share(2), part(small, noise.step / 2**20)).values
    error = noise.deviation(2) / math.sqrt(size)
    assert abs(found.mean() - 0.3 * noise.step) < 7 * error < 0.2 * noise.step


def test_sums_that_no_parties_can_have_are_noticed() -> None:
    noise = shared()
    words: Any = np.array([3, 2**16 - 4], np.uint16)
    assert noise.total(words).steps.tolist() == [3, -4]
    with pytest.raises(DataError, match="the round is lost"):
        noise.total(np.array([noise.largest + 1], noise.word))


def test_noise_that_fits_no_grid_is_refused() -> None:
    with pytest.raises(ConfigError, match="32 bits"):
        shared(bound=2**26, multiplier=0.2)
    with pytest.raises(ConfigError, match="64-bit"):
        shared().fine(2.0**-60)
