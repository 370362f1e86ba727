"""What an audit says: what an attacker found out, beside what the promise allows."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from incrowd._random import Floats
from incrowd.audit import bounds
from incrowd.errors import ConfigError
from incrowd.privacy.plan.plan import Plan

CONFIDENCE = 0.95

SIMULATED = "simulations of these settings, made for the audit; no ledger was opened and nothing was released"
"""What every audit says of itself."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one attack found out.

    `claimed` is the epsilon that the promise gives at `delta` for exactly what was attacked, `lower_bound` the epsilon
    that the attack proves with this `confidence`. `sure_bound` is what it proves with all but one chance in a million:
    where it is given it decides, because an attack as good as the promise is tight would exceed a bound of 95 %
    confidence one time in twenty. `true_positives` are the share of members who are found at 0.1 % false positives,
    `allowed` the largest share that the promise allows there. Of `trials`, half are members.

    Guarantee: `holds` is False only where what was proven exceeds what was claimed.

    Edge cases: what an attack does not measure is None and does not speak against the promise.
    """

    attack: str
    unit: str
    claimed: float | None
    delta: float
    lower_bound: float | None = None
    confidence: float = 0.95
    auc: float | None = None
    true_positives: float | None = None
    allowed: float | None = None
    trials: int
    note: str = ""
    sure_bound: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the promise stands against what this attack found."""
        proven = self.lower_bound if self.sure_bound is None else self.sure_bound
        if proven is not None and self.claimed is not None and proven > self.claimed:
            return False
        if self.true_positives is None or self.allowed is None:
            return True
        members = max(1, self.trials // 2)
        confidence = self.confidence if self.sure_bound is None else bounds.SURE
        found = bounds.at_least(round(self.true_positives * members), members, confidence=confidence)
        return found <= self.allowed

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "holds": self.holds}


@dataclass(frozen=True, kw_only=True)
class Check:
    """A look inside: what a pipeline does, measured, beside what it states."""

    name: str
    measured: float | str
    stated: float | str
    holds: bool
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Audited:
    """All that an audit found, and its verdict. `claimed` is the epsilon that was promised at `delta`.

    Guarantee: `holds` only where every finding and every check does.
    """

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
        """What speaks against the promise, a line each."""
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


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is promised to one unit, and whether each release is Gaussian about all of them."""

    unit: str
    epsilon: float
    delta: float
    gaussian: bool = False


def bounded(
    claim: Claim,
    inside: Floats,
    outside: Floats,
    *,
    attack: str,
    note: str,
) -> Finding:
    """The bound that larger scores for members prove, where trials are independent."""
    seen = bounds.odds(inside, outside, confidence=bounds.SURE)
    proven, sure = (
        bounds.lower_bound(inside, outside, delta=claim.delta, confidence=confidence, gaussian=claim.gaussian)
        for confidence in (CONFIDENCE, bounds.SURE)
    )
    return Finding(
        attack=attack,
        unit=claim.unit,
        claimed=claim.epsilon,
        delta=claim.delta,
        lower_bound=proven,
        sure_bound=sure,
        confidence=CONFIDENCE,
        auc=seen.auc,
        true_positives=seen.true_positives,
        allowed=bounds.allowed(seen.false_positives_at_most, epsilon=claim.epsilon, delta=claim.delta),
        trials=len(inside) + len(outside),
        note=note,
    )


def scored(plan: Plan, inside: Floats, outside: Floats, *, attack: str, note: str) -> Finding:
    """The same for clients of a plan.

    Edge cases: nobody inside, or nobody outside, is a `ConfigError`.
    """
    if not (len(inside) and len(outside)):
        raise ConfigError(
            field="canaries", value=len(inside) + len(outside), remedy="give more: some have to be inside"
        )
    return bounded(claim_of(plan), inside, outside, attack=attack, note=note)


def claim_of(plan: Plan) -> Claim:
    """What a plan promises each client."""
    delta = plan.budget.delta
    return Claim(unit="client", epsilon=plan.price.epsilon, delta=delta, gaussian=_about_everyone(plan))


def _about_everyone(plan: Plan) -> bool:
    """Whether all releases are Gaussian about everyone, so that the run has a Gaussian trade-off curve."""
    if plan.config.groups is not None:
        return True
    samplers = [plan.round(number).sampler for number in range(plan.rounds)]
    return all(sampler.expected_cohort == sampler.clients for sampler in samplers)
