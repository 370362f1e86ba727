"""Findings of an audit: lower bounds on epsilon from an attacker's scores, beside the claim."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.special import betaincinv, ndtri

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


def at_least(successes: ArrayLike, trials: int, *, confidence: float) -> Floats:
    """The lower limits on a probability after these successes (Clopper and Pearson 1934), one-sided."""
    seen = np.asarray(successes)
    return np.where(seen > 0, betaincinv(seen, trials - seen + 1, 1 - confidence), 0.0)


def at_most(successes: ArrayLike, trials: int, *, confidence: float) -> Floats:
    """The upper limits, one-sided."""
    seen = np.asarray(successes)
    return np.where(seen < trials, betaincinv(seen + 1, trials - seen, confidence), 1.0)


def proven(
    found: ArrayLike, members: int, false: ArrayLike, others: int, *, delta: float, confidence: float, gaussian: bool
) -> Floats:
    """The least epsilon at delta that allows an attacker who accuses `found` of the members and `false` of the others.

    With `gaussian` it is the least mu of a Gaussian trade-off curve (Dong, Roth, Su 2022; Nasr et al. 2023): for
    Gaussian releases with full participation.

    Guarantee: for a differentially private mechanism and independent trials it exceeds the truth with a probability of
    at most 1 - confidence. Both errors are bounded: true positives <= e^epsilon false positives + delta, and true
    negatives <= e^epsilon false negatives + delta (Kairouz, Oh, Viswanath 2015).
    """
    each = 1 - (1 - confidence) / 2  # both limits hold together
    true, wrong = at_least(found, members, confidence=each), at_most(false, others, confidence=each)
    with np.errstate(divide="ignore", invalid="ignore"):
        if gaussian:
            least = ndtri(true) - ndtri(wrong)
        else:
            least = np.fmax(np.log(true - delta) - np.log(wrong), np.log(1 - wrong - delta) - np.log(1 - true))
    bounded: Floats = np.maximum(0.0, np.nan_to_num(least, nan=0.0, neginf=0.0))
    return bounded


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

    def least(scores: tuple[Floats, Floats], thresholds: Floats) -> Floats:
        found, false = (len(one) - np.searchsorted(np.sort(one), thresholds, side="right") for one in scores)
        sizes = len(scores[0]), len(scores[1])
        return proven(found, sizes[0], false, sizes[1], delta=delta, confidence=confidence, gaussian=gaussian)

    tried, kept = (inside[::2], outside[::2]), (inside[1::2], outside[1::2])
    tails = np.geomspace(1.0 / max(len(tried[0]), len(tried[1])), 0.5, _THRESHOLDS // 4)
    shares = np.concatenate([tails, 1 - tails])  # dense in the tails
    places: Floats = np.unique(np.concatenate([np.quantile(one, shares) for one in tried]))
    best = places[np.argmax(least(tried, places))]
    found = float(least(kept, best))
    return epsilon_of_mu(found, delta=delta) if gaussian else found


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
    claimed: float
    delta: float
    lower_bound: float
    sure_bound: float
    confidence: float = CONFIDENCE
    auc: float
    true_positives: float
    allowed: float
    trials: int
    note: str = ""

    @classmethod
    def of(
        cls,
        scores: Floats,
        inside: NDArray[np.bool_],
        *,
        attack: str,
        unit: str,
        claimed: float,
        delta: float,
        gaussian: bool,
        note: str,
    ) -> "Finding":
        """The bound that larger scores for members prove, where trials are independent.

        `gaussian` says that each release is Gaussian with full participation.
        """
        members, others = scores[inside], scores[~inside]
        if not (len(members) and len(others)):
            raise ConfigError(field="canaries", value=len(scores), remedy="give more: some have to be inside")
        kept = math.floor(FALSE_POSITIVES * len(others))
        # One more than are accused: the threshold is itself one of the others.
        false = float(at_most(kept + 1, len(others), confidence=SURE))
        lower, sure = (
            lower_bound(members, others, delta=delta, confidence=confidence, gaussian=gaussian)
            for confidence in (CONFIDENCE, SURE)
        )
        return cls(
            attack=attack,
            unit=unit,
            claimed=claimed,
            delta=delta,
            lower_bound=lower,
            sure_bound=sure,
            auc=auc(members, others),
            true_positives=float((members > np.sort(others)[::-1][kept]).mean()),
            allowed=allowed(false, epsilon=claimed, delta=delta),
            trials=len(scores),
            note=note,
        )

    @property
    def holds(self) -> bool:
        """Whether the promise stands against this attack."""
        members = max(1, self.trials // 2)
        found = at_least(round(self.true_positives * members), members, confidence=SURE)
        return self.sure_bound <= self.claimed and bool(found <= self.allowed)


@dataclass(frozen=True)
class Check:
    """A measurement of the mechanism, beside its claim."""

    name: str
    measured: str
    stated: str
    holds: bool
    note: str = ""

    @classmethod
    def refused(cls, name: str, error: Exception) -> "Check":
        """A check that the code under audit refuses, which speaks against it."""
        return cls(name, f"refused: {error}", "works", holds=False)


@dataclass(frozen=True, kw_only=True)
class Audited:
    """The result of an audit. Guarantee: `holds` only if every finding and every check does."""

    claimed: float
    delta: float
    findings: Sequence[Finding]
    checks: Sequence[Check]
    settings: Mapping[str, Any]
    notes: Sequence[str] = ()

    @property
    def holds(self) -> bool:
        """The verdict."""
        return all(each.holds for each in self.findings) and all(each.holds for each in self.checks)

    @property
    def best(self) -> Finding | None:
        """The finding with the largest lower bound, among those that claim no more than the epsilon claimed here."""
        bounded = [each for each in self.findings if each.claimed <= self.claimed]
        return max(bounded, key=lambda each: each.lower_bound, default=None)

    @property
    def violations(self) -> tuple[str, ...]:
        """The broken claims, a line each."""
        exceeded = [
            f"{each.attack}: epsilon of at least {each.lower_bound:.4g}, where {each.claimed:.4g} is claimed"
            for each in self.findings
            if not each.holds
        ]
        failed = [
            f"{each.name}: {each.measured}, where {each.stated} is stated" for each in self.checks if not each.holds
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
            "simulated": SIMULATED,
            "violations": list(self.violations),
            "findings": [{**asdict(each), "holds": each.holds} for each in self.findings],
            "checks": [asdict(each) for each in self.checks],
            "settings": dict(self.settings),
            "notes": list(self.notes),
        }
