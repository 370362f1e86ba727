"""Limits for what an honest answer leaves when its parent is taken off: from the public noise and the clip alone.

In units of the noise's scale an honest residual is r = s + z: z the noise, independent in every weight, s a step that
the clip bounds. Three statistics are looked at: mean |r| and mean r^2, each with a lower and an upper limit, and
max |r|. No pool is simulated, because the residual does not depend on one; gamma and merging do not enter either.

*Below.* |s + z| is never shorter than |z|, in distribution (Anderson 1955), so lower limits are those of noise alone.
*Above.* What all upper limits let through is a convex set, and the noise has a log-concave density, so the chance to
stay inside is a log-concave function of the step (Prekopa 1973): it is least at a corner of the set of possible steps.
All corners are alike: +-clip in every weight (a bound of each element), or +-clip in one weight and nothing elsewhere
(a bound of the L1 norm). A ball has no corners: for Gaussian noise with a bound of the norm, steps spread evenly over
1, 4, 16, ... weights are tried.

So for every step the share of honest answers turned away is at most what noise alone gets below plus what the longest
step gets above, and each of the two is at most the sum over its limits. Long steps never come near the lower limits,
and noise alone seldom near the upper ones, so the lower ones get the larger part.

Means have the distribution of a sum of |s + z| or (s + z)^2. Each weight's term is put on a grid, and the sum's
distribution is a power of its Fourier transform: exact tails, however thin, without drawing anything. (The squares of
Laplace noise have no moment generating function, so no formula of large deviations would do.)
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import gammaincinv, ndtr

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.privacy.mechanism.device import Mechanism

LOWER_PART = 0.8
"""So much of the share the two lower limits may turn away together; the three upper ones have the rest."""

FEW = 32
"""Up to so many weights lower limits are bounds in closed form: near zero so short a sum is finer than any grid."""

CELLS = 2**16
"""A grid has so many cells."""

REACH = 12
"""A grid reaches so many standard deviations of the sum to both sides, and one weight's largest term farther."""

RAREST = 1e-13
"""Terms that any of the weights has this rarely are left out."""


class ResidualLimits(NamedTuple):
    """What is let through: low <= mean |r| <= high, the same for mean r^2, and max |r| <= most."""

    low: float
    high: float
    low_square: float
    high_square: float
    most: float


class PossibleStep(NamedTuple):
    """A step of this length in so many of the weights, and none in the others."""

    weights: int
    length: float


NO_STEP = PossibleStep(0, 0.0)


def fixed_limits(mechanism: Mechanism, *, share: float) -> ResidualLimits:
    """The limits that turn away at most this share of honest answers, whatever their steps.

    Guarantee: at most `share` for every step that the mechanism allows, and at least two fifths of it for noise alone.
    The same question has the same answer, always.

    Edge cases: noise ``none`` leaves nothing to look at (`ConfigError`).
    """
    _validate.fraction(share=share)
    return _limits(mechanism, _longest(mechanism), LOWER_PART * share / 2, (1 - LOWER_PART) * share / 3)


def noise_limits(mechanism: Mechanism, *, share: float) -> ResidualLimits:
    """The limits of which noise alone breaks each with this chance, or less often below with few weights."""
    _validate.fraction(share=share)
    return _limits(mechanism, (NO_STEP,), share, share)


def _limits(mechanism: Mechanism, steps: tuple[PossibleStep, ...], below: float, above: float) -> ResidualLimits:
    if mechanism.noise == "none":
        raise ConfigError(field="noise", value="none", remedy="without noise there is nothing to tell answers by")
    return _computed(mechanism.noise == "gaussian", mechanism.size, steps, below, above)


def _longest(mechanism: Mechanism) -> tuple[PossibleStep, ...]:
    """The worst steps, in units of the noise's scale."""
    length = _rounded_up(mechanism.clip / mechanism.noise_scale)  # so that like mechanisms have one key
    if mechanism.bound == "element":
        return (PossibleStep(mechanism.size, length),)
    if mechanism.noise == "laplace":
        return (PossibleStep(1, length),)
    counts = [4**power for power in range(20) if 4**power < mechanism.size]
    return tuple(PossibleStep(count, length / math.sqrt(count)) for count in (*counts, mechanism.size))


def _rounded_up(ratio: float) -> float:
    """To five digits, unless next to nothing of the last one is lacking."""
    digit = 10.0 ** (math.floor(math.log10(ratio)) - 4)
    return math.ceil(ratio / digit - 0.02) * digit


@lru_cache(maxsize=256)
def _computed(
    gaussian: bool,  # noqa: FBT001 - a cache's key
    size: int,
    steps: tuple[PossibleStep, ...],
    below: float,
    above: float,
) -> ResidualLimits:
    """Noise alone breaks each lower limit with one chance, the worst of the steps each upper one with the other."""
    if size <= FEW:
        low, low_square = _least(below, size, gaussian=gaussian)
    else:
        low, low_square = (SumTails(gaussian, size, NO_STEP, power).low(below) for power in (1, 2))
    high, high_square = (max(SumTails(gaussian, size, step, power).high(above) for step in steps) for power in (1, 2))
    most = max(_most(above, size, step, gaussian=gaussian) for step in steps)
    return ResidualLimits(low, high, low_square, high_square, most)


