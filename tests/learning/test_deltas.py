import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from incrowd.learning.deltas import FlatDelta, InputDelta, Loops, squares
from incrowd.learning.paths.compiled.deltas import LOOPS
from incrowd.learning.paths.fused.changed import LOOPS as CHANGED

both = pytest.mark.parametrize("loops", [None, LOOPS, CHANGED], ids=["torch", "compiled", "changed"])
SIZES = st.integers(1, 700)
SCALES = st.sampled_from([1e-44, 1e-38, 1e-30, 1e-19, 1e-11, 1e-6, 1.0, 1e6, 1e18, 1e19, 1e30])


def rows(size: int, scale: float, seed: int) -> Tensor:
    """One row of numbers that differ in size."""
    generator = np.random.default_rng(seed)
    numbers = generator.normal(size=(1, size)) * scale * np.exp(generator.normal(size=(1, size)))
    return torch.from_numpy(np.clip(numbers, -1e38, 1e38).astype(np.float32))


def exactly(numbers: Tensor) -> Fraction:
    return sum((Fraction(x) ** 2 for x in numbers.flatten().tolist()), Fraction(0))


@pytest.mark.slow
@both
@settings(max_examples=150, deadline=None)
@given(size=SIZES, scale=SCALES, seed=st.integers(0, 999))
def test_a_squared_norm_is_never_below_the_real_one_and_hardly_above(
    loops: Loops | None, size: int, scale: float, seed: int
) -> None:
    numbers = rows(size, scale, seed)
    exact = exactly(numbers)
    found = Fraction(float(squares(FlatDelta(numbers, loops))[0]))
    assert exact <= found <= exact * (1 + Fraction(1, 2**14))


@both
def test_equal_numbers_whose_squares_all_round_down_are_not_measured_short(loops: Loops | None) -> None:
    """1 + 2^-12 squared is rounded down by nearly half a unit in every place of the run."""
    for size in (255, 256, 257, 4096):
        numbers = torch.full((2, size), 1 + 2.0**-12 - 2.0**-23)
        assert min(squares(FlatDelta(numbers, loops))) >= exactly(numbers[0])


@both
def test_numbers_whose_squares_vanish_in_float32_are_measured(loops: Loops | None) -> None:
    numbers = torch.full((1, 1000), 1e-30)
    assert squares(FlatDelta(numbers, loops))[0] == pytest.approx(1000 * 1e-60, rel=1e-4)
    assert squares(FlatDelta(torch.zeros(1, 1000), loops))[0] == 0


@both
@pytest.mark.parametrize("place", [0, 200, 299])
def test_what_is_not_finite_has_no_finite_norm_and_leaves_the_others_alone(place: int, loops: Loops | None) -> None:
    for bad in (math.nan, math.inf, -math.inf):
        numbers = torch.ones(3, 300)
        numbers[1, place] = bad
        found = squares(FlatDelta(numbers, loops))
        assert not math.isfinite(found[1])
        assert found[[0, 2]] == pytest.approx([300, 300], rel=2**-14)


@pytest.mark.parametrize("shape", [(7, 40)])
def test_changes_are_computed_once_for_the_whole_or_for_its_parts(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    values, start = torch.randn(3, 7, 40, generator=generator), torch.randn(shape, generator=generator)
    expected = values - start
    whole = InputDelta(values.clone(), start, None, 7)
    assert torch.equal(whole.changes, expected)
    assert torch.equal(whole.changes, expected)
    assert torch.equal(whole.part(slice(1, 3)).changes, expected[1:])
    fresh = InputDelta(values.clone(), start, torch.arange(7).expand(3, 7), 7)
    for j in range(3):
        part = fresh.part(slice(j, j + 1))
        assert torch.equal(part.changes, expected[j : j + 1])
        assert part.columns is not None
        assert part.columns.tolist() == [list(range(7))]


def test_pieces_that_outlive_the_next_training_need_not_be_moved() -> None:
    flat, by_input = FlatDelta(torch.ones(1, 3)), InputDelta(torch.ones(1, 2, 3), None, None, 2)
    assert flat.moved() is flat
    assert by_input.moved() is by_input


def by_input(columns: Tensor | None, loops: Loops | None) -> InputDelta:
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(40, 300, generator=generator)
    rows = start if columns is None else start[columns[0]]
    values = rows + 1e-3 * torch.randn(rows.shape, generator=generator)
    return InputDelta(values[None], start, columns, 40, loops)


@pytest.mark.parametrize("columns", [None, torch.tensor([[3, 0, 17, 39]])], ids=["all", "some"])
def test_loops_over_what_has_changed_are_what_the_changes_give(columns: Tensor | None) -> None:
    factors = np.array([1e4])
    loops, plain = by_input(columns, CHANGED), by_input(columns, None)
    of_loops, of_plain = loops.empty_total(torch.float32), plain.empty_total(torch.float32)
    found = CHANGED.run_squares(loops, slice(None))
    CHANGED.add_steps(of_loops, loops, slice(None), factors)
    plain.add_to(of_plain, torch.trunc(plain.changes.double() * 1e4).float())
    assert found == pytest.approx(float(plain.changes.double().square().sum()), rel=1e-5)
    assert found[0] >= 0.9999 * float(exactly(plain.changes))
    assert torch.equal(of_loops, of_plain)
    assert of_loops.any()


@pytest.mark.parametrize("columns", [None, torch.tensor([[3, 0, 17, 39]])], ids=["all", "some"])
def test_changes_that_somebody_asked_for_have_the_same_bits(columns: Tensor | None) -> None:
    before, asked = by_input(columns, CHANGED), by_input(columns, CHANGED)
    moved = InputDelta(asked.changes.clone(), None, columns, 40, CHANGED)  # as another process gets it
    totals = [one.empty_total(torch.float32) for one in (before, asked, moved)]
    for one, total in zip((before, asked, moved), totals, strict=True):
        assert CHANGED.run_squares(one, slice(None)) == CHANGED.run_squares(before, slice(None))
        CHANGED.add_steps(total, one, slice(None), np.array([1e4]))
    assert torch.equal(totals[0], totals[1])
    assert torch.equal(totals[0], totals[2])


def test_a_factor_of_zero_leaves_out_what_is_no_number() -> None:
    flat = FlatDelta(torch.tensor([[1.0, math.nan, 2.0], [4.0, 5.0, 6.0]]), CHANGED)
    total = torch.zeros(3)
    CHANGED.add_steps(total, flat, slice(1, 3), np.array([0.0, 1.5]))
    assert total.tolist() == [0, 7, 9]
