"""The limits of an honest residual, answer less parent: they follow from the public noise and the clip alone.

In units of the noise's scale an honest residual is r = s + z: z is the noise, independent in every weight, and the clip
bounds the step s. The limits are on mean |r| and mean r^2, from below and above, and on max |r|.

*Below.* |s + z| is never shorter than |z|, in distribution (Anderson 1955), so the lower limits are those of noise.
*Above.* The residuals within the upper limits are a convex set. The noise has a log-concave density, so the chance to
stay inside is a log-concave function of the step (Prekopa 1973), least at a corner of the possible steps. All corners
are alike: +-clip in every weight (a bound of each element), or in one weight (a bound of the L1 norm). For Gaussian
noise in a ball, steps spread evenly over 1, 4, 16, ... weights stand in for corners.

The share of honest answers beyond the limits is at most the sum over the limits. Long steps never come near the lower
ones, and noise alone seldom near the upper ones, so the lower ones get the larger part. A mean is a sum of |s + z| or
(s + z)^2: each weight's term goes on a grid, and a power of its Fourier transform gives exact tails, however thin.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import gammaincinv, ndtr

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.privacy.mechanism.device import Mechanism, NoiseName

LOWER_PART = 0.8  # the part of the share that the two lower limits have; the three upper ones have the rest
FEW = 32  # up to this many weights the lower limits have a closed form: near zero so short a sum is finer than any grid
CELLS = 2**16  # the number of cells of a grid
REACH = (
    12  # a grid reaches this many standard deviations of the sum to both sides, and one weight's largest term farther
)
RAREST = 1e-13  # a grid leaves out terms that any of the weights has this rarely


class ResidualLimits(NamedTuple):
    """The limits low <= mean |r| <= high, the same for mean r^2, and max |r| <= most."""

    low: float
    high: float
    low_square: float
    high_square: float
    most: float


class PossibleStep(NamedTuple):
    """A step of this length in some of the weights, and of 0 in the others."""

    weights: int
    length: float


NO_STEP = PossibleStep(0, 0.0)


def fixed_limits(mechanism: Mechanism, *, share: float) -> ResidualLimits:
    """The limits that turn away at most this share of honest answers, whatever their steps.

    Guarantee: at most `share` for every step that the mechanism allows, and at least two fifths of it for noise alone.

    Edge cases: noise ``none`` has no limits (`ConfigError`).
    """
    _validate.fraction(share=share)
    steps = _longest(mechanism)
    return _limits(mechanism.noise, mechanism.size, steps, LOWER_PART * share / 2, (1 - LOWER_PART) * share / 3)


def noise_limits(mechanism: Mechanism, *, share: float) -> ResidualLimits:
    """The limits that noise alone breaks with this chance each, or less often below with few weights."""
    _validate.fraction(share=share)
    return _limits(mechanism.noise, mechanism.size, (NO_STEP,), share, share)


def _longest(mechanism: Mechanism) -> tuple[PossibleStep, ...]:
    """The worst steps, in units of the noise's scale, rounded up to five digits so that like mechanisms share a key."""
    ratio = mechanism.clip / mechanism.noise_scale
    digit = 10.0 ** (math.floor(math.log10(ratio)) - 4)
    length = math.ceil(ratio / digit - 0.02) * digit
    if mechanism.bound == "element":
        return (PossibleStep(mechanism.size, length),)
    if mechanism.noise == "laplace":
        return (PossibleStep(1, length),)
    counts = [4**power for power in range(20) if 4**power < mechanism.size]
    return tuple(PossibleStep(count, length / math.sqrt(count)) for count in (*counts, mechanism.size))


@lru_cache(maxsize=256)
def _limits(noise: NoiseName, size: int, steps: tuple[PossibleStep, ...], below: float, above: float) -> ResidualLimits:
    """Noise alone breaks each lower limit with the first chance, the worst step each upper one with the second."""
    if noise == "none":
        raise ConfigError(field="noise", value="none", remedy="without noise there is nothing to tell answers by")
    gaussian = noise == "gaussian"
    if size <= FEW:
        low, low_square = _least(below, size, gaussian=gaussian)
    else:
        low, low_square = (_quantiles(gaussian, size, NO_STEP, power, below)[0] for power in (1, 2))
    high, high_square = (max(_quantiles(gaussian, size, step, power, above)[1] for step in steps) for power in (1, 2))
    most = max(_most(above, size, step, gaussian=gaussian) for step in steps)
    return ResidualLimits(low, high, low_square, high_square, most)


def _least(chance: float, size: int, *, gaussian: bool) -> tuple[float, float]:
    """Lower limits of mean |z| and mean z^2, in closed form.

    One of the two is a gamma distribution's quantile, and (mean |z|)^2 <= mean z^2 <= size (mean |z|)^2.
    """
    if gaussian:
        square = float(gammaincinv(size / 2, chance)) * 2 / size
        return math.sqrt(square / size), square
    mean = float(gammaincinv(size, chance)) / size
    return mean, mean * mean


