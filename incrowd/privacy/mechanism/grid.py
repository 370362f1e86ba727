"""A public grid, and Gaussian noise that is drawn on it as whole numbers.

A float that is a sum plus a noise value tells more in its low bits than the real number would (Mironov 2012). Rounding
such floats to a grid only dulls this, because a noise value computed in floating point has telling low bits too (Haney
et al. 2022). So nothing is added in floating point: the sum is rounded to whole steps of a grid, the noise is drawn as
whole steps, and the two are added as 64-bit integers.

Noise is drawn against a receipt of the ledger, and in no other way (`incrowd.privacy.ledger.tally.Receipt`). A noise
multiplier is relative to the bound of one contribution. The small price of computing with floats falls on the private
side: the noise is scaled to the bound plus a slack, about two millionths of it.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from dp_accounting import GaussianDpEvent
from numpy.typing import NDArray

from incrowd import _validate
from incrowd._random import Bits, Floats, Integers, Stream
from incrowd.errors import ConfigError, DataError

if TYPE_CHECKING:
    from incrowd.privacy.ledger.tally import Receipt

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
    """The grid's step: a power of two of at most `share`, fine compared with the noise, in which all fits 64 bits."""
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
    """Numbers that are whole steps of a public grid. They may be private, so none is shown."""

    steps: Integers = field(repr=False)
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
    """A sum in whole steps; any other sum is refused, for its low bits would tell too much."""
    steps = np.divide(total, step)
    if not np.array_equal(steps, np.rint(steps)):
        raise DataError(f"a sum that is not whole steps of {step:g}: add contributions up in whole steps")
    return steps


def sample_noise(*, scale: float, size: int, stream: Stream) -> Integers:
    """The whole parts (`floor`) of independent normal values, with a standard deviation of `scale` grid steps.

    Guarantee: except with probability 2^-62 a value, every whole number has its exact probability to within a factor
    of 1 +- 2^-43, for scales of 2^28 and above: floating point enters as the chance of keeping a number, never as the
    number. Every value has 64 fresh bits of its own, and 64 more if these leave open whether it is kept. The magnitude
    stays below `REACH` scales and one cell; the mean is half a step below 0.
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
    steps = np.multiply(total, 1 / step)  # exact: a power of two
    whole = np.rint(steps, out=steps).astype(np.int64)
    whole += noise
    return Whole(steps=whole, step=step)


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
        undecided, asked, more = [], [], []
        for begin in range(0, len(values), _BLOCK):
            room = values[begin : begin + _BLOCK]
            bits = stream.bits(len(room)).view(np.int64)
            places = self._look(bits, room)
            undecided.append(places + begin)
            asked.append(bits.take(places))
            more.append(stream.bits(len(places)))
        places = np.concatenate(undecided)
        kept = self._decided(np.concatenate(asked), values.take(places), np.concatenate(more))
        left = np.delete(values, places[~kept])
        values[: len(left)] = left
        return len(left)

    def _look(self, bits: Integers, values: Integers) -> Integers:
        """Write down each word's proposal, and return the places of proposals that need more bits to be decided."""
        its = self.cell[bits >> 48 & (SLOTS - 1)]
        rest = bits & (2**SPARE - 1)
        magnitude = np.left_shift(its, self.width_bits, out=values, dtype=np.int64)
        magnitude += rest & (2**self.width_bits - 1)
        rest >>= self.width_bits
        magnitude ^= -(bits >> 47 & 1)  # m or -1 - m: mirrored around -1/2
        return np.flatnonzero(rest >= self.sure[its])

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


Purpose = tuple[Any, ...]
"""The purpose of a draw and its indices: the name of its stream."""

MOST_CONTRIBUTIONS = 2**26
"""The largest sums whose rounding errors are bounded here."""

FLOAT32_RECORDS = 128
"""The most gradients that an engine may add up in float32; larger sums are added in float64."""


@dataclass(frozen=True, kw_only=True)
class GaussianNoise:
    """N(0, (noise_multiplier * clip_norm)^2) on every number of a sum of contributions of L2 norm at most clip_norm.

    Guarantee: releasing `add` of a sum costs `event()`. The release is a function of the sum rounded to the grid plus
    exact Gaussian noise, scaled to `padded(clip_norm)`, up to the error of `sample_noise`. This adds at most
    size * 2^-42 to epsilon and size * 2^-61 to delta (for 532,000 numbers 1.3e-7 and 2.4e-13). The output depends on
    the sum through whole grid steps only. The grid is made from public numbers: clip_norm, noise_multiplier and size.
    """

    noise_multiplier: float
    clip_norm: float

    def __post_init__(self) -> None:
        _validate.positive(noise_multiplier=self.noise_multiplier, clip_norm=self.clip_norm)

    def event(self) -> GaussianDpEvent:
        """The cost of one release."""
        return GaussianDpEvent(self.noise_multiplier)

    def add(self, total: Floats | Whole, *, receipt: "Receipt", at: Purpose, contributions_bound: int) -> Whole:
        """The noised sum. `contributions_bound` is public: no sum ever holds more contributions."""
        size = check_sum(total, bound=self.clip_norm, contributions_bound=contributions_bound)
        step = self.step(size, contributions_bound=contributions_bound)
        scale, stream = self.scale(contributions_bound), receipt.noise_stream(self, *at)
        noise = sample_noise(scale=scale / step, size=size, stream=stream)
        return add(total, noise, step=step)

    def step(self, size: int, *, contributions_bound: int) -> float:
        """The step of the public grid for sums of so many numbers; `ConfigError` where none fits."""
        share = SHARE * self.clip_norm / math.sqrt(max(1, size))  # a step a number: sqrt(size) steps in L2
        largest_sum = largest_norm(self.clip_norm, contributions_bound=contributions_bound)
        return step(share=share, scale=self.scale(contributions_bound), largest_sum=largest_sum)

    def scale(self, contributions_bound: int) -> float:
        """The standard deviation of the noise on sums of so many contributions."""
        return self.noise_multiplier * padded(self.clip_norm, contributions_bound=contributions_bound)


