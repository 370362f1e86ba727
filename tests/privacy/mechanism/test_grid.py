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
from incrowd.privacy.mechanism import grid, proposal_loops, proposals
from tests.statistics import (
    LAPLACE_MOMENTS,
    NORMAL_MOMENTS,
    ODD,
    chi_square,
    fair,
    ks,
    rejects_wrong_scale,
    uncorrelated,
)

SIZE = 100_000
SCALE = 1.37 * 2**30
SOURCES = pytest.mark.parametrize("source", [SystemRandomness(), SeededRandomness(8)], ids=["system", "seeded"])
SHAPES = pytest.mark.parametrize("shape", [grid.NORMAL, grid.LAPLACE], ids=["normal", "laplace"])


@pytest.fixture(autouse=True, params=[proposals, proposal_loops], ids=["plain", "compiled"])
def work(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is promised holds either way."""
    monkeypatch.setattr(grid._LOOPS, "_left", 0)
    monkeypatch.setattr(grid._LOOPS, "_work", request.param)


class Given(SystemStream):
    """A stream that draws the same proposal again and again, and the same bits for whatever it leaves open."""

    def __init__(self, *, proposal: int, more: int) -> None:
        self.turns = cycle([proposal, more])

    def bits(self, size: int) -> Bits:
        return np.full(size, next(self.turns), np.uint64)


def drawn(shape: grid.NoiseShape, stream: Stream, *, scale: float = SCALE, size: int = SIZE) -> Floats:
    return grid.sample_noise(shape, scale=scale, size=size, stream=stream) / scale


@SOURCES
def test_normal_steps_are_normal(source: Randomness) -> None:
    sample = drawn(grid.NORMAL, source.stream("noise"))
    assert rejects_wrong_scale(ks("norm"), sample)
    assert rejects_wrong_scale(NORMAL_MOMENTS, sample)


@SOURCES
def test_laplace_steps_are_laplace(source: Randomness) -> None:
    sample = drawn(grid.LAPLACE, source.stream("noise"))
    assert rejects_wrong_scale(ks("laplace"), sample)
    assert rejects_wrong_scale(LAPLACE_MOMENTS, sample)


@SOURCES
def test_tails_signs_and_neighbours(source: Randomness) -> None:
    sample = drawn(grid.NORMAL, source.stream("noise"))
    for threshold, chance in [(2, 0.0455002639), (3, 0.0026997961), (4, 0.0000633425)]:
        assert fair(int(np.sum(np.abs(sample) > threshold)), SIZE, chance=chance) > ODD
    assert fair(int(np.sum(sample > 0)), SIZE) > ODD
    assert uncorrelated(sample[1:], sample[:-1]) > ODD
    assert uncorrelated(np.abs(sample[1:]), np.abs(sample[:-1])) > ODD


@SOURCES
@SHAPES
def test_low_bits_are_fair_and_no_number_comes_twice(shape: grid.NoiseShape, source: Randomness) -> None:
    values = grid.sample_noise(shape, scale=2.0**50, size=SIZE, stream=source.stream("noise"))
    assert len(np.unique(values[:10_000])) == 10_000
    for shift in (0, 8, 16, 24):
        counts = np.bincount((values >> shift) & 255, minlength=256)
        assert chi_square(counts, np.full(256, 1 / 256)) > ODD


@SHAPES
def test_every_whole_number_has_its_own_probability(shape: grid.NoiseShape) -> None:
    values = grid.sample_noise(shape, scale=64.0, size=10 * SIZE, stream=SeededRandomness(1).stream("noise"))
    numbers = np.arange(-128, 128)
    counts = np.bincount(values[np.abs(values + 0.5) < 128] + 128, minlength=256)
    assert chi_square(counts, shape.density(np.abs(numbers + 0.5) / 64)) > ODD
    assert chi_square(counts, shape.density(np.abs(numbers + 0.5) / 96)) < ODD


@SHAPES
@pytest.mark.parametrize("scale", [2.0**28, SCALE, 1.99 * 2**45])
def test_probabilities_are_exact_to_43_bits(shape: grid.NoiseShape, scale: float) -> None:
    cells = grid._Staircase.under(shape, scale)
    cell, slots = np.unique(cells.cell[cells.odds[cells.cell] > 0], return_counts=True)
    offsets = np.random.Generator(np.random.PCG64(2)).integers(0, 2**cells.width_bits, len(cell))
    magnitudes = (cell.astype(np.int64) << cells.width_bits) + offsets
    chances = cells.chances(cell, magnitudes)
    ratios = []
    with localcontext(prec=50):
        for magnitude, count, chance in zip(magnitudes.tolist(), slots.tolist(), chances.tolist(), strict=True):
            assert chance <= 2.0**64 * (1 + 2.0**-50)
            middle = (Decimal(magnitude) + Decimal("0.5")) / Decimal(scale)
            density = (-middle * middle / 2 if shape is grid.NORMAL else -middle).exp()
            ratios.append(Decimal(count) * Decimal(chance) / density)
        assert max(ratios) / min(ratios) < 1 + Decimal(2) ** -43


@SHAPES
def test_cells_cover_all_but_a_negligible_tail_and_refuse_little(shape: grid.NoiseShape) -> None:
    for scale in (2.0**28, SCALE, 1.99 * 2**45):
        cells = grid._Staircase.under(shape, scale)
        assert len(cells.odds) - 1 << cells.width_bits >= shape.reach * scale
        kept = cells.propose(np.empty(SIZE, np.int64), SeededRandomness(1).stream("noise"))
        assert kept > 0.93 * SIZE
    beyond = math.erfc(grid.NORMAL.reach / math.sqrt(2)) if shape is grid.NORMAL else math.exp(-grid.LAPLACE.reach)
    assert beyond <= 2.0**-64


@SHAPES
def test_the_largest_magnitude_is_the_reach_and_a_cell(shape: grid.NoiseShape) -> None:
    cells = grid._Staircase.under(shape, SCALE)
    slot = int(cells.odds[cells.cell].nonzero()[0].max())
    for sign, side in ((0, 1), (1, -1)):
        proposal = slot << 48 | sign << 47 | 2**cells.width_bits - 1
        stream = Given(proposal=proposal, more=0)
        value = drawn(shape, stream, size=1)[0]
        assert shape.reach < side * value < shape.reach + 1 / 32 + 1e-9


def test_a_slot_left_over_proposes_nothing() -> None:
    for begun in (0, 2**47 - 1):
        stream = Given(proposal=(2**16 - 1) << 48 | begun, more=0)
        assert grid._Staircase.under(grid.NORMAL, SCALE).propose(np.empty(10, np.int64), stream) == 0


@SHAPES
@pytest.mark.parametrize("scale", [64.0, SCALE, 1.99 * 2**50])
def test_what_is_kept_is_one_comparison_with_the_chance(shape: grid.NoiseShape, scale: float) -> None:
    """The first bits of the decision come with the proposal; near the chance, 64 more tell."""
    cells = grid._Staircase.under(shape, scale)
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


@pytest.mark.parametrize("size", [0, 1, 2**14 - 1, 2**14, 2**14 + 1])
def test_any_size_is_filled(size: int) -> None:
    values = grid.sample_noise(grid.NORMAL, scale=SCALE, size=size, stream=SeededRandomness(1).stream("noise"))
    assert values.shape == (size,)
    assert values.dtype == np.int64
    assert len(np.unique(values)) == size


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(-(2**60), 2**60)), max_size=5),
    st.integers(-40, -10),
)
def test_adding_is_exact_until_the_last_conversion(pairs: list[tuple[float, int]], exponent: int) -> None:
    total, noise = np.array([a for a, _ in pairs]), np.array([b for _, b in pairs], np.int64)
    step = 2.0**exponent
    expected = [float((round(Fraction(a) / Fraction(step)) + b) * Fraction(step)) for a, b in pairs]
    assert grid.add(total, noise, step=step).values.tolist() == expected


def test_adding_leaves_the_sum_as_it_is() -> None:
    total = np.array([0.3, 1.7])
    grid.add(total, np.array([1, 2]), step=0.5)
    assert total.tolist() == [0.3, 1.7]


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
        (1.0, 2.0**-40, 1.0),
        (0.0, 1.0, 1.0),
        (1e-310, 1.0, 1.0),
        (1e300, 1e300, 1.0),
        (1.0, 1.0, math.inf),
    ],
)
def test_what_does_not_fit_the_grid_is_refused(share: float, scale: float, largest_sum: float) -> None:
    with pytest.raises(ConfigError, match="does not fit one 64-bit grid"):
        grid.step(share=share, scale=scale, largest_sum=largest_sum)
