"""Lower bounds on epsilon from the scores of an attacker, and the share of members that a promise lets anybody find."""

import math
from dataclasses import dataclass

import numpy as np
from dp_accounting import GaussianDpEvent
from scipy import stats
from scipy.special import betaincinv, ndtri

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.privacy.account.accountants import GaussianCurve

SURE = 1 - 1e-6
"""The confidence that a verdict needs: a right pipeline is called wrong once in a million audits."""

_THRESHOLDS = 400

FALSE_POSITIVES = 1e-3
"""The share of false positives at which true ones are counted, unless another is asked for."""


def at_least(successes: int, trials: int, *, confidence: float) -> float:
    """The least chance that goes with so many successes (Clopper and Pearson 1934), one-sided."""
    return float(betaincinv(successes, trials - successes + 1, 1 - confidence)) if successes > 0 else 0.0


def at_most(successes: int, trials: int, *, confidence: float) -> float:
    """The largest chance that goes with so many successes, one-sided."""
    return float(betaincinv(successes + 1, trials - successes, confidence)) if successes < trials else 1.0


@dataclass(frozen=True, kw_only=True)
class ErrorCounts:
    """How often an attacker said "member": of so many members, and of so many others."""

    found: int
    members: int
    false: int
    others: int

    def __post_init__(self) -> None:
        _validate.count(members=self.members, others=self.others)
        if not (0 <= self.found <= self.members and 0 <= self.false <= self.others):
            raise ConfigError(field="found", value=self, remedy="give counts of at most the trials")

    def limits(self, confidence: float) -> tuple[float, float]:
        """The least share of true positives and the largest of false ones, which hold together."""
        each = 1 - (1 - confidence) / 2
        return (
            at_least(self.found, self.members, confidence=each),
            at_most(self.false, self.others, confidence=each),
        )

    def epsilon(self, *, delta: float, confidence: float) -> float:
        """The least epsilon that allows this at delta.

        Guarantee: for a mechanism that is (epsilon, delta)-differentially private and independent trials it exceeds
        epsilon with a probability of at most 1 - confidence. Both errors are bounded: true positives <= e^epsilon
        false positives + delta, and true negatives <= e^epsilon false negatives + delta (Kairouz, Oh, Viswanath 2015).

        Edge cases: no better than guessing: 0; every trial right is still finite.
        """
        true, false = self.limits(confidence)
        ways = ((true - delta, false), (1 - false - delta, 1 - true))
        return max(0.0, *(math.log(high / low) for high, low in ways if high > 0 and low > 0))

    def mu(self, *, confidence: float) -> float:
        """The least mu of a Gaussian trade-off curve that allows this (Dong, Roth, Su 2022; Nasr et al. 2023).

        Guarantee: as `epsilon`, for a mechanism that is mu-GDP: for Gaussian releases about everyone.
        """
        true, false = self.limits(confidence)
        return max(0.0, float(ndtri(true) - ndtri(false))) if true > 0 and false < 1 else 0.0


def epsilon_of_mu(mu: float, *, delta: float) -> float:
    """The epsilon at delta of Gaussian releases that are mu deviations apart."""
    return GaussianCurve([(GaussianDpEvent(1 / mu), 1)]).epsilon(delta) if mu > 1e-9 else 0.0


def counted(inside: Floats, outside: Floats, *, threshold: float) -> ErrorCounts:
    """Who is called a member where scores above a threshold are."""
    return ErrorCounts(
        found=int((inside > threshold).sum()),
        members=len(inside),
        false=int((outside > threshold).sum()),
        others=len(outside),
    )


def lower_bound(
    inside: Floats, outside: Floats, *, delta: float, confidence: float = 0.95, gaussian: bool = False
) -> float:
    """The epsilon at delta that scores of members and of others prove; larger scores speak for membership.

    `gaussian` says that the mechanism is Gaussian about everyone, for which the bound goes by mu and is tighter.

    Guarantee: the threshold is chosen on every other score and counts on the rest alone, so that the bound exceeds the
    true epsilon with a probability of at most 1 - confidence where trials are independent.

    Edge cases: fewer than two scores of a kind prove nothing: 0.
    """
    if min(len(inside), len(outside)) < 2:
        return 0.0

    tried, kept = (inside[::2], outside[::2]), (inside[1::2], outside[1::2])
    counts = counted(*kept, threshold=_best_threshold(*tried, delta=delta, confidence=confidence, gaussian=gaussian))
    if gaussian:
        return epsilon_of_mu(counts.mu(confidence=confidence), delta=delta)
    return counts.epsilon(delta=delta, confidence=confidence)


def _best_threshold(inside: Floats, outside: Floats, *, delta: float, confidence: float, gaussian: bool) -> float:
    """Where these scores prove most; places are close to each other where few scores are beyond."""
    tails = np.geomspace(1.0 / max(len(inside), len(outside)), 0.5, _THRESHOLDS // 4)
    shares = np.concatenate([tails, 1 - tails])
    places: Floats = np.unique(np.concatenate([np.quantile(inside, shares), np.quantile(outside, shares)]))
    found = len(inside) - np.searchsorted(np.sort(inside), places, side="right")
    false = len(outside) - np.searchsorted(np.sort(outside), places, side="right")
    each = (1 - confidence) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        true = np.where(found > 0, betaincinv(found, len(inside) - found + 1, each), 0.0)
        wrong = np.where(false < len(outside), betaincinv(false + 1, len(outside) - false, 1 - each), 1.0)
        if gaussian:
            proven = ndtri(true) - ndtri(wrong)
        else:
            ways = np.log(true - delta) - np.log(wrong), np.log(1 - wrong - delta) - np.log(1 - true)
            proven = np.fmax(*ways)
    return float(places[np.argmax(np.where(np.isnan(proven), -np.inf, proven))])


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
    counts = counted(inside, outside, threshold=threshold)
    return Odds(
        auc=auc(inside, outside),
        true_positives=counts.found / counts.members,
        # One more than were seen: the threshold is itself one of the others.
        false_positives_at_most=at_most(min(kept + 1, counts.others), counts.others, confidence=confidence),
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
