import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from incrowd import Local
from incrowd.learning import CohortEngine, mlp
from incrowd.learning.backends import fast
from incrowd.learning.backends.fast import kernel
from incrowd.learning.backends.fast.memory import LINEAR, SOFTMAX, Layer, Memory, Stack, zeros
from incrowd.learning.backends.fast.training import StackContributions
from incrowd.learning.contributions import Contributions, halved_squares
from incrowd.learning.execution import LINE
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, clients

Make = Callable[[Tensor], Contributions]

SCALES = st.sampled_from([1e-44, 1e-38, 1e-30, 1e-19, 1e-11, 1e-6, 1.0, 1e6, 1e18, 1e19, 1e30])


def flat(numbers: Tensor) -> Contributions:
    return Contributions(tuple(range(len(numbers))), numbers)


def in_place(numbers: Tensor) -> Contributions:
    """One row as the compiled backend measures it: as the weights of a layer from zero."""
    inputs = -(-numbers.shape[1] // LINE)
    layer = Layer(kind=LINEAR, before=(inputs, 1, 1), after=(LINE, 1, 1), weight=True)
    memory = Memory(Stack((layer,), SOFTMAX))
    space, rows = memory.space(1, sparse=True, plain=True), zeros(1, memory.size)
    space.floats[LINE : LINE + numbers.shape[1]] = numbers[0]  # behind the bias that there is none of
    return StackContributions((0,), memory, rows, np.array([kernel.write(space, zeros(memory.size), rows[0])]))


both = pytest.mark.parametrize("make", [flat, in_place])


def exactly(numbers: Tensor) -> Fraction:
    return sum((Fraction(x) ** 2 for x in numbers.flatten().tolist()), Fraction(0))


@both
@settings(max_examples=100, deadline=None)
@given(size=st.integers(1, 700), scale=SCALES, seed=st.integers(0, 999))
def test_a_squared_norm_is_never_below_the_real_one_and_hardly_above(
    make: Make, size: int, scale: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    drawn = generator.normal(size=(1, size)) * scale * np.exp(generator.normal(size=(1, size)))
    numbers = torch.from_numpy(np.clip(drawn, -1e38, 1e38).astype(np.float32))
    exact, found = exactly(numbers), Fraction(float(make(numbers).squares()[0]))
    assert exact <= found <= exact * (1 + Fraction(1, 2**14))


@both
def test_equal_numbers_whose_squares_all_round_down_are_not_measured_short(make: Make) -> None:
    """1 + 2^-12 squared is rounded down by nearly half a unit in every place of the run."""
    for size in (255, 256, 257, 4096):
        numbers = torch.full((1, size), 1 + 2.0**-12 - 2.0**-23)
        assert make(numbers).squares()[0] >= exactly(numbers[0])


@both
def test_numbers_whose_squares_vanish_in_float32_are_measured(make: Make) -> None:
    assert make(torch.full((1, 1000), 1e-30)).squares()[0] == pytest.approx(1000 * 1e-60, rel=1e-4)
    assert make(torch.zeros(1, 1000)).squares()[0] == 0


def test_what_is_not_finite_has_no_finite_norm_and_leaves_the_others_alone() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        numbers = torch.ones(3, 300)
        numbers[1, 299] = bad
        found = flat(numbers).squares()
        assert not math.isfinite(found[1])
        assert found[[0, 2]] == pytest.approx([300, 300], rel=2**-14)


@pytest.mark.parametrize("dead", [0.2, 0.9])
def test_an_update_has_the_same_bits_where_it_was_trained_and_moved(dead: float) -> None:
    model = mlp((FEATURES, 70, CLASSES))
    engine = CohortEngine(model, clients(dead=dead), Local(learning_rate=0.1, batch_size=7), backends=[fast.make])
    for chunk in engine.train(model.initial(RANDOMNESS), [0, 2], randomness=RANDOMNESS, round=0):
        here, moved, some = chunk, flat(chunk.changes), slice(0, len(chunk))
        assert here.squares() == pytest.approx(moved.changes.double().square().sum(1).numpy(), rel=1e-4)
        totals = [one.empty_total() for one in (here, moved)]
        for one, total in zip((here, flat(here.changes)), totals, strict=True):
            one.add_steps(total, some, torch.full((len(chunk), 1), math.inf))
            assert not total.any()
        for one, total in zip((here, moved), totals, strict=True):
            one.add_steps(total, some, torch.full((len(chunk), 1), 3e-7))
        assert totals[0].any()
        assert np.array_equal(here.flat(totals[0]), moved.flat(totals[1]))


@pytest.mark.parametrize("width", [1, 2, 7, 64, 301])
def test_halves_added_up_are_the_squared_norms_whoever_is_there(width: int) -> None:
    rows = torch.randn(5, width, generator=torch.Generator().manual_seed(width))
    found = halved_squares(rows)
    assert found.numpy() == pytest.approx(rows.double().square().sum(1).numpy())
    assert all(torch.equal(halved_squares(rows[[row]])[0], found[row]) for row in range(5))
