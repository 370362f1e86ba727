"""The moments accountant of Abadi et al. (2016), by which Geyer, Klein and Nabi (2017) state their figures.

The logarithms alpha(lambda) of the moments lambda = 1..32 of the privacy loss add up over the rounds, and

    delta = min over lambda of exp(alpha(lambda) - lambda epsilon).

Its figures are upper bounds, looser than today's. No plan is calibrated on them.
"""

import math

import numpy as np
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from incrowd.privacy.account import mechanisms

LAMBDAS = np.arange(1, 33)


def moments_epsilon(event: DpEvent, *, delta: float) -> float:
    """The accountant's epsilon for (Poisson-sampled) Gaussian releases.

    Edge cases: an empty event costs 0. Another kind of mechanism raises `TypeError`.
    """
    moments = log_moments(event)
    return 0.0 if not moments.any() else max(0.0, float(np.min((moments - math.log(delta)) / LAMBDAS)))


def moments_delta(event: DpEvent, *, epsilon: float) -> float:
    """The accountant's delta at an epsilon: the inverse of `moments_epsilon`."""
    moments = log_moments(event)
    return 0.0 if not moments.any() else min(1.0, math.exp(float(np.min(moments - LAMBDAS * epsilon))))


def log_moments(event: DpEvent) -> NDArray[np.float64]:
    """alpha(lambda) of the event for lambda = 1..32, a sum over its releases."""
    total = np.zeros(len(LAMBDAS))
    for mechanism, count in mechanisms(event):
        sampled = isinstance(mechanism, PoissonSampledDpEvent)
        release = mechanism.event if sampled else mechanism
        if not isinstance(release, GaussianDpEvent):
            raise TypeError(f"the moments accountant has no formula for {type(release).__name__}")
        sampling_prob = mechanism.sampling_probability if sampled else 1.0
        total += count * np.array(
            [_log_moment(sampling_prob, release.noise_multiplier, int(order)) for order in LAMBDAS + 1]
        )
    return total


def _log_moment(sampling_prob: float, noise_multiplier: float, order: int) -> float:
    """The logarithm of E[(mixture / noise)^order] under the noise alone, a binomial sum in log space.

    With order = lambda + 1 it is the moment of the direction that always dominates (Mironov, Talwar and Zhang 2019,
    theorem 5; formula: their section 3.3).
    """
    k = np.arange(order + 1)
    log_choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_left_out = np.where(k == order, 0.0, (order - k) * np.log1p(-sampling_prob))
    log_terms = log_choose + log_left_out + k * math.log(sampling_prob) + (k * k - k) / (2 * noise_multiplier**2)
    return max(0.0, float(logsumexp(log_terms)))
