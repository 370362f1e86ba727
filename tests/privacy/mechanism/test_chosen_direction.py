"""A chosen direction costs what it says, exactly, and points where it should."""

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from incrowd._random import Floats, SeededRandomness, SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.mechanism.chosen_direction import (
    FEWEST,
    LARGEST_SIZE,
    MOST,
    PARTS,
    ChosenDirection,
    survives,
)
from incrowd.privacy.mechanism.signs import most_along, sign_bits
from incrowd.privacy.mechanism.whole_laplace import LARGEST_SUM, random_words
from tests.privacy.receipts import paid
from tests.statistics import ODD, chi_square, fair

EPSILONS = st.floats(1e-12, 1e6)
CLIPS = st.floats(1e-8, 1e30)
SIZES = st.integers(1, 1_000_000)


def words(seed: int) -> Iterator[int]:
    word = random_words(SeededRandomness(seed).stream("words"), 1000)
    while True:
        yield word()


@pytest.mark.slow
@settings(max_examples=300)
@given(SIZES, CLIPS, EPSILONS)
@example(650, 1.0, 8.0)
@example(1, 1e30, 1e6)
def test_the_loss_is_at_most_epsilon_and_the_length_at_most_the_clip(size: int, clip: float, epsilon: float) -> None:
    """In rational numbers."""
    choice = ChosenDirection.fitting(size=size, clip=clip, epsilon=epsilon)
    assert 0 <= Fraction(choice.loss, PARTS) <= Fraction(epsilon)
    assert Fraction(choice.loss + 1, PARTS) > Fraction(epsilon) or choice.loss == 64 * PARTS
    assert choice.length**2 * Fraction(size) * Fraction(2) ** (-2 * choice.exponent) <= Fraction(clip) ** 2
    assert 1 <= choice.length < LARGEST_SIZE
    assert FEWEST <= choice.candidates <= MOST
    assert choice.exponent == 40 or choice.length >= LARGEST_SIZE // 2 - 1, "and no shorter than need be"


@pytest.mark.parametrize("clip", [1e-14, 1e308])
def test_what_no_grid_holds_is_refused(clip: float) -> None:
    with pytest.raises(ConfigError, match="nearer 1"):
        ChosenDirection.fitting(size=4, clip=clip, epsilon=1.0)


@pytest.mark.parametrize("loss", [0.0, 0.3, 1.0, 1.7, 3.0])
def test_the_coin_has_exactly_its_chance(loss: float) -> None:
    count, word = 40_000, random_words(SeededRandomness(7).stream("coins"), 40_000)
    heads = sum(survives(word, math.floor(loss * PARTS)) for _ in range(count))
    assert fair(heads, count, chance=math.exp(-loss)) > ODD
    assert fair(heads, count, chance=math.exp(-1.5 * loss - 0.05)) < ODD  # the control


def test_the_coin_compares_whole_numbers_as_by_hand() -> None:
    """exp(-u / 2^24): the first trial at which a coin of chance u / (2^24 trial) fails, is it odd."""
    for given_, expected in (
        ([5], True),
        ([4, 0, 5], False),
        ([4, 1], False),
        ([4, 0, 4, 0, 9], True),
        ([4, 0, 4, 2], True),
    ):
        taken = iter(given_)
        assert survives(taken.__next__, 5) is expected
        assert list(taken) == []


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.4, 1.0, 2.5])
def test_the_best_is_named_e_to_the_epsilon_times_as_often_as_any_other(epsilon: float) -> None:
    """So the ratio of any answer's chances under two tables is at most that, whichever directions are tossed."""
    choice = ChosenDirection.fitting(size=40, clip=1.0, epsilon=epsilon)
    gradient = choice.bounded(np.random.default_rng(3).normal(size=40))
    counts, stream = np.zeros(choice.candidates, np.int64), words(11)
    for _ in range(6_000):
        seeds: list[int] = []

        def word(seeds: list[int] = seeds) -> int:
            taken = next(stream)
            if len(seeds) < choice.candidates:
                seeds.append(taken % 2**20)
            return taken

        named = choice.named(gradient, word)
        tossed = np.array(seeds)
        best = most_along(tossed, gradient.astype(np.float64))
        counts[(seeds.index(named) - best) % choice.candidates] += 1
    likely = np.array([math.exp(epsilon)] + [1.0] * (choice.candidates - 1))
    assert chi_square(counts, likely) > ODD
    assert fair(int(counts[0]), 6_000, chance=choice.honest) > ODD
    likely[0] = math.exp(1.5 * epsilon + 0.2)
    assert chi_square(counts, likely) < ODD  # the control


