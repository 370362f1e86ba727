"""The Gaussian mechanism: the exact curve about everyone (GDP), and privacy loss distributions about a sample."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from scipy.optimize import brentq
from scipy.special import log_ndtr

from incrowd._random import Floats
from incrowd.privacy.account.events import RepeatedEvent

_TAIL = 12.0  # deviations: a larger value has a probability below 2e-33, and counts as an infinite loss
_SLACK = 1e-9  # far more, relative to delta, than all rounding of the differences taken here


class GaussianCurve:
    """The exact privacy curve of Gaussian releases about everyone (Balle and Wang 2018, theorem 8).

    Edge cases: beyond mu = 10^4 (an epsilon of some 5 * 10^7) nothing is proven: epsilon is infinite and delta 1. A
    delta of 0 has no finite epsilon.
    """

    def __init__(self, runs: Sequence[RepeatedEvent]) -> None:
        self.mu = math.hypot(*(math.sqrt(count) / gaussian.noise_multiplier for gaussian, count in runs))

    @staticmethod
    def supports(runs: Sequence[RepeatedEvent]) -> bool:
        """Whether all of these are Gaussian releases about everyone."""
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
    """The epsilon of one Gaussian; searches and ledgers repeat a question, and one answer takes a millisecond."""
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

    Guarantee: never below the true value: a slack covers the rounding of a difference of nearly equal terms.
    """
    at = np.asarray(epsilon, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # far out, both terms vanish
        above = np.asarray(log_ndtr(mu / 2 - at / mu))
        below = at + log_ndtr(-mu / 2 - at / mu)
        slack = 1e-15 * (2 + abs(above) + abs(below) + at)
        bound: Floats = above + slack + np.log(-np.expm1(below - slack - above))
    return np.where(above == -np.inf, -np.inf, bound)


def poisson_loss(noise_multiplier: float, *, sampling_prob: float, grid: float) -> PrivacyLossDistribution:
    """The loss distributions of a Gaussian release about a Poisson sample, for one client less and one more.

    They are dp_accounting's `from_gaussian_mechanism`: chords of the hockey-stick divergence between the points of a
    grid (Doroshenko et al. 2022). dp_accounting computes tens of thousands of divergences one by one; `divergence`
    computes all of them at once.

    Guarantee: equal to dp_accounting's distributions, but for rounding.

    Edge cases: with everyone in the sample both directions are one.
    """
    both = (AdjacencyType.REMOVE, AdjacencyType.ADD) if sampling_prob < 1 else (AdjacencyType.REMOVE,)
    return PrivacyLossDistribution(
        *(
            _one_direction(
                GaussianPrivacyLoss(noise_multiplier, sampling_prob=sampling_prob, adjacency_type=direction), grid
            )
            for direction in both
        )
    )


def _one_direction(losses: GaussianPrivacyLoss, grid: float) -> pld_pmf.PLDPmf:
    ends = losses.connect_dots_bounds()
    lower, upper = math.floor(ends.epsilon_lower / grid), math.ceil(ends.epsilon_upper / grid)
    divergences = divergence(losses, np.arange(lower, upper + 1) * grid)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, lower, upper, divergences)


def divergence(losses: GaussianPrivacyLoss, epsilons: Floats) -> Floats:
    """The hockey-stick divergence at each epsilon, of N(0, z^2) and (1 - q) N(0, z^2) + q N(1, z^2).

    The loss rises or falls along the line, so the divergence is taken where the loss equals epsilon. A rounded place
    costs nothing, because the derivative is 0 there.

    Guarantee: within 1e-15 of `losses.get_delta_for_epsilon`.

    Edge cases: for a client more, losses end at -log(1 - q), where the divergence is 0. For a client less, they begin
    at log(1 - q), where it is 1 - e^epsilon. The divergence is never less than these.
    """
    less = losses.adjacency_type == AdjacencyType.REMOVE
    sign = 1.0 if less else -1.0
    with np.errstate(all="ignore"):  # infinite beyond where losses end or begin, and everywhere with everyone sampled
        log_share, log_odds = np.log(losses.sampling_prob), np.log(1 / losses.sampling_prob - 1)
        # log(1 + (e^loss - 1) / q) is the loss of the release that the client takes part in.
        scaled = sign * epsilons - log_share
        own = scaled + np.log1p(-np.exp(np.minimum(log_odds - scaled, 0.0)))
        cut = -sign * (own * losses.standard_deviation**2 + 0.5)
        deltas = losses.mu_upper_cdf(cut) - np.exp(epsilons + losses.mu_lower_log_cdf(cut))
        least = np.maximum(0.0, -np.expm1(epsilons))
    return np.asarray(np.clip(deltas, least, 1.0))