@dataclass(frozen=True, kw_only=True)
class RecordTraining:
    """The public settings of one round of DP-SGD in one silo (Abadi et al. 2016).

    A record takes part in each of `steps` steps with probability `sampling_prob`. The noised sum of a step's clipped
    gradients is divided by `expected_batch`, a public number: never the realised batch or the number of records. At
    most `physical_batch` records are in memory at once. `most_records` bounds the records of a silo, and so the
    rounding errors of a sum.

    Guarantee: the noise of every step is `noise_multiplier` times `sensitivity`, which the plan's event supposes.
    """

    steps: int
    sampling_prob: float
    expected_batch: float
    clip_norm: float
    noise_multiplier: float
    physical_batch: int = 256
    most_records: int = 2**20

    def __post_init__(self) -> None:
        _validate.count(steps=self.steps, physical_batch=self.physical_batch, most_records=self.most_records)
        _validate.probability(sampling_prob=self.sampling_prob)
        _validate.positive(
            expected_batch=self.expected_batch, clip_norm=self.clip_norm, noise_multiplier=self.noise_multiplier
        )
        if not 1e-20 <= self.clip_norm <= 1e20:
            raise ConfigError(field="clip_norm", value=self.clip_norm, remedy="give a bound from 1e-20 to 1e20")

    @property
    def sensitivity(self) -> float:
        """The farthest that one record can move a computed sum: the clip bound, and 2^-9 of it for float32 rounding.

        Adding K vectors of norm C in float32 errs by at most K^2 2^-24 C, in any order (Higham 2002, section 4.2). For
        K = 128, and for both of two neighbouring sums, this is 2^-9 C. Larger sums, in float64, err by far less.
        """
        return self.clip_norm * (1 + 2.0**-9)

    @property
    def noise(self) -> GaussianNoise:
        """The noise of a step."""
        return GaussianNoise(noise_multiplier=self.noise_multiplier, clip_norm=self.sensitivity)

    def grid_step(self, size: int) -> float:
        """The step of the grid of sums of so many numbers; noise that fits no grid is refused, unpaid."""
        return self.noise.step(size, contributions_bound=self.most_records)

    def whole(self, total: Floats) -> Whole:
        """A silo's clipped sum of one step as it leaves for a server that adds the noise: whole steps of its grid.

        Guarantee: sums of several silos add up exactly, and one record moves them by at most `sensitivity` beside the
        rounding that the noise covers.
        """
        check_sum(total, bound=self.sensitivity, contributions_bound=self.most_records)
        step = self.grid_step(total.size)
        return Whole(steps=np.rint(total / step).astype(np.int64), step=step)

    def noised(self, total: Floats, *, receipt: "Receipt", at: Purpose) -> Floats:
        """A step's clipped sum with noise on it, safe on floating point; every call costs `event`."""
        return self.noise.add(total, receipt=receipt, at=at, contributions_bound=self.most_records).values


def padded(bound: float, *, contributions_bound: int) -> float:
    """The farthest that one contribution can move a sum that was added up in float64 and rounded to the grid.

    Rounding two neighbouring sums of d numbers to the grid moves each number of each by half a step, together
    `SHARE` of the bound; as much again is left for a norm that was clipped in floating point. Adding K
    vectors in any order errs by at most (K - 1) u / (1 - (K - 1) u) times the sum of their norms, u = 2^-53 (Higham
    2002, section 4.2). So two neighbours differ by at most K^2 2^-52 bounds more than real sums would (Casacuberta et
    al. 2022 attack sums without this term).
    """
    return bound * (1 + 2 * SHARE + contributions_bound**2 * 2.0**-52)


def largest_norm(bound: float, *, contributions_bound: int) -> float:
    """The largest norm that a sum of so many bounded contributions can have, with room for rounding."""
    return 1.000001 * contributions_bound * bound


def check_sum(total: Floats | Whole, *, bound: float, contributions_bound: int) -> int:
    """Refuse anything but a sum of so many bounded contributions, and return how many numbers it has.

    The refusal depends on private values, but only if the contract of clipping is already broken; it does not show
    them.
    """
    _validate.count(contributions_bound=contributions_bound)
    _validate.at_most(MOST_CONTRIBUTIONS, "MOST_CONTRIBUTIONS", contributions_bound=contributions_bound)
    if isinstance(total, Whole) and total.steps.dtype != np.int64:
        raise DataError(f"steps of the type {total.steps.dtype}: give whole numbers of 64 bits (int64)")
    values = total.values if isinstance(total, Whole) else total
    if values.ndim != 1 or values.dtype != np.float64:
        raise DataError(f"a sum of shape {values.shape} and type {values.dtype}: give a flat float64 array")
    largest = largest_norm(bound, contributions_bound=contributions_bound)
    with np.errstate(over="ignore"):  # too large to square is too large
        # not np.dot, whose library wakes threads for it, which then wait for more, on processors that others work on
        norm = math.sqrt(np.einsum("i,i->", values, values))
    if not math.isfinite(norm):
        raise DataError("a sum that is not finite cannot be noised: clip every contribution before it is added")
    if norm > largest:
        raise DataError(
            f"a sum of norm above {largest:.6g} is not {contributions_bound} contributions of at most {bound:.6g}: "
            "clip every contribution with the bound that the noise has, and give the largest number of contributions"
        )
    return int(values.size)
