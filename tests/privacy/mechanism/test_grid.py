"""Noise on the grid: its law and its bits."""

import hashlib
import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd._random import Bits, Floats, Randomness, SeededRandomness, Stream, SystemRandomness, SystemStream
from incrowd.errors import ConfigError
from incrowd.privacy.mechanism import grid
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


def test_every_whole_number_has_its_own_probability() -> None:
    values = grid.sample_noise(scale=64.0, size=10 * SIZE, stream=SeededRandomness(1).stream("noise"))
    numbers = np.arange(-128, 128)
    counts = np.bincount(values[np.abs(values + 0.5) < 128] + 128, minlength=256)
    assert chi_square(counts, grid._density(np.abs(numbers + 0.5) / 64)) > ODD
    assert chi_square(counts, grid._density(np.abs(numbers + 0.5) / 96)) < ODD


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