def fixed_size_loss(noise_multiplier: float, *, clients: int, cohort: int, grid: float) -> PrivacyLossDistribution:
    """The loss distribution of a Gaussian release about m of n clients, without replacement, one client replaced.

    Let q = m / n, and let mu = 1 / noise multiplier be how many deviations a replaced client moves the release. H(a) is
    the hockey-stick divergence of the two releases, the integral of max(0, p - a p'); G(a) is that of two normal
    distributions mu apart.

    1.  H(1 + q (a - 1)) <= q G(a) for a >= 1 (Balle, Barthe and Gaboardi 2018). Call A, B and B' the release without
        the client in the sample, with it, and with its replacement: p = (1 - q) A + q B, p' = (1 - q) A + q B'. Let
        M mix A and B' with weights (1 - q) (a - 1) / a and (1 + q (a - 1)) / a. Then p - (1 + q (a - 1)) p' equals
        q (B - a M). Divergences are convex, so it is enough that those of B from B' and from A are at most
        G(a). They are, sample by sample: B' has the client replaced; a uniform sample without the client is a uniform
        one with it where a random client from outside takes its place.
    2.  Either data set may come first, so H(a) = 1 - a + a H'(1 / a) below 1. Let h(a) = q G(1 + (a - 1) / q) above
        1, and 1 - a + a h(1 / a) below. Let P and Q be normal and mu apart. Above 1, h is the divergence of
        (1 - q) Q + q P from Q; below, that of P from (1 - q) P + q Q.
    3.  h is 1 at 0, decreasing, never below max(0, 1 - a), and convex: on either side as a divergence, and at 1 because
        its slope rises there by (1 - q) (1 - 2 Phi(-mu / 2)) >= 0. So h is the divergence of a pair of distributions.
        The pair dominates the release for any two neighbours in any order, and dominating pairs compose, adaptively,
        too (Zhu, Dong and Wang 2022): n rounds cost n independent draws from the pair.

    Composing each direction of a Poisson sample alone and taking the larger is no bound under replacement (Lebeda,
    Regehr, Kamath and Steinke 2024); one pair for both orders is.

    Guarantee: its divergences are nowhere below those of the pair. Above 1 they are the chords of h between the points
    of the grid (Doroshenko et al. 2022), and a chord lies above a convex curve; the rise of the slope at a point is the
    second distribution's probability there. Below 1 all is mirrored, as in step 2; the rest is at a loss of 0.
    """
    mu, share = 1 / noise_multiplier, cohort / clients
    largest = math.log1p(share * math.expm1(min(mu * mu / 2 + _TAIL * mu, 700.0)))
    losses = grid * np.arange(math.ceil(largest / grid) + 2)
    amplified = np.log1p(np.expm1(losses) / share)
    delta = np.minimum(1.0, (1 + _SLACK) * share * np.exp(log_delta(mu, amplified)))
    slope = np.append(np.diff(delta) / (np.exp(losses[:-1]) * math.expm1(grid)), 0.0)
    second = np.maximum(0.0, np.diff(slope))  # at each loss above 0; as much has the first at minus that loss
    first = second * np.exp(losses[1:])
    beyond = float(delta[-1])
    rest = max(0.0, 1 - beyond - float(first.sum() + second.sum()))
    probabilities = np.concatenate([second[::-1], [rest], first])
    return PrivacyLossDistribution(
        pld_pmf.DensePLDPmf(grid, -second.size, probabilities, beyond, pessimistic_estimate=True)
    )
