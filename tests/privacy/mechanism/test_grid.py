"""Noise on the grid: its law and its bits."""

import hashlib
import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd._random import Bits, Floats, Randomness, SeededRandomness, Stream, SystemRandomness, SystemStream
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.grid import MOST_CONTRIBUTIONS, GaussianNoise, padded
from tests.privacy.receipts import noised
from tests.statistics import NORMAL_MOMENTS, ODD, chi_square, fair, ks, rejects_wrong_scale, uncorrelated

SIZE = 100_000
SCALE = 1.37 * 2**30
AS_EVER = "48e89ef562d2093ad4cbc5865fc54a683f8f1027558f8a3f28b903b1b6990cde"
SOURCES = pytest.mark.parametrize("source", [SystemRandomness(), SeededRandomness(8)], ids=["system", "seeded"])


class Given(SystemStream):
    """A stream that draws the same proposal again and again, and the same bits for whatever it leaves open."""

    def __init__(self, *, proposal: int, more: int) -> None:
        self.turns = cycle([proposal, more])

    def bits(self, size: int) -> Bits:
        return np.full(size, next(self.turns), np.uint64)


def drawn(stream: Stream, *, scale: float = SCALE, size: int = SIZE) -> Floats:
    return grid.sample_noise(scale=scale, size=size, stream=stream) / scale


@SOURCES
def test_normal_steps_are_normal(source: Randomness) -> None:
    sample = drawn(source.stream("noise"))
    assert rejects_wrong_scale(ks("norm"), sample)
    assert rejects_wrong_scale(NORMAL_MOMENTS, sample)
    for threshold, chance in [(2, 0.0455002639), (3, 0.0026997961), (4, 0.0000633425)]:
        assert fair(int(np.sum(np.abs(sample) > threshold)), SIZE, chance=chance) > ODD
    assert fair(int(np.sum(sample > 0)), SIZE) > ODD
    assert uncorrelated(sample[1:], sample[:-1]) > ODD
    assert uncorrelated(np.abs(sample[1:]), np.abs(sample[:-1])) > ODD


@SOURCES
def test_low_bits_are_fair_and_no_number_comes_twice(source: Randomness) -> None:
    values = grid.sample_noise(scale=2.0**50, size=SIZE, stream=source.stream("noise"))
    assert len(np.unique(values[:10_000])) == 10_000
    for shift in (0, 8, 16, 24):
        counts = np.bincount((values >> shift) & 255, minlength=256)
        assert chi_square(counts, np.full(256, 1 / 256)) > ODD


@pytest.mark.parametrize("scale", [2.0**28, SCALE, 1.99 * 2**45])
def test_probabilities_are_exact_to_43_bits(scale: float) -> None:
    cells = grid._Staircase.under(scale)
    cell, slots = np.unique(cells.cell[cells.odds[cells.cell] > 0], return_counts=True)
    offsets = np.random.Generator(np.random.PCG64(2)).integers(0, 2**cells.width_bits, len(cell))
    magnitudes = (cell.astype(np.int64) << cells.width_bits) + offsets
    chances = cells.chances(cell, magnitudes)
    ratios = []
    with localcontext(prec=50):
        for magnitude, count, chance in zip(magnitudes.tolist(), slots.tolist(), chances.tolist(), strict=True):
            assert chance <= 2.0**64 * (1 + 2.0**-50)
            middle = (Decimal(magnitude) + Decimal("0.5")) / Decimal(scale)
            ratios.append(Decimal(count) * Decimal(chance) / (-middle * middle / 2).exp())
        assert max(ratios) / min(ratios) < 1 + Decimal(2) ** -43


def test_cells_cover_all_but_a_negligible_tail_and_refuse_little() -> None:
    for scale in (2.0**28, SCALE, 1.99 * 2**45):
        cells = grid._Staircase.under(scale)
        assert len(cells.odds) - 1 << cells.width_bits >= grid.REACH * scale
        kept = cells.propose(np.empty(SIZE, np.int64), SeededRandomness(1).stream("noise"))
        assert kept > 0.93 * SIZE
    assert math.erfc(grid.REACH / math.sqrt(2)) <= 2.0**-64


