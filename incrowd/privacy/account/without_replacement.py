"""The privacy loss of a Gaussian release about m of n clients, drawn without replacement, when one client is replaced.

Let two data sets differ in client i, let q = m / n, and let mu be how many of the noise's deviations the release moves
by when one client of the sample is replaced: 2C / sigma, or 1 / noise multiplier. H(alpha) is the hockey-stick
divergence of the two releases, the integral of max(0, p - alpha p'); G(alpha) is that of two normal distributions mu
apart.

1.  H(1 + q (alpha - 1)) <= q G(alpha) for alpha >= 1 (Balle, Barthe and Gaboardi 2018, on sampling without replacement
    under substitution). Call A, B and B' the release without client i in the sample, with it, and with its replacement:
    p = (1 - q) A + q B and p' = (1 - q) A + q B'. Then p - (1 + q (alpha - 1)) p' = q (B - alpha M), where M mixes A
    and B' with weights (1 - q) (alpha - 1) / alpha and (1 + q (alpha - 1)) / alpha. Divergences are convex, so it is
    enough that those of B from B' and from A are at most G(alpha). They are, sample by sample: B' has i replaced; and
    a uniform sample without i is a uniform one with i where a random client from outside replaces i.
2.  Either data set may be the first, so below 1 the other order tells: H(alpha) = 1 - alpha + alpha H'(1 / alpha). Let
    h(alpha) = q G(1 + (alpha - 1) / q) above 1, and 1 - alpha + alpha h(1 / alpha) below. For P and Q normal and mu
    apart, it is the divergence of (1 - q) Q + q P from Q above 1, and of P from (1 - q) P + q Q below.
3.  h is 1 at 0, decreasing, never below max(0, 1 - alpha), and convex: on either side as a divergence, and at 1 because
    its slope rises there by (1 - q) (1 - 2 Phi(-mu / 2)) >= 0. So it is itself the divergence of a pair of
    distributions. The pair dominates the release for any two neighbours in any order, and dominating pairs compose,
    adaptively, too (Zhu, Dong and Wang 2022). The price of n rounds is that of n independent draws from the pair.

To compose the two directions of a Poisson sample each on its own, and to take the larger, is no bound where clients are
replaced (Lebeda, Regehr, Kamath and Steinke 2024); one pair for both orders is.
"""

import math

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from incrowd.privacy.account.gaussian import log_delta

_TAIL = 12.0  # deviations: what is beyond has a probability below 2e-33, and counts as an infinite loss
_SLACK = 1e-9  # far more, relative to delta, than all rounding of the differences taken here


def loss_distribution(noise_multiplier: float, *, clients: int, cohort: int, grid: float) -> PrivacyLossDistribution:
    """The distribution of the privacy loss of that pair, on a grid.

    Guarantee: its divergences are nowhere below those of the pair. Above 1 they are the chords of h between the points
    of the grid (Doroshenko et al. 2022), and a chord lies above a convex curve; by how much the slope rises at a point
    is the second distribution's probability there. Below 1 all is mirrored, as in step 2; the rest is at a loss of 0.
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
