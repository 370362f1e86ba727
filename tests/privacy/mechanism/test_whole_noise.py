"""Noise of devices in whole numbers: bounds, scales, chances and costs, each exactly as stated."""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from incrowd._random import Floats, Integers, SeededRandomness
from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.mechanism.device import Mechanism
from incrowd.privacy.mechanism.whole_noise import (
    FEWEST,
    LARGEST_BOUND,
    LARGEST_SCALE,
    LARGEST_SUM,
    MOST,
    PARTS,
    SEED_BITS,
    ChosenDirection,
    WholeLaplace,
    below,
    discrete_laplace,
    most_along,
    random_words,
    seed_of,
    sign_bits,
    survives,
)
from tests.privacy.receipts import paid
from tests.statistics import ODD, chi_square, fair

KINDS: list[dict[str, Any]] = [{"privacy": "feature"}, {"privacy": "model"}, {"privacy": "model", "bound": "norm"}]
SIZES = st.integers(1, 10_000_000)
CLIPS = st.floats(1e-30, 1e30)
EPSILONS = st.floats(1e-12, 1e30)
SEEDS = st.integers(0, 2**SEED_BITS - 1)


def drawn(scale: int, size: int, *, seed: int = 1) -> Integers:
    return discrete_laplace(scale, size=size, stream=SeededRandomness(seed).stream("noise"))


def fitted(size: int, clip: float, epsilon: float, **kind: Any) -> WholeLaplace:
    of = Mechanism(size=size, clip=clip, epsilon=epsilon, noise="none", **kind)
    try:
        return of.whole
    except ConfigError:
        reject()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300)
@given(size=SIZES, clip=CLIPS, epsilon=EPSILONS)
@example(size=387, clip=0.1, epsilon=math.log(16))
@example(size=10_000_000, clip=1e-3, epsilon=1.0)
@example(size=1, clip=2.0**-40, epsilon=1e6)
@example(size=3, clip=1e20, epsilon=0.1)
def test_the_scale_covers_the_distance_exactly(size: int, clip: float, epsilon: float, kind: dict[str, Any]) -> None:
    """In rational numbers: the bound is no more than the clip, and distance / scale no more than epsilon."""
    whole = fitted(size, clip, epsilon, **kind)
    step = Fraction(2) ** -whole.exponent
    distance = 2 * whole.bound * (size if kind == {"privacy": "model"} else 1)
    assert whole.bound * step <= Fraction(clip) < (whole.bound + 1) * step
    assert Fraction(distance, whole.scale) <= Fraction(epsilon)
    assert whole.scale <= Fraction(distance) / Fraction(epsilon) + 3, "and no more noise than that"
    assert 1 <= whole.bound < LARGEST_BOUND
    assert 2 <= whole.scale < LARGEST_SCALE
    assert Fraction(whole.step) == step


GRADIENTS = arrays(np.float64, st.integers(1, 30), elements=st.floats(allow_nan=True, allow_infinity=True))


@settings(max_examples=300)
@given(GRADIENTS, st.booleans(), st.floats(1e-3, 1e6), st.floats(1e-2, 1e9))
def test_any_gradient_is_within_the_bound_exactly(gradient: Floats, joint: bool, clip: float, epsilon: float) -> None:
    whole = fitted(len(gradient), clip, epsilon, privacy="model", bound="norm" if joint else "element")
    steps = [abs(int(number)) for number in whole.bounded(gradient)]
    assert (sum(steps) if joint else max(steps)) <= whole.bound


def probabilities(scale: float, reach: int) -> Floats:
    """Of -reach .. reach, and of all beyond."""
    q = math.exp(-1 / scale)
    inside = (1 - q) / (1 + q) * q ** np.abs(np.arange(-reach, reach + 1))
    return np.append(inside, 1 - inside.sum())


@pytest.mark.parametrize("scale", [1, 2, 3, 7, 20])
def test_the_noise_has_exactly_its_law(scale: int) -> None:
    """Every value near zero, zero among them once, and the tails; 2/3 and 3/2 of the scale are rejected."""
    reach = 3 * scale
    noise = drawn(scale, 60_000)
    counts = np.bincount(np.clip(noise, -reach - 1, reach + 1) + reach + 1, minlength=2 * reach + 3)
    counts = np.append(counts[1:-1], counts[0] + counts[-1])
    assert chi_square(counts, probabilities(scale, reach)) > ODD
    for wrong in (scale * 2 / 3, scale * 3 / 2):
        assert chi_square(counts, probabilities(wrong, reach)) < ODD
    assert fair(int((noise > 0).sum()), int((noise != 0).sum())) > ODD


