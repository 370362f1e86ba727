"""Sums of independent Laplace values, exactly: what hides a number to which Laplace noise was added again and again.

A standard Laplace value is the difference of two exponential ones, so the sum of T of them is the difference of two
waiting times, each for the T-th event of a Poisson process. Where it is positive, one process has had its T-th event
while the other still lacks m of its own; m has a negative binomial distribution, and the time for m events is a gamma
value. The sum is thus a mixture of gamma values with positive weights: nothing cancels, in the far tail neither.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from incrowd import _validate
from incrowd._random import Floats

_REACH = 45
"""Poisson and negative binomial masses farther out than this many roots of the mean are below every float."""


@dataclass(frozen=True)
class LaplaceSum:
    """The sum of independent standard Laplace values (scale 1, variance 2 each).

    Guarantee: density and tail are accurate to twelve digits of their own size for up to a thousand million terms.

    Edge cases: a value below 1e-300 may be given as 0.
    """

    terms: int

    def __post_init__(self) -> None:
        _validate.count(terms=self.terms)

    def density(self, x: float) -> float:
        """The probability density at x."""
        first, masses = _poisson(abs(x), len(self._missing))
        return float(masses @ self._missing[first : first + len(masses)])

    def tail(self, x: float) -> float:
        """The probability of more than x."""
        if x < 0:
            return 1 - self.tail(-x)
        first, masses = _poisson(x, len(self._missing))
        return float(masses @ self._missing_more[first : first + len(masses)])

    @cached_property
    def _missing(self) -> Floats:
        """The probability that the sum is positive and m events are missing, for m = 1, 2, ..."""
        most = min(self.terms, math.ceil(_REACH * math.sqrt(self.terms)))
        m = np.arange(1.0, most)
        masses = np.cumprod(np.concatenate([[1.0], 2 * (self.terms - m) / (2 * self.terms - m - 1)]))
        masses *= 0.5 / masses.sum()  # the sum is positive with probability 1/2
        return masses

    @cached_property
    def _missing_more(self) -> Floats:
        """The probability that the sum is positive and more than i events are missing, for i = 0, 1, ..."""
        more: Floats = np.cumsum(self._missing[::-1])[::-1]
        return more


def _poisson(mean: float, size: int) -> tuple[int, Floats]:
    """The masses of a Poisson distribution at first, first + 1, ... below size."""
    centre = int(mean)
    reach = math.ceil(_REACH * math.sqrt(mean)) + _REACH
    up = np.cumprod(mean / np.arange(centre + 1.0, centre + reach))
    down = np.cumprod(np.arange(float(centre), max(0, centre - reach), -1.0) / max(mean, 1.0))
    masses = np.concatenate([down[::-1], [1.0], up])
    masses /= masses.sum()
    first = centre - len(down)
    return first, masses[: max(0, size - first)]
