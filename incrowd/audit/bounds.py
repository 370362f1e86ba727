"""Lower bounds on epsilon, with confidence, from what an attacker got right."""

import math
from dataclasses import dataclass

import numpy as np
from dp_accounting import GaussianDpEvent
from scipy import stats
from scipy.special import betaincinv, ndtri

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.privacy.account.gaussian import GaussianCurve

SURE = 1 - 1e-6
"""The confidence that a verdict needs: a right pipeline is called wrong once in a million audits."""

_THRESHOLDS = 400


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


def from_guesses(*, right: int, guesses: int, canaries: int, delta: float, confidence: float = 0.95) -> float:
    """The epsilon that so many right guesses prove about canaries in one run, each in by a fair coin of its own.

    Steinke, Nasr and Jagielski (2023), theorem 5.2: canaries may interfere with each other in any way; who abstains
    about a canary makes no guess.

    Guarantee: for an (epsilon, delta)-differentially private run the bound exceeds epsilon with a probability of at
    most 1 - confidence.

    Edge cases: no guesses, or no more right than by chance: 0.
    """
    _validate.count(canaries=canaries)
    _validate.natural(right=right, guesses=guesses)
    _validate.at_most(guesses, "the guesses", right=right)
    _validate.at_most(canaries, "the canaries", guesses=guesses)

    def refuted(epsilon: float) -> bool:
        return _chance_of_guesses(right, guesses, canaries, epsilon, delta) < 1 - confidence

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _chance_of_guesses(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """How probable so many right guesses are at most."""
    if guesses == 0:
        return 1.0
    chance = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    beyond = float(chance.sf(right - 1))
    nearby = np.cumsum(chance.pmf(np.arange(right - 1, -1, -1))) / np.arange(
        1, right + 1
    )  # P[right-i <= V < right] / i
    return min(1.0, beyond + 2 * canaries * delta * float(nearby.max(initial=0.0)))
