"""How well an attacker tells members from others, and how well a promise lets anybody do it."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from incrowd._random import Floats
from incrowd.audit import bounds

FALSE_POSITIVES = 1e-3
"""The share of false positives at which true ones are counted, unless another is asked for."""


@dataclass(frozen=True, kw_only=True)
class Odds:
    """How well scores tell members from others.

    `true_positives` are the members above the lowest threshold with no more than the wanted share of false positives;
    `false_positives_at_most` is an upper limit, with confidence, on what share of others is above it. A promise is to
    be held against that: of few others nobody knows how many of 0.1 % there really are.
    """

    auc: float
    true_positives: float
    false_positives_at_most: float


def odds(
    inside: Floats, outside: Floats, *, false_positives: float = FALSE_POSITIVES, confidence: float = 0.95
) -> Odds:
    """The odds of an attacker whose larger scores speak for membership.

    Edge cases: a score that others have as well counts as half for the area, and as not above the threshold.
    """
    kept = math.floor(false_positives * len(outside))
    threshold = float(np.sort(outside)[::-1][kept]) if kept < len(outside) else -math.inf
    counts = bounds.counted(inside, outside, threshold=threshold)
    return Odds(
        auc=auc(inside, outside),
        true_positives=counts.found / counts.members,
        # One more than were seen: the threshold is itself one of the others.
        false_positives_at_most=bounds.at_most(min(kept + 1, counts.others), counts.others, confidence=confidence),
    )


def auc(inside: Floats, outside: Floats) -> float:
    """How probably a member has a larger score than another: 0.5 is chance."""
    ranks = stats.rankdata(np.concatenate([inside, outside]))[: len(inside)]
    most = len(inside) * len(outside)
    return float((ranks.sum() - len(inside) * (len(inside) + 1) / 2) / most)


def allowed(false_positives: float, *, epsilon: float, delta: float) -> float:
    """The most true positives that (epsilon, delta) allows at these false positives (Kairouz, Oh, Viswanath 2015)."""
    grown = math.exp(min(epsilon, 700.0)) * false_positives + delta
    rest = 1 - math.exp(-epsilon) * (1 - false_positives - delta)
    return max(0.0, min(1.0, grown, rest))
