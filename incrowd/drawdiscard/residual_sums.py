"""The distribution of the sum of |s + z| or (s + z)^2 over many weights: z the noise, in units of its scale, s a step.

Each weight's term is put on a grid, and the sums' distribution is a power of its Fourier transform: exact tails,
however thin, without drawing anything. (The squares of Laplace noise have no moment generating function, so no formula
of large deviations would do.)
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import gammaincinv, ndtr

from incrowd._random import Floats

CELLS = 2**16
"""A grid has so many cells."""

REACH = 12
"""A grid reaches so many standard deviations of the sum to both sides, and one weight's largest term farther."""

RAREST = 1e-13
"""Terms that any of the weights has this rarely are left out."""


class PossibleStep(NamedTuple):
    """A step of this length in so many of the weights, and none in the others."""

    weights: int
    length: float


class SumTails:
    """Both tails of the mean of |s + z|^power over so many weights.

    Guarantee: `low(p)` and `high(p)` are the p- and (1 - p)-quantile, to within a hundredth of the p, down to p = 1e-9.

    Edge cases: from about 32 weights on; of fewer the sums are coarser than the grid.
    """

    def __init__(self, *, gaussian: bool, size: int, step: PossibleStep, power: int) -> None:
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
        self._places = (np.arange(CELLS) - CELLS // 2 + 0.5) * scale  # upper ends of cells, as distances from the mean
        self._below = np.cumsum(chances)
        self._above = np.cumsum(chances[::-1])[::-1]

    def low(self, chance: float) -> float:
        """What the mean is below with this chance."""
        return self._mean + float(np.interp(chance, self._below, self._places))

    def high(self, chance: float) -> float:
        """What the mean is above with this chance."""
        step = self._places[1] - self._places[0]
        return self._mean + float(np.interp(chance, self._above[::-1], (self._places - step)[::-1]))

    def above(self, mean: float) -> float:
        """The chance that the mean is above this."""
        step = self._places[1] - self._places[0]
        return float(np.interp(mean - self._mean, self._places - step, self._above))


class _Summand:
    """|s + z|^power for one weight."""

    def __init__(self, gaussian: bool, length: float, power: int, size: int) -> None:  # noqa: FBT001 - two calls above
        self._within: Callable[[Floats], Floats] = lambda ends: _within(ends, length, gaussian=gaussian)
        self._power = power
        reach = math.sqrt(2 * math.log(size / RAREST)) if gaussian else math.log(size / RAREST)
        self._ends = max(0.0, length - reach) ** power, (length + reach) ** power
        self.mean, self.variance = _moments(gaussian, length, power)
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


def chance_beyond(most: float, *, gaussian: bool, size: int, step: PossibleStep) -> float:
    """The chance that the largest of |s + z| is above this."""
    kept = 0.0
    for count, length in ((step.weights, step.length), (size - step.weights, 0.0)):
        outside = _outside(most, length, gaussian=gaussian)
        if count:
            kept += count * (math.log1p(-outside) if outside < 1 else -math.inf)
    return -math.expm1(kept)


def largest(chance: float, *, gaussian: bool, size: int, step: PossibleStep) -> float:
    """What the largest of |s + z| is above with this chance."""
    low, high = 0.0, step.length + 50.0 + math.log(size / chance)
    for _ in range(200):
        middle = (low + high) / 2
        if chance_beyond(middle, gaussian=gaussian, size=size, step=step) > chance:
            low = middle
        else:
            high = middle
    return high


def lower_bounds(chance: float, *, gaussian: bool, size: int) -> tuple[float, float]:
    """What mean |z| and mean z^2 are both above, but for this chance: sums of so few that a grid is too coarse.

    One of the two is a gamma distribution's quantile, and (mean |z|)^2 <= mean z^2 <= size (mean |z|)^2.
    """
    if gaussian:
        square = float(gammaincinv(size / 2, chance)) * 2 / size
        return math.sqrt(square / size), square
    mean = float(gammaincinv(size, chance)) / size
    return mean, mean * mean


def _within(ends: Floats, length: float, *, gaussian: bool) -> Floats:
    """The chance that |s + z| is at most this."""
    if gaussian:
        chance: Floats = ndtr(ends - length) - ndtr(-ends - length)
        return chance
    near = ends - length
    half = 0.5 * np.exp(-np.abs(near))
    upper = np.where(near >= 0, 1 - half, half)
    laplace: Floats = upper - 0.5 * np.exp(-ends - length)
    return laplace


def _outside(most: float, length: float, *, gaussian: bool) -> float:
    """The chance that |s + z| is above this, exact where it is small."""
    if gaussian:
        return float(ndtr(length - most) + ndtr(-most - length))
    near = most - length
    half = 0.5 * math.exp(-abs(near))
    return (half if near >= 0 else 1 - half) + 0.5 * math.exp(-most - length)


def _moments(gaussian: bool, length: float, power: int) -> tuple[float, float]:  # noqa: FBT001 - one call above
    """Mean and variance of |s + z|^power."""
    square = length * length
    if power == 2:
        return (1 + square, 2 + 4 * square) if gaussian else (2 + square, 20 + 8 * square)
    if gaussian:
        density = math.exp(-square / 2) / math.sqrt(2 * math.pi)
        mean = length * (1 - 2 * float(ndtr(-length))) + 2 * density
        return mean, 1 + square - mean * mean
    mean = length + math.exp(-length)
    # 2 + s^2 - (s + e^-s)^2, without the difference of large numbers
    return mean, 2 - 2 * length * math.exp(-length) - math.exp(-2 * length)
