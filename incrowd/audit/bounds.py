"""Findings of an audit: lower bounds on epsilon from an attacker's scores, beside the claim."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent
from scipy import stats
from scipy.special import betaincinv, ndtri

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import GaussianCurve

CONFIDENCE = 0.95

SURE = 1 - 1e-6
"""The confidence of a verdict: one audit in a million calls a right pipeline wrong."""

FALSE_POSITIVES = 1e-3
"""Findings state the true positives at this share of false ones."""

SIMULATED = "simulations of these settings, made for the audit; no ledger was opened and nothing was released"
"""Part of every audit's result."""

_THRESHOLDS = 400


def at_least(successes: int, trials: int, *, confidence: float) -> float:
    """The lower limit on a probability after these successes (Clopper and Pearson 1934), one-sided."""
    return float(betaincinv(successes, trials - successes + 1, 1 - confidence)) if successes > 0 else 0.0


def at_most(successes: int, trials: int, *, confidence: float) -> float:
    """The upper limit, one-sided."""
    return float(betaincinv(successes + 1, trials - successes, confidence)) if successes < trials else 1.0


@dataclass(frozen=True, kw_only=True)
class ErrorCounts:
    """An attacker's verdicts: it accuses `found` of the members and `false` of the others."""

    found: int
    members: int
    false: int
    others: int

    def __post_init__(self) -> None:
        _validate.count(members=self.members, others=self.others)
        if not (0 <= self.found <= self.members and 0 <= self.false <= self.others):
            raise ConfigError(field="found", value=self, remedy="give counts of at most the trials")

    @classmethod
    def of(cls, inside: Floats, outside: Floats, *, threshold: float) -> "ErrorCounts":
        """Accuse everyone whose score exceeds the threshold."""
        found, false = int((inside > threshold).sum()), int((outside > threshold).sum())
        return cls(found=found, members=len(inside), false=false, others=len(outside))

    def limits(self, confidence: float) -> tuple[float, float]:
        """The lower limit on true positives and the upper one on false positives, which hold together."""
        each = 1 - (1 - confidence) / 2
        return (
            at_least(self.found, self.members, confidence=each),
            at_most(self.false, self.others, confidence=each),
        )

    def epsilon(self, *, delta: float, confidence: float) -> float:
        """The least epsilon that allows these counts at delta.

        Guarantee: for an (epsilon, delta)-differentially private mechanism and independent trials it exceeds epsilon
        with a probability of at most 1 - confidence. Both errors are bounded: true positives <= e^epsilon false
        positives + delta, and true negatives <= e^epsilon false negatives + delta (Kairouz, Oh, Viswanath 2015).
        """
        true, false = self.limits(confidence)
        ways = ((true - delta, false), (1 - false - delta, 1 - true))
        return max(0.0, *(math.log(high / low) for high, low in ways if high > 0 and low > 0))

    def mu(self, *, confidence: float) -> float:
        """The least mu of a Gaussian trade-off curve that allows these counts (Dong, Roth, Su 2022; Nasr et al. 2023).

        Guarantee: as `epsilon`, for a mu-GDP mechanism: Gaussian releases with full participation.
        """
        true, false = self.limits(confidence)
        return max(0.0, float(ndtri(true) - ndtri(false))) if true > 0 and false < 1 else 0.0


def epsilon_of_mu(mu: float, *, delta: float) -> float:
    """The epsilon at delta of Gaussian releases that are mu deviations apart."""
    return GaussianCurve([(GaussianDpEvent(1 / mu), 1)]).epsilon(delta) if mu > 1e-9 else 0.0


def lower_bound(
    inside: Floats, outside: Floats, *, delta: float, confidence: float = 0.95, gaussian: bool = False
) -> float:
    """The epsilon at delta that scores of members and of others prove; larger scores speak for membership.

    With `gaussian`, for Gaussian releases with full participation, the bound goes through mu and is tighter.

    Guarantee: half of the scores choose the threshold and the other half count. The bound exceeds the true epsilon with
    a probability of at most 1 - confidence where trials are independent.
    """
    if min(len(inside), len(outside)) < 2:
        return 0.0

    tried, kept = (inside[::2], outside[::2]), (inside[1::2], outside[1::2])
    threshold = _best_threshold(*tried, delta=delta, confidence=confidence, gaussian=gaussian)
    counts = ErrorCounts.of(*kept, threshold=threshold)
    if gaussian:
        return epsilon_of_mu(counts.mu(confidence=confidence), delta=delta)
    return counts.epsilon(delta=delta, confidence=confidence)


