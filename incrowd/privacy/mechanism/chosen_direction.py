"""A direction chosen among random ones, with a known chance to name another: little noise for a whole model.

A device tosses N directions without a look at its data, finds the one that points most along its gradient, and names
it, or, with a chance that epsilon allows, any other: randomised response over N answers. Whatever two tables are
behind it, and whoever knows all N directions, no answer is more than e^epsilon times as likely for one as for the
other.
Noise on each of d weights grows with d; here a contribution is one of N answers however large the model is, and a
vector of length `clip` comes out of it that on average points along the gradient. That is near the best that any
such promise allows (Bhowmick et al. 2018; directions that are tossed instead of sent: Shah et al. 2022).

All that decides is whole numbers: the coin is exp(-loss / 2^24) by comparing words (Canonne, Kamath, Steinke 2020).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from incrowd._random import Floats, Integers
from incrowd.errors import ConfigError
from incrowd.privacy.account.events import PureDpEvent
from incrowd.privacy.ledger.receipt import Receipt
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.mechanism.signs import SEED_BITS, most_along, sign_bits
from incrowd.privacy.mechanism.whole_laplace import LARGEST_SUM, below, random_words

PARTS = 2**24
"""A privacy loss is a whole number of parts of this size."""

MOST_LOSS = 64
"""No device lies less often than e to the minus this, whatever epsilon would allow."""

FEWEST, MOST = 4, 4096
"""Directions to choose from; in between there are 2 to epsilon, rounded: within 8 % of the best for it."""

FINEST, COARSEST = 40, -400
LARGEST_SIZE = 2**31
SMALLEST = 2.0**-500
"""A gradient without a larger number counts as zero: it cannot be stretched to whole numbers."""


@dataclass(frozen=True, kw_only=True)
class ChosenDirection:
    """A choice among so many directions; each number of what is released is plus or minus `length` steps.

    `loss` is what a contribution costs, in parts of 2^-24.

    Guarantee: `loss` is at most epsilon, exactly, and an answer for one table is at most e^loss times as likely as
    for any other, even to someone who knows the directions: every comparison is one of whole numbers. What is released
    is at most `clip` long (L2 norm). It is drawn against a receipt, once.

    Edge cases: a clip and a size for which no grid has room are refused (`ConfigError`). Numbers that are not finite
    count as zero. A gradient of zeros is answered like any other: what is released then has no direction.
    """

    exponent: int
    length: int
    loss: int
    candidates: int
    size: int
    of_replacing: bool = field(default=True, init=False)

    @classmethod
    def fitting(cls, *, size: int, clip: float, epsilon: float) -> "ChosenDirection":
        """The choice that this epsilon allows, in the finest steps that there is room for."""
        loss = math.floor(min(epsilon, MOST_LOSS) * PARTS)  # exact: a power of two
        candidates = min(MOST, max(FEWEST, 2 ** math.floor(min(epsilon, MOST_LOSS) + 0.5)))
        each = clip / math.sqrt(size)
        for exponent in range(FINEST, COARSEST, -1):
            length = each * 2.0**exponent * (1 - 2.0**-50)  # never longer than the clip
            if 1 <= length < LARGEST_SIZE:
                return cls(exponent=exponent, length=math.floor(length), loss=loss, candidates=candidates, size=size)
        raise ConfigError(field="clip", value=clip, remedy="no grid of whole numbers holds it: give one nearer 1")

    def event(self) -> PureDpEvent:
        """What an answer costs."""
        return PureDpEvent(self.loss / PARTS)

    @property
    def step(self) -> float:
        """The value of one step."""
        return math.ldexp(1.0, -self.exponent)

    @property
    def honest(self) -> float:
        """The chance that the direction most along the gradient is named."""
        return 1 / (1 + (self.candidates - 1) * math.exp(-self.loss / PARTS))

    @property
    def gain(self) -> float:
        """How far what is released reaches along the gradient on average, as a share of its length."""
        other = (1 - self.honest) / (self.candidates - 1)
        return (self.honest - other) * _longest_of(self.candidates) / math.sqrt(self.size)

    def bounded(self, gradient: Floats) -> Integers:
        """A gradient in whole numbers whose sizes add up to at most 2^52: only its direction is kept. Private."""
        values = np.where(np.isfinite(gradient), gradient, 0.0)
        longest = float(np.abs(values).max(initial=0.0))
        if longest < SMALLEST:
            return np.zeros(len(values), np.int64)
        unit = (LARGEST_SUM // max(1, self.size)) / longest
        return np.rint(values * unit).astype(np.int64)

    def noised(self, bounded: Integers, *, receipt: Receipt, at: tuple[str, *tuple[int, ...]]) -> Whole:
        """What may leave the device: a direction, in whole steps, that a receipt pays for."""
        stream = receipt.noise_stream(self, *at)
        named = self.named(bounded, random_words(stream, self.candidates))
        return Whole(steps=self.steps_of(named), step=self.step)

    def named(self, bounded: Integers, word: Callable[[], int]) -> int:
        """The seed of the direction that is named. Private until it is released."""
        seeds = np.array([word() % 2**SEED_BITS for _ in range(self.candidates)], np.int64)
        best = most_along(seeds, bounded.astype(np.float64))
        while True:  # each of the others is named exp(-loss) times as often as the best
            chosen = below(word, self.candidates)
            if survives(word, self.loss) or chosen == best:
                return int(seeds[chosen])

    def steps_of(self, seed: int) -> Integers:
        """What is released where a seed is named."""
        bits = sign_bits(np.array([seed], np.int64), self.size)[0]
        steps: Integers = self.length * (2 * bits.astype(np.int64) - 1)
        return steps


def survives(word: Callable[[], int], loss: int) -> bool:
    """True with probability exp(-loss / 2^24), exactly."""
    for _ in range(loss // PARTS):  # written out: it is most of what a device computes where epsilon is large
        if not _survives(word, PARTS):
            return False
    return _survives(word, loss % PARTS)


def _survives(word: Callable[[], int], part: int) -> bool:
    """The same for a loss of at most 1: Bernoulli(part / (2^24 trial)) for trial = 1, 2, ... until one fails."""
    trial = 1  # PARTS divides the number of words, so that no word is left out for it
    while (trial == 1 or below(word, trial) == 0) and word() % PARTS < part:
        trial += 1
    return trial % 2 == 1


@lru_cache(maxsize=16)
def _longest_of(count: int) -> float:
    """The expected largest of so many standard normal numbers."""
    from scipy.special import ndtr

    grid = np.linspace(-10.0, 10.0, 20_001)
    return float(np.trapezoid(1 - ndtr(grid) ** count, grid) - 10.0)
