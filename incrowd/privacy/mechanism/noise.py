"""Gaussian noise that hides one client, or one record, in a sum, safe on floating point.

Noise is drawn against a receipt of the ledger, and in no other way (`incrowd.privacy.ledger.receipt`). A noise
multiplier is relative to the bound of one contribution. `add` releases whole steps of a public grid
(`incrowd.privacy.mechanism.grid`), and the small price of computing with floats falls on the private side: the noise is
scaled to the bound plus a slack, about two millionths of it.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.ledger.receipt import Receipt
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.grid import Whole

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
    exact Gaussian noise, scaled to `padded(clip_norm)`, up to the error of `grid.sample_noise`. This adds at most
    size * 2^-42 to epsilon and size * 2^-61 to delta (for 532,000 numbers 1.3e-7 and 2.4e-13). The output depends on
    the sum through whole grid steps only. The grid is made from public numbers: clip_norm, noise_multiplier and size.

    Edge cases: no number moves by more than 9.4 standard deviations; an empty sum gives an empty release. A sum that is
    not finite, or larger than contributions_bound contributions can make it, is refused; so are a noise multiplier of 0
    and one too extreme for the grid.
    """

    noise_multiplier: float
    clip_norm: float

    def __post_init__(self) -> None:
        _validate.positive(noise_multiplier=self.noise_multiplier, clip_norm=self.clip_norm)

    def event(self) -> GaussianDpEvent:
        """The cost of one release."""
        return GaussianDpEvent(self.noise_multiplier)

    def add(self, total: Floats | Whole, *, receipt: Receipt, at: Purpose, contributions_bound: int) -> Whole:
        """The noised sum. `contributions_bound` is public: no sum ever holds more contributions."""
        size = check_sum(total, bound=self.clip_norm, contributions_bound=contributions_bound)
        step = self.step(size, contributions_bound=contributions_bound)
        scale, stream = self._scale(contributions_bound), receipt.noise_stream(self, *at)
        noise = grid.sample_noise(scale=scale / step, size=size, stream=stream)
        return grid.add(total, noise, step=step)

    def step(self, size: int, *, contributions_bound: int) -> float:
        """The step of the public grid for sums of so many numbers; `ConfigError` where none fits."""
        share = grid.SHARE * self.clip_norm / math.sqrt(max(1, size))  # a step a number: sqrt(size) steps in L2
        largest_sum = largest_norm(self.clip_norm, contributions_bound=contributions_bound)
        return grid.step(share=share, scale=self._scale(contributions_bound), largest_sum=largest_sum)

    def _scale(self, contributions_bound: int) -> float:
        return self.noise_multiplier * padded(self.clip_norm, contributions_bound=contributions_bound)


@dataclass(frozen=True, kw_only=True)
class RecordTraining:
    """The public settings of one round of DP-SGD in one silo (Abadi et al. 2016).

    A record takes part in each of `steps` steps with probability `sampling_prob`. The noised sum of a step's clipped
    gradients is divided by `expected_batch`, a public number: never the realised batch or the number of records. At
    most `physical_batch` records are in memory at once. `most_records` bounds the records of a silo, and so the
    rounding errors of a sum.

    Guarantee: the noise of every step is `noise_multiplier` times `sensitivity`, which the plan's event supposes.

    Edge cases: a probability of 1 takes every record in every step. Clip bounds outside of 1e-20 to 1e20 would meet the
    ends of float32 and are refused.
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
        """The step of the grid of sums of so many numbers. Edge cases: noise that fits no grid is refused, unpaid."""
        return self.noise.step(size, contributions_bound=self.most_records)

    def whole(self, total: Floats) -> Whole:
        """A silo's clipped sum of one step as it leaves for a server that adds the noise: whole steps of its grid.

        Guarantee: sums of several silos add up exactly, and one record moves them by at most `sensitivity` beside the
        rounding that the noise covers. Edge cases: a sum that its records cannot have is refused.
        """
        check_sum(total, bound=self.sensitivity, contributions_bound=self.most_records)
        step = self.grid_step(total.size)
        return Whole(steps=np.rint(total / step).astype(np.int64), step=step)

    def noised(self, total: Floats, *, receipt: Receipt, at: Purpose) -> Floats:
        """A step's clipped sum with noise on it, safe on floating point; every call costs `event`."""
        return self.noise.add(total, receipt=receipt, at=at, contributions_bound=self.most_records).values


def padded(bound: float, *, contributions_bound: int) -> float:
    """The farthest that one contribution can move a sum that was added up in float64 and rounded to the grid.

    Rounding two neighbouring sums of d numbers to the grid moves each number of each by half a step, together
    `grid.SHARE` of the bound; as much again is left for a norm that was clipped in floating point. Adding K
    vectors in any order errs by at most (K - 1) u / (1 - (K - 1) u) times the sum of their norms, u = 2^-53 (Higham
    2002, section 4.2). So two neighbours differ by at most K^2 2^-52 bounds more than real sums would (Casacuberta et
    al. 2022 attack sums without this term).
    """
    return bound * (1 + 2 * grid.SHARE + contributions_bound**2 * 2.0**-52)


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