def _best_threshold(inside: Floats, outside: Floats, *, delta: float, confidence: float, gaussian: bool) -> float:
    """The threshold at which these scores prove most; candidates are dense in the tails."""
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

    `true_positives` is the share of members above the lowest threshold with at most the wanted false positives.
    `false_positives_at_most` is an upper confidence limit on the false positives there: few others say little.
    """

    auc: float
    true_positives: float
    false_positives_at_most: float


def odds(
    inside: Floats, outside: Floats, *, false_positives: float = FALSE_POSITIVES, confidence: float = 0.95
) -> Odds:
    """The odds of an attacker whose larger scores speak for membership."""
    kept = math.floor(false_positives * len(outside))
    threshold = float(np.sort(outside)[::-1][kept]) if kept < len(outside) else -math.inf
    counts = ErrorCounts.of(inside, outside, threshold=threshold)
    return Odds(
        auc=auc(inside, outside),
        true_positives=counts.found / counts.members,
        # One more than were seen: the threshold is itself one of the others.
        false_positives_at_most=at_most(min(kept + 1, counts.others), counts.others, confidence=confidence),
    )


def auc(inside: Floats, outside: Floats) -> float:
    """The probability that a member has a larger score than another; ties count half, chance is 0.5."""
    ranks = stats.rankdata(np.concatenate([inside, outside]))[: len(inside)]
    most = len(inside) * len(outside)
    return float((ranks.sum() - len(inside) * (len(inside) + 1) / 2) / most)


def allowed(false_positives: float, *, epsilon: float, delta: float) -> float:
    """The most true positives that (epsilon, delta) allows at these false positives (Kairouz, Oh, Viswanath 2015)."""
    grown = math.exp(min(epsilon, 700.0)) * false_positives + delta
    rest = 1 - math.exp(-epsilon) * (1 - false_positives - delta)
    return max(0.0, min(1.0, grown, rest))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The promise to one unit; `gaussian` says that each release is Gaussian with full participation."""

    unit: str
    epsilon: float
    delta: float
    gaussian: bool = False


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one attack.

    The attack proves `lower_bound` with this `confidence`, where the promise claims `claimed` at `delta`. `sure_bound`
    is proven with confidence 1 - 10^-6. It decides the verdict: an attack as good as the promise is tight exceeds a
    95 % bound one time in twenty. `true_positives` is the share of members found at 0.1 % false positives, `allowed`
    the most that the promise allows there. Half of the `trials` are members.

    Guarantee: `holds` is False only if the proven epsilon, or share, exceeds the claim.
    """

    attack: str
    unit: str
    claimed: float | None
    delta: float
    lower_bound: float | None = None
    confidence: float = CONFIDENCE
    auc: float | None = None
    true_positives: float | None = None
    allowed: float | None = None
    trials: int
    note: str = ""
    sure_bound: float | None = None

    @classmethod
    def of(cls, claim: Claim, inside: Floats, outside: Floats, *, attack: str, note: str) -> "Finding":
        """The bound that larger scores for members prove, where trials are independent."""
        if not (len(inside) and len(outside)):
            trials = len(inside) + len(outside)
            raise ConfigError(field="canaries", value=trials, remedy="give more: some have to be inside")
        seen = odds(inside, outside, confidence=SURE)
        proven, sure = (
            lower_bound(inside, outside, delta=claim.delta, confidence=confidence, gaussian=claim.gaussian)
            for confidence in (CONFIDENCE, SURE)
        )
        return cls(
            attack=attack,
            unit=claim.unit,
            claimed=claim.epsilon,
            delta=claim.delta,
            lower_bound=proven,
            sure_bound=sure,
            auc=seen.auc,
            true_positives=seen.true_positives,
            allowed=allowed(seen.false_positives_at_most, epsilon=claim.epsilon, delta=claim.delta),
            trials=len(inside) + len(outside),
            note=note,
        )

    @property
    def holds(self) -> bool:
        """Whether the promise stands against this attack."""
        proven = self.lower_bound if self.sure_bound is None else self.sure_bound
        if proven is not None and self.claimed is not None and proven > self.claimed:
            return False
        if self.true_positives is None or self.allowed is None:
            return True
        members = max(1, self.trials // 2)
        confidence = self.confidence if self.sure_bound is None else SURE
        found = at_least(round(self.true_positives * members), members, confidence=confidence)
        return found <= self.allowed

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "holds": self.holds}


@dataclass(frozen=True, kw_only=True)
class Check:
    """A measurement of the mechanism, beside its claim."""

    name: str
    measured: float | str
    stated: float | str
    holds: bool
    note: str = ""

    @classmethod
    def refused(cls, name: str, error: Exception, *, stated: str = "works") -> "Check":
        """A check that the code under audit refuses, which speaks against it."""
        return cls(name=name, measured=f"refused: {error}", stated=stated, holds=False)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Audited:
    """The result of an audit. Guarantee: `holds` only if every finding and every check does."""

    claimed: float | None
    delta: float | None
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    simulated: str = field(default=SIMULATED, init=False)

    @property
    def holds(self) -> bool:
        """The verdict."""
        return all(each.holds for each in self.findings) and all(each.holds for each in self.checks)

    @property
    def best(self) -> Finding | None:
        """The finding with the largest lower bound, among those that claim no more than the epsilon claimed here."""
        most = math.inf if self.claimed is None else self.claimed
        bounded = [each for each in self.findings if each.lower_bound is not None and (each.claimed or 0.0) <= most]
        return max(bounded, key=lambda each: each.lower_bound or 0.0, default=None)

    @property
    def violations(self) -> tuple[str, ...]:
        """The broken claims, a line each."""
        exceeded = [
            f"{each.attack}: epsilon of at least {_shown(each.lower_bound)}, where {_shown(each.claimed)} is claimed"
            for each in self.findings
            if not each.holds
        ]
        failed = [
            f"{each.name}: {_shown(each.measured)}, where {_shown(each.stated)} is stated"
            for each in self.checks
            if not each.holds
        ]
        return (*exceeded, *failed)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        best = self.best
        return {
            "epsilon_claimed": self.claimed,
            "delta": self.delta,
            "epsilon_lower_bound": None if best is None else best.lower_bound,
            "confidence": None if best is None else best.confidence,
            "holds": self.holds,
            "simulated": self.simulated,
            "violations": list(self.violations),
            "findings": [each.to_json() for each in self.findings],
            "checks": [each.to_json() for each in self.checks],
            "settings": dict(self.settings),
            "notes": list(self.notes),
        }


def _shown(value: float | str | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
