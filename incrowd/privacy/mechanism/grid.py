"""A public grid, and Gaussian noise that is drawn on it as whole numbers.

A float that is a sum plus a noise value tells more in its low bits than the real number would (Mironov 2012). Rounding
such floats to a grid only dulls this, because a noise value computed in floating point has telling low bits too (Haney
et al. 2022). So nothing is added in floating point: the sum is rounded to whole steps of a grid, the noise is drawn as
whole steps, and the two are added as 64-bit integers.

`look` and `added` are the slow twins of `incrowd.privacy.mechanism.proposal_loops`, to the last bit.
"""

import math
import sys
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from incrowd._machine_code import LoopsOrPlain
from incrowd._random import Bits, Floats, Integers, Stream
from incrowd.errors import ConfigError, DataError

SHARE = 2.0**-20
"""The share of one contribution's bound that rounding a sum to the grid may add to the sensitivity."""

REACH = 9.3
"""A larger magnitude, in deviations, has probability at most 2^-64 and is never drawn."""

SLOTS = 2**16
SPARE = 47
"""Bits of a random word that choose neither slot nor sign."""

SlotCells = NDArray[np.uint16]

_BLOCK = 2**14  # values at a time: their arrays stay in the cache
_TOGETHER = 8  # blocks that are decided about at once
_FINE = 2.0**28  # steps in one scale of the noise: a step's probability is its density in the middle, to within 2^-53
_LARGEST_SCALE = 2.0**50
_LARGEST_SUM = 2.0**61


def step(*, share: float, scale: float, largest_sum: float) -> float:
    """The grid's step: a power of two of at most `share`, and fine compared with the noise.

    Edge cases: a largest sum or a scale that does not fit 64-bit integers in such steps is refused.
    """
    wanted = min(share, scale / _FINE)
    if not 2.0**-900 < wanted < 2.0**900 or scale > _LARGEST_SCALE * wanted or largest_sum > _LARGEST_SUM * wanted:
        raise ConfigError(
            field="noise scale",
            value=scale,
            remedy=f"it does not fit one 64-bit grid with sums of up to {largest_sum:.3g} and an accuracy of "
            f"{share:.3g}; choose a noise multiplier and a clip bound nearer 1, or fewer contributions",
        )
    return 2.0 ** math.floor(math.log2(wanted))


@dataclass(frozen=True, eq=False)
class Whole:
    """Numbers that are whole steps of a public grid."""

    steps: Integers
    step: float

    @property
    def values(self) -> Floats:
        """The numbers as floats."""
        return np.multiply(self.steps, self.step)

    def on(self, step: float) -> Integers:
        """The numbers in steps of another grid: exact on a finer grid, rounded to the nearest on a coarser one.

        Both steps are powers of two. The result depends on the whole numbers alone.
        """
        shift = math.frexp(self.step)[1] - math.frexp(step)[1]
        if shift >= 0:
            return self.steps << shift
        half = np.int64(1) << (-shift - 1)
        return (self.steps + half) >> -shift


def contribution_step(bound: float, *, contributions_bound: int) -> float:
    """The step in which at most `contributions_bound` contributions of this norm are added up.

    Guarantee: a power of two, of at most 2^-26 of the bound (2^-40 for sums of up to 4,096), in which float64 adds up
    all contributions without rounding.
    """
    room = 52 - math.ceil(math.log2(contributions_bound))
    return float(2.0 ** (math.frexp(bound)[1] - 1 - min(40, room)))


def coarse_step(bound: float) -> float:
    """The step in which float32 adds up contributions of this norm: 2^-19 to 2^-18 of it, a power of two."""
    mantissa, exponent = math.frexp(bound / 2**19)
    return float(2.0 ** (exponent - (mantissa == 0.5)))


def whole_steps(total: Floats, *, step: float) -> Floats:
    """A sum in whole steps. Edge cases: any other sum is a `DataError`, for its low bits would tell too much."""
    steps = np.divide(total, step)
    if not np.array_equal(steps, np.rint(steps)):
        raise DataError(f"a sum that is not whole steps of {step:g}: add contributions up in whole steps")
    return steps