def test_what_is_released_points_along_the_gradient_as_far_as_it_says() -> None:
    choice = ChosenDirection.fitting(size=300, clip=2.0, epsilon=4.0)
    gradient = np.random.default_rng(5).normal(size=300)
    unit, word, count = gradient / np.linalg.norm(gradient), words(1).__next__, 3_000
    released = np.array(
        [choice.steps_of(choice.named(choice.bounded(gradient), word)) * choice.step for _ in range(count)]
    )
    np.testing.assert_allclose(np.linalg.norm(released, axis=1), 2.0, rtol=1e-6)
    along = released @ unit / 2.0
    error = along.std() / math.sqrt(count)
    assert abs(along.mean() - choice.gain) < 5 * error
    assert abs(along.mean() - 2 / 3 * choice.gain) > 5 * error  # the control
    aside = released - np.outer(released @ unit, unit)
    assert np.abs(aside.mean(axis=0)).max() < 6 * 2.0 / math.sqrt(300 * count), "and nowhere else"


@pytest.mark.slow
def test_a_gradient_of_nothing_has_no_direction() -> None:
    choice = ChosenDirection.fitting(size=30, clip=1.0, epsilon=3.0)
    word = words(2).__next__
    released = np.array([choice.steps_of(choice.named(choice.bounded(np.zeros(30)), word)) for _ in range(4_000)])
    up = (released > 0).sum(axis=0)
    assert min(fair(int(heads), 4_000) for heads in up) > ODD


GRADIENTS = arrays(np.float64, st.integers(1, 30), elements=st.floats(allow_nan=True, allow_infinity=True))


@settings(max_examples=300)
@given(GRADIENTS)
def test_any_gradient_becomes_whole_numbers_that_add_up_exactly(gradient: Floats) -> None:
    found = ChosenDirection.fitting(size=len(gradient), clip=1.0, epsilon=1.0).bounded(gradient)
    assert sum(abs(int(number)) for number in found) <= LARGEST_SUM
    finite = np.where(np.isfinite(gradient), gradient, 0.0)
    assert ((np.sign(found) == np.sign(finite)) | (found == 0)).all()
    assert (found[~np.isfinite(gradient)] == 0).all()


@given(arrays(np.float64, 8, elements=st.floats(-1e3, 1e3)), st.integers(-400, 300))
def test_only_the_direction_of_a_gradient_is_kept(gradient: Floats, power: int) -> None:
    choice = ChosenDirection.fitting(size=8, clip=1.0, epsilon=1.0)
    if np.abs(gradient).max() > 1e-3:
        assert choice.bounded(gradient * 2.0**power).tolist() == choice.bounded(gradient).tolist()


def test_a_direction_is_named_against_a_receipt_once() -> None:
    choice, other = (ChosenDirection.fitting(size=3, clip=0.5, epsilon=epsilon) for epsilon in (1.0, 2.0))
    receipt = paid(choice)
    released = choice.noised(np.array([1, 2, 3]), receipt=receipt, at=("noise", 1))
    assert released.steps.dtype == np.int64
    assert released.step == choice.step
    assert set(np.abs(released.steps).tolist()) == {choice.length}
    with pytest.raises(BudgetExceeded, match="is drawn"):
        choice.noised(np.array([1, 2, 3]), receipt=receipt, at=("noise", 2))
    with pytest.raises(ConfigError, match="not what this receipt was paid for"):
        other.noised(np.array([1, 2, 3]), receipt=paid(choice), at=("noise", 1))


def test_directions_are_tossed_anew_every_time() -> None:
    choice = ChosenDirection.fitting(size=200, clip=1.0, epsilon=8.0)
    gradient = choice.bounded(np.ones(200))
    words_ = random_words(SystemRandomness().stream("noise"), 1000)
    seeds = [choice.named(gradient, words_) for _ in range(50)]
    assert len(set(seeds)) >= 48
    assert (sign_bits(np.array(seeds), 200).mean(axis=1) > 0.5).mean() > 0.8