def _most(chance: float, size: int, step: PossibleStep, *, gaussian: bool) -> float:
    """The limit that the largest of |s + z| breaks with this chance."""
    low, high = 0.0, step.length + 50.0 + math.log(size / chance)
    for _ in range(200):
        middle = (low + high) / 2
        kept = 0.0
        for count, length in ((step.weights, step.length), (size - step.weights, 0.0)):
            outside = _outside(middle, length, gaussian=gaussian)
            if count:
                kept += count * (math.log1p(-outside) if outside < 1 else -math.inf)
        low, high = (middle, high) if -math.expm1(kept) > chance else (low, middle)
    return high


def _outside(most: float, length: float, *, gaussian: bool) -> float:
    """The chance that |s + z| is above this, exact for small chances."""
    if gaussian:
        return float(ndtr(length - most) + ndtr(-most - length))
    near = most - length
    half = 0.5 * math.exp(-abs(near))
    return (half if near >= 0 else 1 - half) + 0.5 * math.exp(-most - length)


def _quantiles(gaussian: bool, size: int, step: PossibleStep, power: int, chance: float) -> tuple[float, float]:  # noqa: FBT001 - two calls above
    """The quantiles at `chance` and 1 - `chance` of the mean of |s + z|^power over the weights.

    With more than 32 weights both are right to within a hundredth of the chance, down to 1e-9; with fewer the upper is.
    """
    terms = [_Summand(gaussian, step.length, power, size), _Summand(gaussian, 0.0, power, size)]
    used = [(term, count) for term, count in zip(terms, (step.weights, size - step.weights), strict=True) if count]
    mean = sum(count * term.mean for term, count in used) / size
    deviation = math.sqrt(sum(count * term.variance for term, count in used))
    width = 2 * (REACH * deviation + max(term.widest for term, _ in used)) / CELLS
    frequencies = np.arange(CELLS // 2 + 1) * (2 * math.pi / CELLS)
    transform, variance_on_grid = np.ones(CELLS // 2 + 1, complex), 0.0
    for term, count in used:
        masses, term_mean, variance = term.on_grid(width)
        transform *= np.fft.rfft(masses) ** count
        variance_on_grid += count * variance
        transform *= np.exp(1j * frequencies * (count * term_mean / width % CELLS))  # the sum's grid has its mean at 0
    chances = np.roll(np.maximum(np.fft.irfft(transform, CELLS), 0.0), CELLS // 2)
    chances /= chances.sum()
    scale = deviation / math.sqrt(variance_on_grid) * width / size  # the grid adds a little variance
    ends = (np.arange(CELLS) - CELLS // 2 + 0.5) * scale  # of the cells, as distances from the mean
    low = float(np.interp(chance, np.cumsum(chances), ends))
    high = float(np.interp(chance, np.cumsum(chances[::-1]), (ends - (ends[1] - ends[0]))[::-1]))
    return mean + low, mean + high


class _Summand:
    """|s + z|^power for one weight."""

    def __init__(self, gaussian: bool, length: float, power: int, size: int) -> None:  # noqa: FBT001 - two calls above
        self._gaussian, self._length, self._power = gaussian, length, power
        reach = math.sqrt(2 * math.log(size / RAREST)) if gaussian else math.log(size / RAREST)
        self._ends = max(0.0, length - reach) ** power, (length + reach) ** power
        self.mean, self.variance = self._moments()
        self.widest = max(self._ends[1] - self.mean, self.mean - self._ends[0])

    def on_grid(self, width: float) -> tuple[Floats, float, float]:
        """The masses of cells of this width around the mean, modulo the grid, and their mean and variance."""
        first, last = (math.floor((self._ends[0] - self.mean) / width), math.ceil((self._ends[1] - self.mean) / width))
        cells = np.arange(first, last + 1)
        edges = np.maximum(self.mean + (np.arange(first, last + 2) - 0.5) * width, 0.0)
        masses = np.diff(self._within(edges ** (1 / self._power)))
        masses /= masses.sum()
        mean = float(cells @ masses) * width
        variance = float(np.square(cells * width - mean) @ masses)
        return np.bincount(cells % CELLS, masses, CELLS).astype(np.float64), mean, variance

    def _within(self, ends: Floats) -> Floats:
        """The chance that |s + z| is at most this."""
        near = ends - self._length
        if self._gaussian:
            chance: Floats = ndtr(near) - ndtr(-ends - self._length)
            return chance
        half = 0.5 * np.exp(-np.abs(near))
        laplace: Floats = np.where(near >= 0, 1 - half, half) - 0.5 * np.exp(-ends - self._length)
        return laplace

    def _moments(self) -> tuple[float, float]:
        """Mean and variance of |s + z|^power."""
        length, square = self._length, self._length**2
        if self._power == 2:
            return (1 + square, 2 + 4 * square) if self._gaussian else (2 + square, 20 + 8 * square)
        if self._gaussian:
            density = math.exp(-square / 2) / math.sqrt(2 * math.pi)
            mean = length * (1 - 2 * float(ndtr(-length))) + 2 * density
            return mean, 1 + square - mean * mean
        # The Laplace variance is 2 + s^2 - (s + e^-s)^2, without the difference of large numbers.
        return length + math.exp(-length), 2 - 2 * length * math.exp(-length) - math.exp(-2 * length)
