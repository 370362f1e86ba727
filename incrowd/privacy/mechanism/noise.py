"""What hides one client in a sum: Gaussian or Laplace noise, safe on floating point.

Noise is drawn against a receipt of the ledger, and in no other way (`incrowd.privacy.ledger.receipt`). A mechanism's
noise multiplier is relative to the bound of one contribution. What leaves `add` is a whole number of
steps of a public grid (`incrowd.privacy.mechanism.grid`), and the small price of computing with floats falls on the
private side: the noise is scaled to the bound plus a slack, about two millionths of it.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent, LaplaceDpEvent

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import DataError
from incrowd.privacy.ledger.receipt import Receipt
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.grid import Whole

Purpose = tuple[Any, ...]
"""What a draw is for, and its indices: the name of its stream."""

MOST_CONTRIBUTIONS = 2**26
"""The largest sums whose rounding errors are bounded here."""


@dataclass(frozen=True, kw_only=True)
class GaussianNoise:
    """N(0, (noise_multiplier * clip_norm)^2) on every number of a sum of contributions of L2 norm at most clip_norm.

    Guarantee: releasing `add` of a sum costs `event()`: it is a function of the sum rounded to the grid plus exact
    Gaussian noise, scaled to `padded(clip_norm)`, up to what `grid.sample_noise` allows, which adds at most size *
    2^-42 to epsilon and size * 2^-61 to delta (for 532,000 numbers 1.3e-7 and 2.4e-13). The output depends on the sum
    through whole grid steps only. The grid is made from public numbers: clip_norm, noise_multiplier and size.

    Edge cases: no number moves by more than 9.4 standard deviations; an empty sum gives an empty release; a sum that
    is not finite, or larger than contributions_bound contributions can make it, is refused; so are a noise multiplier
    of 0 (that is no private release) and one too extreme for the grid.
    """

    noise_multiplier: float
    clip_norm: float

    def __post_init__(self) -> None:
        _validate.positive(noise_multiplier=self.noise_multiplier, clip_norm=self.clip_norm)

    def event(self) -> GaussianDpEvent:
        """What one release costs."""
        return GaussianDpEvent(self.noise_multiplier)

    def add(self, total: Floats | Whole, *, receipt: Receipt, at: Purpose, contributions_bound: int) -> Whole:
        """The noised sum. `contributions_bound` is public: no sum ever holds more contributions."""
        size = check_sum(total, bound=self.clip_norm, contributions_bound=contributions_bound)
        step = self.step(size, contributions_bound=contributions_bound)
        scale, stream = self._scale(contributions_bound), receipt.noise_stream(self, *at)
        noise = grid.sample_noise(grid.NORMAL, scale=scale / step, size=size, stream=stream)
        return grid.add(total, noise, step=step)

    def step(self, size: int, *, contributions_bound: int) -> float:
        """The step of the public grid for sums of so many numbers; `ConfigError` where none fits."""
        share = grid.SHARE * self.clip_norm / math.sqrt(max(1, size))  # a step a number: sqrt(size) steps in L2
        largest_sum = largest_norm(self.clip_norm, contributions_bound=contributions_bound)
        return grid.step(share=share, scale=self._scale(contributions_bound), largest_sum=largest_sum)

    def _scale(self, contributions_bound: int) -> float:
        return self.noise_multiplier * padded(self.clip_norm, contributions_bound=contributions_bound)


@dataclass(frozen=True, kw_only=True)
class LaplaceNoise:
    """Laplace noise of scale noise_multiplier * l1_bound on a sum of contributions of L1 norm at most l1_bound.

    Guarantee: as `GaussianNoise`, with `padded(l1_bound)`: one release costs `event()`, that is an epsilon of
    1 / noise_multiplier.

    Edge cases: as `GaussianNoise`; no number moves by more than 44.5 scales.
    """

    noise_multiplier: float
    l1_bound: float

    def __post_init__(self) -> None:
        _validate.positive(noise_multiplier=self.noise_multiplier, l1_bound=self.l1_bound)

    def event(self) -> LaplaceDpEvent:
        """What one release costs."""
        return LaplaceDpEvent(self.noise_multiplier)

    def add(self, total: Floats | Whole, *, receipt: Receipt, at: Purpose, contributions_bound: int) -> Whole:
        """The noised sum. `contributions_bound` is public: no sum ever holds more contributions."""
        size = check_sum(total, bound=self.l1_bound, contributions_bound=contributions_bound)
        step = self.step(size, contributions_bound=contributions_bound)
        scale, stream = self._scale(contributions_bound), receipt.noise_stream(self, *at)
        noise = grid.sample_noise(grid.LAPLACE, scale=scale / step, size=size, stream=stream)
        return grid.add(total, noise, step=step)

    def step(self, size: int, *, contributions_bound: int) -> float:
        """The step of the public grid for sums of so many numbers; `ConfigError` where none fits."""
        share = grid.SHARE * self.l1_bound / max(1, size)  # a step a number: size steps in L1
        largest_sum = largest_norm(self.l1_bound, contributions_bound=contributions_bound)
        return grid.step(share=share, scale=self._scale(contributions_bound), largest_sum=largest_sum)

    def _scale(self, contributions_bound: int) -> float:
        return self.noise_multiplier * padded(self.l1_bound, contributions_bound=contributions_bound)


def padded(bound: float, *, contributions_bound: int) -> float:
    """How far one contribution can move a sum that was added up in float64 and rounded to the grid.

    Rounding two neighbouring sums of d numbers to the grid moves each number of each by half a step, together
    `grid.SHARE` of the bound; as much again is left for a norm that was itself clipped in floating point. Adding K
    vectors in any order errs by at most (K - 1) u / (1 - (K - 1) u) times the sum of their norms, u = 2^-53 (Higham
    2002, section 4.2), so that two neighbours differ by at most K^2 2^-52 bounds more than real sums would
    (Casacuberta et al. 2022 show what happens without this term).
    """
    return bound * (1 + 2 * grid.SHARE + contributions_bound**2 * 2.0**-52)


def largest_norm(bound: float, *, contributions_bound: int) -> float:
    """The largest norm that a sum of so many bounded contributions can have, with room for rounding."""
    return 1.000001 * contributions_bound * bound


def check_sum(total: Floats | Whole, *, bound: float, contributions_bound: int) -> int:
    """Refuse what cannot be a sum of so many bounded contributions; how many numbers it has.

    The refusal depends on private values, but only where the contract of clipping is already broken; it does not show
    them.
    """
    _validate.count(contributions_bound=contributions_bound)
    _validate.at_most(MOST_CONTRIBUTIONS, "MOST_CONTRIBUTIONS", contributions_bound=contributions_bound)
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
