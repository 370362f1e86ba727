"""Laplace noise in whole numbers: the bound is whole steps, the noise is whole steps, and nothing is left to rounding.

The value of a step is a power of two, chosen from public numbers. A gradient is rounded to steps *before* it is
bounded, so its sensitivity is a whole number D; noise of a whole scale p of at least D / epsilon then costs at most
epsilon, exactly, with no slack for floating point. The noise is drawn from random words by comparing whole numbers
(Canonne, Kamath, Steinke 2020, algorithm 2), all below 2^53: every language gives the same bits for the same words
(docs/devices.md).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from dp_accounting import LaplaceDpEvent

from incrowd._random import Floats, Integers, Stream
from incrowd.errors import ConfigError
from incrowd.privacy.ledger.receipt import Receipt
from incrowd.privacy.mechanism.grid import Whole

FINEST = 40
"""No step is smaller than 2 to the minus this."""

COARSEST = -400
"""No step is larger than 2 to the minus this."""

LARGEST_BOUND = 2**40
LARGEST_SCALE = 2**31
LARGEST_SUM = 2**52
"""Magnitudes before the bound add up to no more steps than this, so floats that hold them are exact."""

_WORDS = 2**32
_BLOCK = 2**12  # of 64 bits, at a time


@dataclass(frozen=True, kw_only=True)
class WholeLaplace:
    """A bound on so many numbers, in whole steps of 2^-exponent, and noise of a whole scale to hide what is within it.

    `joint` bounds the numbers together (their L1 norm), otherwise each is bounded by itself.

    Guarantee: `fitting` gives the finest steps that there is room for, with a bound of at most the clip and a scale of
    at least `distance` / epsilon, exactly, so that what is released costs at most epsilon. `bounded` is within the
    bound whatever it is given. `noise` has exactly the probabilities P(z) = (1 - q) / (1 + q) q^|z|, q = exp(-1 /
    scale): every comparison is one of whole numbers. It is drawn against a receipt, once.

    Edge cases: a clip, an epsilon and a number of weights for which no step leaves the bound at least one step are
    refused (`ConfigError`). What is not finite counts as zero. A joint gradient so long that
    whole numbers would not hold it is shortened first, in the same direction.
    """

    exponent: int
    bound: int
    scale: int
    size: int
    joint: bool
    of_replacing: bool = field(default=True, init=False)

    @classmethod
    def fitting(cls, *, size: int, clip: float, epsilon: float, distances: int, joint: bool) -> "WholeLaplace":
        """The finest steps in which noise of scale 2 * clip * `distances` / epsilon can be drawn."""
        for exponent in range(FINEST, COARSEST, -1):
            scaled = clip * 2.0**exponent  # exact: a power of two
            if scaled >= LARGEST_BOUND:
                continue
            bound = math.floor(scaled)
            if bound < 1:
                break
            wanted = float(2 * bound * distances) / epsilon
            if wanted <= LARGEST_SCALE - 2:
                return cls(exponent=exponent, bound=bound, scale=math.ceil(wanted) + 1, size=size, joint=joint)
        raise ConfigError(
            field="clip",
            value=clip,
            remedy=f"no grid of whole numbers holds it beside the noise of epsilon = {epsilon:g} over {size} numbers: "
            "give a clip and an epsilon nearer 1, or a model with fewer weights",
        )

    def event(self) -> LaplaceDpEvent:
        """What all numbers together cost, where any gradient may be replaced by any other."""
        return LaplaceDpEvent(self.scale / (2 * self.bound * (1 if self.joint else self.size)))

    @property
    def step(self) -> float:
        """The value of one step."""
        return math.ldexp(1.0, -self.exponent)

    @property
    def variance(self) -> float:
        """The variance of the noise on a number, in squared steps; about 2 scale^2."""
        return 0.5 / math.sinh(0.5 / self.scale) ** 2

    def bounded(self, gradient: Floats) -> Integers:
        """A gradient in whole steps, within the bound. Private."""
        values = np.where(np.isfinite(gradient), gradient, 0.0)
        in_a_unit = math.ldexp(1.0, self.exponent)
        if not self.joint:
            most = self.bound * self.step
            return np.rint(np.clip(values, -most, most) * in_a_unit).astype(np.int64)
        most, longest = LARGEST_SUM // max(1, self.size) * self.step, float(np.abs(values).max(initial=0.0))
        if longest > most:
            values *= most / longest
        steps = np.rint(values * in_a_unit)
        total = int(np.abs(steps).sum())  # exact: whole numbers below 2^53
        if total > self.bound:
            steps = np.trunc(steps * (self.bound / total))  # the sum errs by less than a step, and is a whole number
        return steps.astype(np.int64)

    def noised(self, bounded: Integers, *, receipt: Receipt, at: tuple[str, *tuple[int, ...]]) -> Whole:
        """What may leave the device: bounded whole steps, with noise that a receipt pays for."""
        stream = receipt.noise_stream(self, *at)
        return Whole(steps=bounded + discrete_laplace(self.scale, size=self.size, stream=stream), step=self.step)


def discrete_laplace(scale: int, *, size: int, stream: Stream) -> Integers:
    """Independent whole numbers, each z with a probability proportional to exp(-|z| / scale), exactly.

    Random words are the halves of a stream's 64 bits, the low half first, each used once and in order, about 8.5 of
    them a value.

    Edge cases: the scale is at least 1 and below 2^31; size 0 draws nothing.
    """
    word = random_words(stream, size)
    usable = _WORDS - _WORDS % scale
    return np.array([_one(word, scale, usable) for _ in range(size)], dtype=np.int64)


def random_words(stream: Stream, size: int) -> Callable[[], int]:
    """The words of a stream, one a call: the halves of its 64 bits, the low half first, for about so many values."""
    word: Callable[[], int] = chain.from_iterable(_words(stream, size)).__next__
    return word


def _words(stream: Stream, size: int) -> Iterator[list[int]]:
    block = min(_BLOCK, 5 * size + 8)
    while True:
        words: list[int] = stream.bits(block).astype("<u8", copy=False).view("<u4").tolist()
        yield words


def _one(word: Callable[[], int], scale: int, usable: int) -> int:
    """One value. The loops are written out, for calls cost more than what they would do."""
    while True:
        while True:  # a remainder u below the scale, which is kept with probability exp(-u / scale)
            remainder = word()
            while remainder >= usable:
                remainder = word()
            remainder %= scale
            trial = 1
            while True:  # Bernoulli(u / (scale * trial)) for trial = 1, 2, ... until one fails: kept if that is odd
                if trial > 1 and below(word, trial):
                    break
                drawn = word()
                while drawn >= usable:
                    drawn = word()
                if drawn % scale >= remainder:
                    break
                trial += 1
            if trial & 1:
                break
        magnitude = remainder
        while True:  # whole scales: one more with probability exp(-1)
            trial = 2
            while not below(word, trial):
                trial += 1
            if not trial & 1:
                break
            magnitude += scale
        if word() & 1:
            if magnitude:  # there is one zero
                return -magnitude
        else:
            return magnitude


def below(word: Callable[[], int], most: int) -> int:
    """A whole number from 0 to most - 1, each alike: words beyond the last full run of them are left out."""
    usable = _WORDS - _WORDS % most
    while True:
        drawn = word()
        if drawn < usable:
            return drawn % most
