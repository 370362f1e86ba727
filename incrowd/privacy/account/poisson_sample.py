"""The privacy loss of a Gaussian release about a Poisson sample, when one client is there more or less.

The distributions are dp_accounting's `from_gaussian_mechanism`: the chords of the hockey-stick divergence between the
points of a grid (Doroshenko et al. 2022), for a client more and for a client less. dp_accounting asks for the
divergence at one point after another, tens of thousands of times; here it is computed at all of them at once.

The releases are N(0, z^2) and (1 - q) N(0, z^2) + q N(1, z^2). The loss falls or rises all along the line, so the
divergence at epsilon is taken where the loss is epsilon. Where that is misses the exact point by rounding, which costs
nothing: there the derivative of what is taken is 0.
"""

import math

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from incrowd._random import Floats


def loss_distribution(noise_multiplier: float, *, sampling_prob: float, grid: float) -> PrivacyLossDistribution:
    """The distributions of the privacy loss on a grid, for one client less and one more.

    Guarantee: dp_accounting's own, but for rounding.

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
    """The hockey-stick divergence at each epsilon.

    Guarantee: within 1e-15 of what `losses.get_delta_for_epsilon` says of each.

    Edge cases: losses end at -log(1 - q) for a client more, where the divergence is 0, and begin at log(1 - q) for a
    client less, where it is 1 - e^epsilon: less than that, or than 0, it never is.
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
