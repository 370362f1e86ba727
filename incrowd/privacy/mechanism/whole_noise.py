"""Noise of devices in whole numbers: Laplace noise, and a direction chosen among random ones.

All decisions compare whole numbers below 2^53, drawn from random words (Canonne, Kamath, Steinke 2020): every language
gives the same bits for the same words (docs/devices.md), and nothing is left to rounding.

The value of a step is a power of two, chosen from public numbers. For Laplace noise a gradient is rounded to steps
*before* it is bounded, so its sensitivity is a whole number D; noise of a whole scale p of at least D / epsilon then
costs at most epsilon, exactly.

For a direction a device tosses N directions without a look at its data, and names the one that points most along its
gradient or, with a chance that epsilon allows, any other: randomised response over N answers. For any two tables, and
an attacker who knows all N directions, no answer is more than e^epsilon times as likely for one as for the other. Noise
on each of d weights grows with d; here a contribution is one of N answers however large the model is, and a vector of
length `clip` that on average points along the gradient. That is near the best that any such promise allows (Bhowmick et
al. 2018; directions that are tossed instead of sent: Shah et al. 2022).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from dp_accounting import LaplaceDpEvent
from numpy.typing import NDArray

from incrowd._random import Floats, Integers, Stream
from incrowd.errors import ConfigError
from incrowd.privacy.account.events import PureDpEvent
from incrowd.privacy.mechanism.grid import Whole

if TYPE_CHECKING:
    from incrowd.privacy.ledger.tally import Receipt

FINEST, COARSEST = 40, -400
"""Steps are between 2 to the minus these."""

LARGEST_BOUND = 2**40
LARGEST_SCALE = 2**31  # of noise, and the length of a direction's numbers
LARGEST_SUM = 2**52
"""Magnitudes before the bound add up to at most this many steps, so floats that hold them are exact."""

PARTS = 2**24
"""A privacy loss is a whole number of parts of this size."""

MOST_LOSS = 64
"""No device lies less often than e to the minus this, whatever epsilon would allow."""

FEWEST, MOST = 4, 4096
"""Directions to choose from; in between there are 2 to epsilon, rounded: within 8 % of the best for it."""

SEED_BITS = 20
"""Bits of a direction's seed: a million directions reach every corner of a model, and none lies close to a wished one
(docs/draw-and-discard.md).
"""

SignBits = NDArray[np.uint8]
Place = tuple[str, *tuple[int, ...]]

_SMALLEST = 2.0**-500  # a gradient without a larger number counts as zero: it cannot be stretched to whole numbers
_WORDS = 2**32
_BLOCK = 2**12  # of 64 bits, at a time
_AT_ONCE = 2**22  # signs in memory


@dataclass(frozen=True, kw_only=True)
class _WholeSteps:
    """A release of so many numbers in whole steps of 2^-exponent, about a table of which all may be replaced."""

    exponent: int
    size: int
    of_replacing: bool = field(default=True, init=False)

    @property
    def step(self) -> float:
        """The value of one step."""
        return math.ldexp(1.0, -self.exponent)


@dataclass(frozen=True, kw_only=True)
class WholeLaplace(_WholeSteps):
    """A bound on so many numbers, in whole steps of 2^-exponent, and noise of a whole scale.

    `joint` bounds the numbers together (their L1 norm), otherwise each is bounded alone.

    Guarantee: `fitting` gives the finest steps that there is room for, with a bound of at most the clip and a scale of
    at least `distance` / epsilon, exactly, so that a release costs at most epsilon. `bounded` is within the bound for
    any gradient: numbers that are not finite count as zero, and a joint gradient too long for whole numbers is
    shortened first. The noise has exactly the probabilities P(z) = (1 - q) / (1 + q) q^|z|, q = exp(-1 / scale). It is
    drawn against a receipt, once.
    """

    bound: int
    scale: int
    joint: bool

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
        """The cost of all numbers together, where any gradient may be replaced by any other."""
        return LaplaceDpEvent(self.scale / (2 * self.bound * (1 if self.joint else self.size)))

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

    def noised(self, bounded: Integers, *, receipt: "Receipt", at: Place) -> Whole:
        """The release: bounded whole steps, with noise that a receipt pays for."""
        noise = discrete_laplace(self.scale, size=self.size, stream=receipt.noise_stream(self, *at))
        return Whole(steps=bounded + noise, step=self.step)


@dataclass(frozen=True, kw_only=True)
class ChosenDirection(_WholeSteps):
    """A choice among so many directions; each number of a release is plus or minus `length` steps.

    `loss` is the cost of a contribution, in parts of 2^-24.

    Guarantee: `loss` is at most epsilon, exactly, and an answer for one table is at most e^loss times as likely as
    for any other, even to someone who knows the directions. A release is at most `clip` long (L2 norm). It is drawn
    against a receipt, once. Numbers that are not finite count as zero, and a gradient of zeros is answered like others.
    """

    length: int
    loss: int
    candidates: int

    @classmethod
    def fitting(cls, *, size: int, clip: float, epsilon: float) -> "ChosenDirection":
        """The choice that this epsilon allows, in the finest steps that there is room for."""
        loss = math.floor(min(epsilon, MOST_LOSS) * PARTS)  # exact: a power of two
        candidates = min(MOST, max(FEWEST, 2 ** math.floor(min(epsilon, MOST_LOSS) + 0.5)))
        each = clip / math.sqrt(size)
        for exponent in range(FINEST, COARSEST, -1):
            length = each * 2.0**exponent * (1 - 2.0**-50)  # never longer than the clip
            if 1 <= length < LARGEST_SCALE:
                return cls(exponent=exponent, length=math.floor(length), loss=loss, candidates=candidates, size=size)
        raise ConfigError(field="clip", value=clip, remedy="no grid of whole numbers holds it: give one nearer 1")

    def event(self) -> PureDpEvent:
        """The cost of an answer."""
        return PureDpEvent(self.loss / PARTS)

    @property
    def honest(self) -> float:
        """The probability of naming the direction most along the gradient."""
        return 1 / (1 + (self.candidates - 1) * math.exp(-self.loss / PARTS))

    @property
    def gain(self) -> float:
        """The mean reach of a release along the gradient, as a share of its length."""
        other = (1 - self.honest) / (self.candidates - 1)
        return (self.honest - other) * _longest_of(self.candidates) / math.sqrt(self.size)

    def bounded(self, gradient: Floats) -> Integers:
        """A gradient in whole numbers whose sizes add up to at most 2^52: only its direction is kept. Private."""
        values = np.where(np.isfinite(gradient), gradient, 0.0)
        longest = float(np.abs(values).max(initial=0.0))
        if longest < _SMALLEST:
            return np.zeros(len(values), np.int64)
        unit = (LARGEST_SUM // max(1, self.size)) / longest
        return np.rint(values * unit).astype(np.int64)

    def noised(self, bounded: Integers, *, receipt: "Receipt", at: Place) -> Whole:
        """The release: a direction, in whole steps, that a receipt pays for."""
        stream = receipt.noise_stream(self, *at)
        named = self.named(bounded, random_words(stream, self.candidates))
        return Whole(steps=self.steps_of(named), step=self.step)

    def named(self, bounded: Integers, word: Callable[[], int]) -> int:
        """The seed of the named direction. Private until it is released."""
        seeds = np.array([word() % 2**SEED_BITS for _ in range(self.candidates)], np.int64)
        best = most_along(seeds, bounded.astype(np.float64))
        while True:  # each of the others is named exp(-loss) times as often as the best
            chosen = below(word, self.candidates)
            if survives(word, self.loss) or chosen == best:
                return int(seeds[chosen])

    def steps_of(self, seed: int) -> Integers:
        """The release that names this seed."""
        bits = sign_bits(np.array([seed], np.int64), self.size)[0]
        steps: Integers = self.length * (2 * bits.astype(np.int64) - 1)
        return steps


# Coins and values from random words


def random_words(stream: Stream, size: int) -> Callable[[], int]:
    """The words of a stream, one a call: the halves of its 64 bits, the low half first, for about so many values."""
    word: Callable[[], int] = chain.from_iterable(_words(stream, size)).__next__
    return word


def _words(stream: Stream, size: int) -> Iterator[list[int]]:
    block = min(_BLOCK, 5 * size + 8)
    while True:
        words: list[int] = stream.bits(block).astype("<u8", copy=False).view("<u4").tolist()
        yield words


def below(word: Callable[[], int], most: int) -> int:
    """A whole number from 0 to most - 1, each alike: words beyond the last full run of them are left out."""
    usable = _WORDS - _WORDS % most
    while True:
        drawn = word()
        if drawn < usable:
            return drawn % most


def discrete_laplace(scale: int, *, size: int, stream: Stream) -> Integers:
    """Independent whole numbers, each z with a probability proportional to exp(-|z| / scale), exactly; the scale is at
    least 1 and below 2^31. A value takes about 8.5 random words, each used once and in order.
    """
    word = random_words(stream, size)
    return np.array([_laplace(word, scale) for _ in range(size)], dtype=np.int64)


def _laplace(word: Callable[[], int], scale: int) -> int:
    while True:
        magnitude = below(word, scale)  # is kept with probability exp(-magnitude / scale)
        if not _holds(word, partial(_is_less, word, scale, magnitude)):
            continue
        while _holds(word, _always):  # whole scales: one more with probability exp(-1)
            magnitude += scale
        if word() % 2 == 0:
            return magnitude
        if magnitude:  # there is one zero
            return -magnitude


def survives(word: Callable[[], int], loss: int) -> bool:
    """True with probability exp(-loss / 2^24), exactly."""
    parts = (*[PARTS] * (loss // PARTS), loss % PARTS)
    return all(_holds(word, partial(_is_less, word, PARTS, part)) for part in parts)  # PARTS divides 2^32


def _holds(word: Callable[[], int], coin: Callable[[], bool]) -> bool:
    """True with probability exp(-x) for a coin of chance x: a coin of chance x / trial is tossed for trial = 1, 2, ...
    until one fails, and the last trial is odd.
    """
    trial = 1
    while (trial == 1 or below(word, trial) == 0) and coin():
        trial += 1
    return trial % 2 == 1


def _is_less(word: Callable[[], int], most: int, bound: int) -> bool:
    return below(word, most) < bound


def _always() -> bool:
    return True


@lru_cache(maxsize=16)
def _longest_of(count: int) -> float:
    """The expected largest of so many standard normal numbers."""
    from scipy.special import ndtr

    grid = np.linspace(-10.0, 10.0, 20_001)
    return float(np.trapezoid(1 - ndtr(grid) ** count, grid) - 10.0)


# Directions: +1 or -1 for every weight, from a seed. The first 20 signs are the seed, so a direction reveals its seed.


def sign_bits(seeds: Integers, size: int) -> SignBits:
    """The signs of these seeds' directions, [seeds, size]: 1 is +1 and 0 is -1.

    Word i (from 1) of a seed is mixed(mixed(seed) xor mixed(i)); its lowest bit comes first.
    """
    count = -(-max(0, size - SEED_BITS) // 32)
    of_seed, of_place = _mixed(seeds.astype(np.uint32)), _mixed(np.arange(1, count + 1, dtype=np.uint32))
    words = _mixed(of_seed[:, None] ^ of_place[None, :])
    following = np.unpackbits(words.astype("<u4").view(np.uint8), axis=1, bitorder="little")
    first = ((seeds[:, None] >> np.arange(SEED_BITS)) & 1).astype(np.uint8)
    return np.concatenate([first, following], axis=1)[:, :size]


def _mixed(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Each word mixed alone, one to one (the last steps of MurmurHash3, which are in the public domain)."""
    words = words ^ (words >> np.uint32(16))
    words = words * np.uint32(0x85EBCA6B)
    words = words ^ (words >> np.uint32(13))
    words = words * np.uint32(0xC2B2AE35)
    return words ^ (words >> np.uint32(16))


def seed_of(bits: SignBits) -> int:
    """The seed of the direction that begins with these signs."""
    return int(bits[:SEED_BITS].astype(np.int64) @ (1 << np.arange(len(bits[:SEED_BITS]))))


def most_along(seeds: Integers, gradient: Floats) -> int:
    """The place of the seed whose direction points most along a gradient of whole numbers; the first, of several.

    Sums are exact if the sizes of the numbers add up to at most 2^52. Private.
    """
    each = max(1, _AT_ONCE // max(1, len(gradient)))
    parts = [seeds[start : start + each] for start in range(0, len(seeds), each)]
    sums = [sign_bits(part, len(gradient)).astype(np.float64) @ gradient for part in parts]
    return int(np.argmax(np.concatenate(sums)))
