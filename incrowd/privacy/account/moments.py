"""The accountant of the paper's time, for comparison: moments of whole order and Markov's inequality.

This is the moments accountant of Abadi et al. (2016), by which Geyer, Klein and Nabi (2017) state their figures: the
logarithms alpha(lambda) of the moments lambda = 1..32 of the privacy loss add up over the rounds, and

    delta = min over lambda of exp(alpha(lambda) - lambda epsilon).

Its answers are true upper bounds and looser than need be, so each comes with the honest figure beside it, that is,
today's tightest, and plans are never calibrated on it. `paper_delta_bound` is not even a bound.
"""

import math
from dataclasses import dataclass

import numpy as np
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from incrowd import _validate
from incrowd.errors import UnpricedEvent
from incrowd.privacy.account.accounting import Price, Relation, delta_at, price
from incrowd.privacy.account.events import mechanisms

LAMBDAS = np.arange(1, 33)


@dataclass(frozen=True, kw_only=True)
class MomentsPrice:
    """The epsilon of the paper's accountant, and the honest price beside it."""

    epsilon: float
    honest: Price


@dataclass(frozen=True, kw_only=True)
class MomentsDelta:
    """The delta of the paper's accountant, and the honest one beside it."""

    delta: float
    honest: float


def moments_price(event: DpEvent, *, delta: float, relation: Relation = Relation.ADD_OR_REMOVE_ONE) -> MomentsPrice:
    """What the paper's accountant charges for the event, which is made of (Poisson-sampled) Gaussian releases.

    Guarantee: the paper's formula. It is an upper bound, so never below the true epsilon.

    Edge cases: nothing happened: 0. Another kind of mechanism raises `UnpricedEvent`, a relation that does not go with
    the sampling as well.
    """
    honest = price(event, delta=delta, relation=relation)
    moments = log_moments(event)
    epsilon = 0.0 if not moments.any() else max(0.0, float(np.min((moments - math.log(delta)) / LAMBDAS)))
    return MomentsPrice(epsilon=epsilon, honest=honest)


def moments_delta(event: DpEvent, *, epsilon: float, relation: Relation = Relation.ADD_OR_REMOVE_ONE) -> MomentsDelta:
    """The delta that the paper's accountant states at an epsilon: `moments_price`, asked the other way round.

    Edge cases: as `moments_price`; nothing happened: 0.
    """
    honest = delta_at(event, epsilon=epsilon, relation=relation)
    moments = log_moments(event)
    delta = 0.0 if not moments.any() else min(1.0, math.exp(float(np.min(moments - LAMBDAS * epsilon))))
    return MomentsDelta(delta=delta, honest=honest)


def log_moments(event: DpEvent) -> NDArray[np.float64]:
    """alpha(lambda) of the event for lambda = 1..32, a sum over its releases."""
    total = np.zeros(len(LAMBDAS))
    for mechanism, count in mechanisms(event):
        sampled = isinstance(mechanism, PoissonSampledDpEvent)
        release = mechanism.event if sampled else mechanism
        if not isinstance(release, GaussianDpEvent):
            raise UnpricedEvent(f"the moments accountant has no formula for {type(release).__name__}")
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


def paper_delta_bound(*, noise_multiplier: float, epsilon: float) -> float:
    """4/5 exp(-(sigma epsilon)^2 / 2), the paper's statement about one Gaussian release: no bound, for comparison only.

    Its like is proven for epsilon < 1 only (Dwork and Roth 2014, theorem 3.22, where the factor is 5/4). At the paper's
    epsilon = 8 it is too small for every sigma below 0.667: at sigma = 0.5 it says 2.7e-4, and the truth is 5.0e-4.
    Nothing in incrowd is calibrated with it.
    """
    _validate.positive(noise_multiplier=noise_multiplier, epsilon=epsilon)
    return 0.8 * math.exp(-((noise_multiplier * epsilon) ** 2) / 2)