def sample_noise(*, scale: float, size: int, stream: Stream) -> Integers:
    """The whole parts (`floor`) of independent normal values, with a standard deviation of `scale` grid steps.

    Guarantee: except with probability 2^-62 a value, every whole number has its exact probability to within a factor
    of 1 +- 2^-43, for scales of 2^28 and above: floating point enters as the chance of keeping a number, never as the
    number. Every value has 64 fresh bits of its own, and 64 more if these leave open whether it is kept.

    Edge cases: the magnitude stays below `REACH` scales and one cell; the mean is half a step below 0, of 2^28 or more
    steps in a scale; size 0 draws nothing.
    """
    cells = _Staircase.under(scale)
    values = np.empty(size, np.int64)
    filled = 0
    while filled < size:
        room = size - filled
        full = min(_TOGETHER, room // _BLOCK) * _BLOCK  # so many are proposed before the last can be kept
        filled += cells.propose(values[filled : filled + (full or room)], stream)
    return values


def add(total: Floats | Whole, noise: Integers, *, step: float) -> Whole:
    """The sum in whole steps (floats are rounded to them), plus whole steps of noise: exactly."""
    if isinstance(total, Whole):
        return Whole(steps=total.on(step) + noise, step=step)
    return Whole(steps=_LOOPS.best(len(noise)).added(total, 1 / step, noise), step=step)


def look(bits: Integers, cells: tuple[SlotCells, Integers, int], values: Integers) -> NDArray[np.int32]:
    """Write down each word's proposal, and return the places of proposals that need more bits to be decided.

    `cells`: the cell of every slot; a bound on decisions that keep any number of a cell; the bits of a cell's width.
    """
    cell, sure, width_bits = cells
    its = cell[bits >> 48 & (SLOTS - 1)]
    rest = bits & (2**SPARE - 1)
    magnitude = np.left_shift(its, width_bits, out=values, dtype=np.int64)
    magnitude += rest & (2**width_bits - 1)
    rest >>= width_bits
    undecided = np.flatnonzero(rest >= sure[its])
    magnitude ^= -(bits >> 47 & 1)  # m or -1 - m: mirrored around -1/2
    return undecided.astype(np.int32)


def added(total: Floats, in_a_unit: float, noise: Integers) -> Integers:
    """Numbers in steps of 1 / in_a_unit, to the nearest (halves to the even one), plus whole steps of noise."""
    steps = np.multiply(total, in_a_unit)
    whole = np.rint(steps, out=steps).astype(np.int64)
    whole += noise
    return whole


_LOOPS = LoopsOrPlain("incrowd.privacy.mechanism.proposal_loops", plain=sys.modules[__name__])


@dataclass(frozen=True)
class _Staircase:
    """Rejection sampling under a staircase: cells of 2^width_bits whole numbers, each owning some of 2^16 equal slots.

    A slot proposes all numbers of its cell alike, and a number is kept with probability density / (slots of the cell x
    height), which is at most 1. The slots cancel: kept numbers follow the density alone.
    """

    scale: float
    width_bits: int
    cell: SlotCells  # a slot's cell; slots that are left over have the last, which keeps nothing
    odds: Floats  # of a cell: 2^64 / (its slots x height)
    sure: Integers  # of a cell: a decision that begins with less than this keeps any of its numbers

    @classmethod
    @lru_cache(maxsize=4)  # a run draws with one scale again and again, and for small models the table is most of it
    def under(cls, scale: float) -> "_Staircase":
        width_bits = math.floor(math.log2(scale)) - 5  # a cell is 1/64 to 1/32 of the scale: about 2 % is refused
        count = math.ceil(REACH * scale / 2**width_bits)
        starts = np.arange(count) << width_bits
        tops = _density(starts / scale)
        height = tops.sum() / (SLOTS - count)
        slots = np.ceil(tops / height).astype(np.int64)  # in all at most (SLOTS - count) + count
        cell = np.full(SLOTS, count, np.uint16)
        cell[: slots.sum()] = np.repeat(np.arange(count), slots)
        odds = np.append(2.0**64 / (slots * height), 0.0)
        ends: Floats = np.append(starts + 2**width_bits, 0) / scale
        least = _density(ends) * odds * 2.0 ** (SPARE - width_bits - 64)
        return cls(scale, width_bits, cell, odds, sure=np.floor(least * (1 - 2.0**-40)).astype(np.int64))

    def propose(self, values: Integers, stream: Stream) -> int:
        """Propose a value for every place, put the kept ones to the front, and return their number."""
        work, cells = _LOOPS.best(len(values)), (self.cell, self.sure, self.width_bits)
        undecided, asked, more = [], [], []
        for begin in range(0, len(values), _BLOCK):
            room = values[begin : begin + _BLOCK]
            bits = stream.bits(len(room)).view(np.int64)
            places = work.look(bits, cells, room)
            undecided.append(places + begin)
            asked.append(bits.take(places))
            more.append(stream.bits(len(places)))
        places = np.concatenate(undecided)
        kept = self._decided(np.concatenate(asked), values.take(places), np.concatenate(more))
        left = np.delete(values, places[~kept])
        values[: len(left)] = left
        return len(left)

    def _decided(self, asked: Integers, values: Integers, more: Bits) -> NDArray[np.bool_]:
        """Whether each proposed value is kept: one comparison of real numbers with the chance, of the decision's first
        bits and 64 more.
        """
        begun = (asked & (2**SPARE - 1)) >> self.width_bits
        asked >>= 48
        asked &= SLOTS - 1
        chance = self.chances(self.cell.take(asked), values ^ (values >> 63))
        chance *= 2.0 ** (SPARE - self.width_bits)
        chance -= begun * 2.0**64
        kept: NDArray[np.bool_] = more.astype(np.float64) < chance
        return kept

    def chances(self, cell: SlotCells, magnitude: Integers) -> Floats:
        """The probability of keeping each of a cell's magnitudes, times 2^64."""
        middle = magnitude.astype(np.float64)
        middle += 0.5
        middle *= 1 / self.scale
        return _density(middle) * self.odds.take(cell)


def _density(magnitude: Floats) -> Floats:
    """The normal density at scale 1, up to a factor."""
    return np.exp(-0.5 * magnitude * magnitude)