def _least(chance: float, size: int, *, gaussian: bool) -> tuple[float, float]:
    """What mean |z| and mean z^2 are both above, but for this chance.

    One of the two is a gamma distribution's quantile, and (mean |z|)^2 <= mean z^2 <= size (mean |z|)^2.
    """
    if gaussian:
        square = float(gammaincinv(size / 2, chance)) * 2 / size
        return math.sqrt(square / size), square
    mean = float(gammaincinv(size, chance)) / size
    return mean, mean * mean


def _most(chance: float, size: int, step: PossibleStep, *, gaussian: bool) -> float:
    """What the largest of |s + z| is above with this chance."""
    low, high = 0.0, step.length + 50.0 + math.log(size / chance)
    for _ in range(200):
        middle = (low + high) / 2
        beyond = _chance_beyond(middle, size, step, gaussian=gaussian)
        low, high = (middle, high) if beyond > chance else (low, middle)
    return high


def _chance_beyond(most: float, size: int, step: PossibleStep, *, gaussian: bool) -> float:
    """The chance that the largest of |s + z| is above this."""
    kept = 0.0
    for count, length in ((step.weights, step.length), (size - step.weights, 0.0)):
        outside = _outside(most, length, gaussian=gaussian)
        if count:
            kept += count * (math.log1p(-outside) if outside < 1 else -math.inf)
    return -math.expm1(kept)


def _outside(most: float, length: float, *, gaussian: bool) -> float:
    """The chance that |s + z| is above this, exact where it is small."""
    if gaussian:
        return float(ndtr(length - most) + ndtr(-most - length))
    near = most - length
    half = 0.5 * math.exp(-abs(near))
    return (half if near >= 0 else 1 - half) + 0.5 * math.exp(-most - length)


class SumTails:
    """Both tails of the mean of |s + z|^power over so many weights.

    Guarantee: with more than 32 weights `low(p)` and `high(p)` are the p- and (1 - p)-quantile, to within a hundredth
    of the p, down to p = 1e-9; with fewer, `high` is.
    """

    def __init__(self, gaussian: bool, size: int, step: PossibleStep, power: int) -> None:  # noqa: FBT001 - two calls above
        terms = [_Summand(gaussian, step.length, power, size), _Summand(gaussian, 0.0, power, size)]
        counts = [step.weights, size - step.weights]
        used = [(term, count) for term, count in zip(terms, counts, strict=True) if count]
        self._mean = sum(count * term.mean for term, count in used) / size
        deviation = math.sqrt(sum(count * term.variance for term, count in used))
        span = 2 * (REACH * deviation + max(term.widest for term, _ in used))
        width = span / CELLS
        transform = np.ones(CELLS // 2 + 1, complex)
        on_grid = 0.0
        for term, count in used:
            masses, mean, variance = term.on_grid(width)
            transform *= np.fft.rfft(masses) ** count
            on_grid += count * variance
            # The sum's grid has its own mean 0: a term's mean on the grid is taken off in the phase.
            frequencies = np.arange(CELLS // 2 + 1) * (2 * math.pi / CELLS)
            transform *= np.exp(1j * frequencies * (count * mean / width % CELLS))
        chances = np.maximum(np.fft.irfft(transform, CELLS), 0.0)
        chances = np.roll(chances, CELLS // 2)
        chances /= chances.sum()
        scale = deviation / math.sqrt(on_grid) * width / size  # the grid's variance is a little more than the true one
        self._upper = (np.arange(CELLS) - CELLS // 2 + 0.5) * scale  # ends of cells, as distances from the mean
        self._lower = self._upper - (self._upper[1] - self._upper[0])
        self._below = np.cumsum(chances)
        self._above = np.cumsum(chances[::-1])[::-1]

    def low(self, chance: float) -> float:
        """What the mean is below with this chance."""
        return self._mean + float(np.interp(chance, self._below, self._upper))

    def high(self, chance: float) -> float:
        """What the mean is above with this chance."""
        return self._mean + float(np.interp(chance, self._above[::-1], self._lower[::-1]))


class _Summand:
    """|s + z|^power for one weight."""

    def __init__(self, gaussian: bool, length: float, power: int, size: int) -> None:  # noqa: FBT001 - two calls above
        self._gaussian, self._length, self._power = gaussian, length, power
        reach = math.sqrt(2 * math.log(size / RAREST)) if gaussian else math.log(size / RAREST)
        self._ends = max(0.0, length - reach) ** power, (length + reach) ** power
        self.mean, self.variance = self._moments()
        self.widest = max(self._ends[1] - self.mean, self.mean - self._ends[0])

    def on_grid(self, width: float) -> tuple[Floats, float, float]:
        """The chances of cells of this width round the mean, going round; and their mean and variance."""
        first = math.floor((self._ends[0] - self.mean) / width)
        last = math.ceil((self._ends[1] - self.mean) / width)
        cells = np.arange(first, last + 1)
        edges = np.maximum(self.mean + (np.arange(first, last + 2) - 0.5) * width, 0.0)
        masses = np.diff(self._within(edges ** (1 / self._power)))
        masses /= masses.sum()
        mean = float(cells @ masses) * width
        variance = float(np.square(cells * width - mean) @ masses)
        round_table = np.zeros(CELLS)
        np.add.at(round_table, cells % CELLS, masses)
        return round_table, mean, variance

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
        mean = length + math.exp(-length)
        # 2 + s^2 - (s + e^-s)^2, without the difference of large numbers
        return mean, 2 - 2 * length * math.exp(-length) - math.exp(-2 * length)
