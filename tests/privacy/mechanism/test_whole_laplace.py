"""Whole numbers all the way: the bound, the scale, and the law of the noise, each exactly what it is said to be."""

import hashlib
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from incrowd._random import Bits, Floats, Integers, SeededRandomness, SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.mechanism.device import Mechanism
from incrowd.privacy.mechanism.whole_laplace import (
    LARGEST_BOUND,
    LARGEST_SCALE,
    WholeLaplace,
    below,
    discrete_laplace,
)
from tests.privacy.receipts import paid
from tests.statistics import ODD, chi_square, fair, ks, rejects_wrong_scale

KINDS: list[dict[str, Any]] = [{"privacy": "feature"}, {"privacy": "model"}, {"privacy": "model", "bound": "norm"}]
SIZES = st.integers(1, 10_000_000)
CLIPS = st.floats(1e-30, 1e30)
EPSILONS = st.floats(1e-12, 1e30)


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


@pytest.mark.parametrize("kind", KINDS)
@given(size=SIZES, clip=CLIPS, epsilon=EPSILONS)
def test_steps_are_the_finest_that_fit(size: int, clip: float, epsilon: float, kind: dict[str, Any]) -> None:
    whole = fitted(size, clip, epsilon, **kind)
    finer = math.floor(Fraction(clip) * 2 ** (whole.exponent + 1))
    wanted = Fraction(2 * finer * (size if kind == {"privacy": "model"} else 1)) / Fraction(epsilon)
    assert whole.exponent == 40 or finer >= LARGEST_BOUND or wanted > LARGEST_SCALE - 3


@pytest.mark.parametrize(
    ("size", "clip", "epsilon"), [(1, 1e-13, 1.0), (10_000, 0.1, 1e-6), (1, 0.5, 1e-15), (1, 1e308, 1.0)]
)
def test_what_no_grid_holds_is_refused(size: int, clip: float, epsilon: float) -> None:
    with pytest.raises(ConfigError, match="nearer 1, or a model with fewer weights"):
        Mechanism(size=size, clip=clip, epsilon=epsilon)


GRADIENTS = arrays(np.float64, st.integers(1, 30), elements=st.floats(allow_nan=True, allow_infinity=True))


@settings(max_examples=300)
@given(GRADIENTS, st.booleans(), st.floats(1e-3, 1e6), st.floats(1e-2, 1e9))
def test_any_gradient_is_within_the_bound_exactly(gradient: Floats, joint: bool, clip: float, epsilon: float) -> None:
    whole = fitted(len(gradient), clip, epsilon, privacy="model", bound="norm" if joint else "element")
    steps = [abs(int(number)) for number in whole.bounded(gradient)]
    assert (sum(steps) if joint else max(steps)) <= whole.bound


@given(arrays(np.float64, 4, elements=st.floats(-2.0, 2.0)), st.booleans())
def test_a_gradient_is_bounded_as_by_hand(gradient: Floats, joint: bool) -> None:
    """The obvious twin in rational numbers: round half to even, then bound."""
    whole = Mechanism(size=4, clip=0.75, epsilon=1.0, bound="norm" if joint else "element").whole
    steps = [round(Fraction(number) * 2**whole.exponent) for number in gradient]
    total = sum(map(abs, steps))
    if not joint:
        expected = [max(-whole.bound, min(whole.bound, number)) for number in steps]
        assert whole.bounded(gradient).tolist() == expected
    elif total <= whole.bound:
        assert whole.bounded(gradient).tolist() == steps
    else:
        shortened = [Fraction(number * whole.bound, total) for number in steps]
        assert all(abs(a - b) <= 1 for a, b in zip(whole.bounded(gradient).tolist(), shortened, strict=True))


def test_halves_go_to_the_even_neighbour() -> None:
    whole = WholeLaplace(exponent=1, bound=100, scale=5, size=6, joint=False)
    halves = np.array([0.25, 0.75, 1.25, -0.25, -0.75, 3.0])
    assert whole.bounded(halves).tolist() == [0, 2, 2, 0, -2, 6]


@pytest.mark.parametrize("longest", [1e9, 1e308])
def test_a_long_gradient_keeps_its_direction_and_its_neighbours(longest: float) -> None:
    gradient = longest * np.array([1.0, -0.5, 0.25, 0.0])
    joint = Mechanism(size=4, clip=0.7, epsilon=1.0, bound="norm").whole
    np.testing.assert_allclose(joint.bounded(gradient) * joint.step, [0.4, -0.2, 0.1, 0.0], rtol=1e-6)
    alone = Mechanism(size=4, clip=0.7, epsilon=1.0, privacy="feature").whole
    mixed = alone.bounded(np.array([longest, 0.5, -0.125, math.nan]))
    np.testing.assert_allclose(mixed * alone.step, [0.7, 0.5, -0.125, 0.0], atol=2 * alone.step)


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