@pytest.mark.parametrize("kind", [{}, {"noise": "direction", "bound": "norm"}])
def test_noise_is_drawn_against_a_receipt_once(kind: dict[str, Any]) -> None:
    (drawn, _), (other, _) = (
        Mechanism(size=3, clip=0.5, epsilon=epsilon, **kind).pays_for[0] for epsilon in (1.0, 2.0)
    )
    assert isinstance(drawn, WholeLaplace | ChosenDirection)
    assert isinstance(other, WholeLaplace | ChosenDirection)
    receipt = paid(drawn)
    released = drawn.noised(np.array([1, 2, 3]), receipt=receipt, at=("noise", 1))
    assert released.steps.dtype == np.int64
    assert released.step == drawn.step
    assert isinstance(drawn, WholeLaplace) or set(np.abs(released.steps).tolist()) == {drawn.length}
    with pytest.raises(BudgetExceeded, match="is drawn"):
        drawn.noised(np.array([1, 2, 3]), receipt=receipt, at=("noise", 2))
    with pytest.raises(ConfigError, match="not what this receipt was paid for"):
        other.noised(np.array([1, 2, 3]), receipt=paid(drawn), at=("noise", 1))


def test_words_beyond_the_last_full_run_are_left_out() -> None:
    """2^32 is no multiple of three: its last word would make 0 more frequent than the others."""
    words = [2**32 - 1, 2**32 - 1, 5, 2**32 - 2]
    assert below(iter(words).__next__, 3) == 5 % 3
    assert below(iter(words).__next__, 4) == 3, "the control: of four nothing is left over"


# A direction chosen among random ones


def words(seed: int) -> Iterator[int]:
    word = random_words(SeededRandomness(seed).stream("words"), 1000)
    while True:
        yield word()


@pytest.mark.slow
@settings(max_examples=300)
@given(st.integers(1, 1_000_000), st.floats(1e-8, 1e30), st.floats(1e-12, 1e6))
@example(650, 1.0, 8.0)
@example(1, 1e30, 1e6)
def test_the_loss_is_at_most_epsilon_and_the_length_at_most_the_clip(size: int, clip: float, epsilon: float) -> None:
    """In rational numbers."""
    choice = ChosenDirection.fitting(size=size, clip=clip, epsilon=epsilon)
    assert 0 <= Fraction(choice.loss, PARTS) <= Fraction(epsilon)
    assert Fraction(choice.loss + 1, PARTS) > Fraction(epsilon) or choice.loss == 64 * PARTS
    assert choice.length**2 * Fraction(size) * Fraction(2) ** (-2 * choice.exponent) <= Fraction(clip) ** 2
    assert 1 <= choice.length < LARGEST_SCALE
    assert FEWEST <= choice.candidates <= MOST
    assert choice.exponent == 40 or choice.length >= LARGEST_SCALE // 2 - 1, "and no shorter than need be"


@pytest.mark.parametrize("loss", [0.0, 0.3, 1.0, 1.7, 3.0])
def test_the_coin_has_exactly_its_chance(loss: float) -> None:
    count, word = 40_000, random_words(SeededRandomness(7).stream("coins"), 40_000)
    heads = sum(survives(word, math.floor(loss * PARTS)) for _ in range(count))
    assert fair(heads, count, chance=math.exp(-loss)) > ODD
    assert fair(heads, count, chance=math.exp(-1.5 * loss - 0.05)) < ODD  # the control


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


@settings(max_examples=300)
@given(GRADIENTS)
def test_any_gradient_becomes_whole_numbers_that_add_up_exactly(gradient: Floats) -> None:
    found = ChosenDirection.fitting(size=len(gradient), clip=1.0, epsilon=1.0).bounded(gradient)
    assert sum(abs(int(number)) for number in found) <= LARGEST_SUM
    finite = np.where(np.isfinite(gradient), gradient, 0.0)
    assert ((np.sign(found) == np.sign(finite)) | (found == 0)).all()
    assert (found[~np.isfinite(gradient)] == 0).all()


# The signs of a direction


def mixed(word: int) -> int:
    """MurmurHash3's last steps in whole numbers of any size, cut to 32 bits."""
    word ^= word >> 16
    word = word * 0x85EBCA6B % 2**32
    word ^= word >> 13
    word = word * 0xC2B2AE35 % 2**32
    return word ^ word >> 16


def one_by_one(seed: int, size: int) -> list[int]:
    """The slow twin: the seed's bits, then those of its words."""
    bits = [seed >> place & 1 for place in range(SEED_BITS)]
    number = 1
    while len(bits) < size:
        word = mixed(mixed(seed) ^ mixed(number))
        bits += [word >> place & 1 for place in range(32)]
        number += 1
    return bits[:size]


@given(st.lists(SEEDS, min_size=1, max_size=5), st.integers(1, 200))
def test_signs_are_those_of_the_slow_twin(seeds: list[int], size: int) -> None:
    found = sign_bits(np.array(seeds), size)
    assert found.tolist() == [one_by_one(seed, size) for seed in seeds]


@given(SEEDS, st.integers(SEED_BITS, 100))
def test_a_direction_tells_its_seed(seed: int, size: int) -> None:
    assert seed_of(sign_bits(np.array([seed]), size)[0]) == seed


@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 2**32))
def test_the_direction_most_along_is_that_of_the_slow_twin(size: int, count: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    seeds, gradient = draw.integers(0, 2**SEED_BITS, count), draw.integers(-5, 6, size).astype(np.float64)
    sums = [sum(g if bit else -g for g, bit in zip(gradient, one_by_one(int(s), size), strict=True)) for s in seeds]
    assert most_along(seeds, gradient) == sums.index(max(sums))
