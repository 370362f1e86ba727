"""What scores of canaries and of others come to, beside what a plan promises."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats
from incrowd.audit import bounds
from incrowd.audit.finding import Finding
from incrowd.audit.odds import allowed, odds
from incrowd.audit.plays import Play
from incrowd.errors import ConfigError
from incrowd.privacy.plan.correlated_plan import CorrelatedPlan
from incrowd.privacy.plan.promise import Promise

CONFIDENCE = 0.95


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
    estimate: float | None = None,
    modelled: float | None = None,
) -> Finding:
    """The bound that larger scores for members prove, where trials are independent."""
    seen = odds(inside, outside, confidence=bounds.SURE)
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
        allowed=allowed(seen.false_positives_at_most, epsilon=claim.epsilon, delta=claim.delta),
        trials=len(inside) + len(outside),
        note=note,
        estimate=estimate,
        modelled=modelled,
    )


def scored(plan: Promise, inside: Floats, outside: Floats, *, attack: str, note: str) -> Finding:
    """The same for clients of a plan.

    Edge cases: nobody inside, or nobody outside, is a `ConfigError`.
    """
    if not (len(inside) and len(outside)):
        raise ConfigError(
            field="canaries", value=len(inside) + len(outside), remedy="give more: some have to be inside"
        )
    estimate = _estimate(inside, outside, delta=plan.budget.delta)
    return bounded(claim_of(plan), inside, outside, attack=attack, note=note, estimate=estimate)


def one_run(plan: Promise, play: Play) -> Finding:
    """Many canaries in a single run, as somebody audits who cannot repeat it."""
    attack = "many canaries in one run, guessed by all releases"
    return guessed(claim_of(plan), play.scores, play.inside, attack=attack)


def guessed(claim: Claim, scores: Floats, inside: NDArray[np.bool_], *, attack: str, note: str = "") -> Finding:
    """The bound that guesses prove of canaries in one run, each in by a fair coin; they may interfere in any way.

    Edge cases: area and true positives are None where nobody is inside, or nobody outside. At a large delta this is
    never sure enough to speak against a promise, and `sure_bound` is 0.
    """
    count, middle = len(scores), float(np.median(scores))
    order = np.argsort(-np.abs(scores - middle))[: max(1, count // 3)]  # the rest is not guessed at
    right = int(((scores[order] > middle) == inside[order]).sum())
    seen = odds(scores[inside], scores[~inside]) if 0 < inside.sum() < count else None
    given = {"right": right, "guesses": len(order), "canaries": count}
    said = f"{right} of {len(order)} guesses right; the estimate takes scores for normal and is no bound"
    return Finding(
        attack=attack,
        unit=claim.unit,
        claimed=claim.epsilon,
        delta=claim.delta,
        lower_bound=bounds.from_guesses(**given, delta=claim.delta, confidence=CONFIDENCE),
        sure_bound=bounds.from_guesses(**given, delta=claim.delta, confidence=bounds.SURE),
        confidence=CONFIDENCE,
        auc=None if seen is None else seen.auc,
        true_positives=None if seen is None else seen.true_positives,
        trials=count,
        estimate=_estimate(scores[inside], scores[~inside], delta=claim.delta),
        note="; ".join(part for part in (note, said) if part),
    )


def claim_of(plan: Promise) -> Claim:
    """What a plan promises each client."""
    delta = plan.budget.delta
    return Claim(unit="client", epsilon=plan.price.epsilon, delta=delta, gaussian=_about_everyone(plan))


def _about_everyone(plan: Promise) -> bool:
    """Whether all releases are Gaussian about everyone, so that the run has a Gaussian trade-off curve."""
    if isinstance(plan, CorrelatedPlan):
        return True
    samplers = [plan.round(number).sampler for number in range(plan.rounds)]
    return all(sampler.expected_cohort == sampler.clients for sampler in samplers)


def _estimate(inside: Floats, outside: Floats, *, delta: float) -> float | None:
    """The epsilon of two normal distributions with these means and this spread (Andrew et al. 2023). No bound."""
    if min(len(inside), len(outside)) < 2:
        return None
    spread = math.sqrt(float(inside.var() + outside.var()) / 2)
    mu = max(0.0, float(inside.mean() - outside.mean())) / spread if spread > 0 else 0.0
    return bounds.epsilon_of_mu(min(mu, 100.0), delta=delta)