@pytest.mark.parametrize("scale", [64.0, SCALE, 1.99 * 2**50])
def test_what_is_kept_is_one_comparison_with_the_chance(scale: float) -> None:
    """The first bits of the decision come with the proposal; near the chance, 64 more tell."""
    cells = grid._Staircase.under(scale)
    spare = 47 - cells.width_bits
    generator = np.random.Generator(np.random.PCG64(5))
    asked = 0
    for _ in range(300):
        slot, offset = int(generator.integers(2**15)), int(generator.integers(2**cells.width_bits))
        cell = cells.cell[[slot]]
        magnitude = (int(cell[0]) << cells.width_bits) + offset
        chance = float(cells.chances(cell, np.array([magnitude]))[0]) / 2.0**64
        for level in (chance * (1 - 1e-6), chance * (1 - 1e-12), chance * (1 + 1e-12), chance * (1 + 1e-6), 0.0):
            begun, more = divmod(min(int(level * 2.0 ** (spare + 64)), 2 ** (spare + 64) - 1), 2**64)
            proposal = slot << 48 | begun << cells.width_bits | offset
            values = np.empty(1, np.int64)
            kept = cells.propose(values, Given(proposal=proposal, more=more))
            assert values[:kept].tolist() == ([magnitude] if level < chance else [])
            asked += begun >= cells.sure[cell[0]]
    assert 0 < asked < 1500


def test_noise_of_a_seed_is_what_it_always_was() -> None:
    """Three full blocks and one that is not, whose words follow each other as they did."""
    stream = SeededRandomness(5).stream("noise", 2)
    values = grid.sample_noise(scale=SCALE, size=3 * 2**14 + 7, stream=stream)
    assert hashlib.sha256(values.astype("<i8").tobytes()).hexdigest() == AS_EVER
    assert values[:3].tolist() == [239861508, -435038584, -2166192485]


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.integers(-(2**61), 2**61)), max_size=40), st.integers(-20, 30))
def test_adding_is_exact_until_the_last_conversion(pairs: list[tuple[float, int]], exponent: int) -> None:
    total, noise = np.array([a for a, _ in pairs]), np.array([b for _, b in pairs], np.int64)
    before, expected = total.copy(), [round(Fraction(a) * Fraction(2) ** exponent) + b for a, b in pairs]
    found = grid.add(total, noise, step=2.0**-exponent)
    assert found.steps.tolist() == expected
    assert found.values.tolist() == [float(steps * Fraction(2) ** -exponent) for steps in expected]
    assert np.array_equal(total, before)


@given(st.floats(1e-12, 1e12), st.floats(1e-6, 1e6))
def test_the_step_is_a_power_of_two_as_fine_as_asked(share: float, ratio: float) -> None:
    scale = share * 2**24 * ratio
    step = grid.step(share=share, scale=scale, largest_sum=share)
    assert math.frexp(step)[0] == 0.5
    assert min(share, scale / 2**28) / 2 <= step <= min(share, scale / 2**28)


@pytest.mark.parametrize(
    ("share", "scale", "largest_sum"),
    [
        (1.0, 2.0**51, 1.0),
        (1.0, 2.0**40, 2.0**62),
        (0.0, 1.0, 1.0),
        (1e-310, 1.0, 1.0),
        (1e300, 1e300, 1.0),
        (1.0, 1.0, math.inf),
    ],
)
def test_what_does_not_fit_the_grid_is_refused(share: float, scale: float, largest_sum: float) -> None:
    with pytest.raises(ConfigError, match="does not fit one 64-bit grid"):
        grid.step(share=share, scale=scale, largest_sum=largest_sum)


# Noise on a sum


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


def test_an_empty_sum_gives_an_empty_release() -> None:
    assert released(gaussian(), np.empty(0), SystemRandomness()).shape == (0,)


def test_a_sum_larger_than_its_contributions_is_refused_without_showing_it() -> None:
    released(gaussian(1.0, 2.0), np.array([-6.0]), SystemRandomness(), contributions_bound=3)
    with pytest.raises(DataError, match="is not 3 contributions of at most 2: clip every contribution") as caught:
        released(gaussian(1.0, 2.0), np.array([6.125]), SystemRandomness(), contributions_bound=3)
    assert "6.12" not in str(caught.value)


@pytest.mark.parametrize("bad", [0, 0.0, -1.0, math.nan, math.inf])
def test_no_noise_and_no_bound_are_refused(bad: float) -> None:
    with pytest.raises(ConfigError, match="noise_multiplier"):
        gaussian(bad, 1.0)
    with pytest.raises(ConfigError, match="clip_norm"):
        gaussian(1.0, bad)


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


@pytest.mark.parametrize(
    ("total", "bound", "error"),
    [
        *((np.array([0.0, value]), 100, DataError) for value in (math.nan, math.inf, -math.inf, 1e200)),
        *((total, 100, DataError) for total in (np.zeros((2, 2)), np.zeros(3, np.float32), np.zeros(3, np.int64))),
        *((np.zeros(3), bound, ConfigError) for bound in (0, -1, 1.5, 2**26 + 1)),
    ],
)
def test_what_is_no_flat_finite_sum_of_so_many_is_refused(total: Floats, bound: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        released(gaussian(), total, SystemRandomness(), contributions_bound=bound)
