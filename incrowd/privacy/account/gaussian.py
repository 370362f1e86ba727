"""GDP: the exact curve of the Gaussian mechanism, for releases about everyone (Balle and Wang 2018, theorem 8)."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from dp_accounting.dp_event import GaussianDpEvent
from scipy.optimize import brentq
from scipy.special import log_ndtr

from incrowd._random import Floats
from incrowd.privacy.account.events import RepeatedEvent


class GaussianCurve:
    """What Gaussian releases about everyone cost together, exactly.

    Edge cases: beyond mu = 10^4 (an epsilon of some 5 * 10^7) nothing is proven: epsilon is infinite and delta 1. No
    epsilon goes with a delta of 0.
    """

    def __init__(self, runs: Sequence[RepeatedEvent]) -> None:
        self.mu = math.hypot(*(math.sqrt(count) / gaussian.noise_multiplier for gaussian, count in runs))

    @staticmethod
    def supports(runs: Sequence[RepeatedEvent]) -> bool:
        """Whether these are Gaussian releases about everyone, or nothing at all."""
        return all(isinstance(mechanism, GaussianDpEvent) for mechanism, _ in runs)

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`. The root is moved up by more than its error."""
        return _epsilon(self.mu, delta)

    def delta(self, epsilon: float) -> float:
        """See `Curve.delta`."""
        if self.mu == 0:
            return 0.0
        if self.mu > 1e4:
            return 1.0
        return min(1.0, math.exp(log_delta(self.mu, epsilon)))


@lru_cache(maxsize=4096)
def _epsilon(mu: float, delta: float) -> float:
    """Searches and ledgers ask for the same again and again, and an answer takes a millisecond."""
    if mu == 0:
        return 0.0
    if mu > 1e4 or delta == 0:
        return math.inf
    target = math.log(delta)

    def excess(epsilon: float) -> float:
        return max(float(log_delta(mu, epsilon)) - target, -50.0)

    if excess(0.0) <= 0:
        return 0.0
    above = 1.0
    while excess(above) > 0:
        above *= 2
    root: float = brentq(excess, 0.0, above, xtol=1e-12)
    return root * (1 + 1e-14) + 2e-12


def log_delta(mu: float, epsilon: float | Floats) -> Floats:
    """The logarithm of the exact delta at each epsilon, for two normal distributions that are mu > 0 deviations apart.

    Guarantee: never below the true value: it is moved up by what rounding may have taken from a difference of nearly
    equal terms.
    """
    at = np.asarray(epsilon, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # far out, nothing minus nothing, which is nothing
        above = np.asarray(log_ndtr(mu / 2 - at / mu))
        below = at + log_ndtr(-mu / 2 - at / mu)
        slack = 1e-15 * (2 + abs(above) + abs(below) + at)
        bound: Floats = above + slack + np.log(-np.expm1(below - slack - above))
    return np.where(above == -np.inf, -np.inf, bound)