def test_the_tail_is_as_long_as_it_should_be() -> None:
    scale, size = 11, 60_000
    noise = np.abs(drawn(scale, size))
    for times in (2, 4, 6):
        q = math.exp(-1 / scale)
        beyond = 2 * q ** (times * scale) / (1 + q)
        assert fair(int((noise >= times * scale).sum()), size, chance=beyond) > ODD
        assert times > 4 or fair(int((noise >= times * scale).sum()), size, chance=beyond * 1.5) < ODD


@pytest.mark.parametrize("scale", [3_872_745, 2**31 - 1])
def test_large_scales_are_laplace_noise(scale: int) -> None:
    assert rejects_wrong_scale(ks("laplace", scale=scale), drawn(scale, 20_000).astype(np.float64))


@pytest.mark.parametrize("scale", [1, 2, 9, 100])
def test_the_variance_is_the_law_s(scale: int) -> None:
    whole = WholeLaplace(exponent=0, bound=1, scale=scale, size=1, joint=False)
    reach = 60 * scale
    law = probabilities(scale, reach)[:-1]
    assert whole.variance == pytest.approx(float((law * np.arange(-reach, reach + 1) ** 2).sum()))


class Words:
    """A stream whose bits are SHA-256 of a seed and a counter, as in the shared vectors."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._counter = 0
        self._left = b""

    def bits(self, size: int) -> Bits:
        while len(self._left) < 8 * size:
            self._left += hashlib.sha256(self._seed + self._counter.to_bytes(8, "little")).digest()
            self._counter += 1
        taken, self._left = self._left[: 8 * size], self._left[8 * size :]
        return np.frombuffer(taken, "<u8").astype(np.uint64)

    def normals(self, size: int) -> Floats:
        raise NotImplementedError

    laplaces = normals


def slow(scale: int, size: int, words: Iterator[int]) -> list[int]:
    """The algorithm in its own words: Canonne, Kamath, Steinke 2020, algorithms 1 and 2."""

    def below(most: int) -> int:
        while (word := next(words)) >= 2**32 - 2**32 % most:
            pass
        return word % most

    def bernoulli_exp(numerator: Callable[[], bool]) -> bool:
        """exp(-x): the first k at which a coin of chance x / k fails, is it odd."""
        k = 1
        while (k == 1 or below(k) == 0) and numerator():
            k += 1
        return k % 2 == 1

    def less(u: int) -> bool:
        return below(scale) < u

    def one() -> int:
        while True:
            u = below(scale)
            if not bernoulli_exp(partial(less, u)):
                continue
            v = 0
            while bernoulli_exp(lambda: True):
                v += 1
            magnitude, negative = u + scale * v, next(words) % 2
            if negative and magnitude == 0:
                continue
            return -magnitude if negative else magnitude

    return [one() for _ in range(size)]


@settings(max_examples=30)
@given(st.binary(max_size=8), st.integers(1, 2**31 - 1), st.integers(0, 200))
@example(b"", 1, 50)
@example(b"x", 2**31 - 1, 50)
@example(b"x", 3 * 2**29, 50)  # a quarter of all words lies beyond the last full run
def test_the_same_words_give_the_same_noise_as_the_slow_twin(seed: bytes, scale: int, size: int) -> None:
    words = iter(np.asarray(Words(seed).bits(4096 + 100 * size)).astype("<u8").view("<u4").tolist())
    assert discrete_laplace(scale, size=size, stream=Words(seed)).tolist() == slow(scale, size, words)


def test_the_system_s_noise_is_fresh_every_time() -> None:
    first, second = (discrete_laplace(10**8, size=500, stream=SystemRandomness().stream("noise")) for _ in range(2))
    assert not np.isin(first, second).any()


def test_noise_is_drawn_against_a_receipt_once() -> None:
    whole = Mechanism(size=3, clip=0.5, epsilon=1.0).whole
    receipt = paid(whole)
    released = whole.noised(np.array([1, 2, 3]), receipt=receipt, at=("noise", 1))
    assert released.steps.dtype == np.int64
    assert released.step == whole.step
    with pytest.raises(BudgetExceeded, match="is drawn"):
        whole.noised(np.array([1, 2, 3]), receipt=receipt, at=("noise", 2))
    other = Mechanism(size=3, clip=0.5, epsilon=2.0).whole
    with pytest.raises(ConfigError, match="not what this receipt was paid for"):
        other.noised(np.array([1, 2, 3]), receipt=paid(whole), at=("noise", 1))


def test_size_nought_draws_nothing() -> None:
    assert discrete_laplace(5, size=0, stream=Words(b"")).tolist() == []


def test_words_beyond_the_last_full_run_are_left_out() -> None:
    """2^32 is no multiple of three: its last word would make 0 more frequent than the others."""
    words = [2**32 - 1, 2**32 - 1, 5, 2**32 - 2]
    taken = iter(words)
    assert below(taken.__next__, 3) == 5 % 3
    assert below(taken.__next__, 3) == (2**32 - 2) % 3
    assert below(iter(words).__next__, 4) == 3, "the control: of four nothing is left over"
