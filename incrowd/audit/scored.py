"""What scores of canaries and of others come to, beside what a plan promises."""

import math

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

UNIT = "client"


def scored(plan: Promise, inside: Floats, outside: Floats, *, attack: str, note: str) -> Finding:
    """What larger scores for members prove, where each of them is a trial by itself.

    Edge cases: nobody inside, or nobody outside, is a `ConfigError`.
    """
    claimed, delta, gaussian = plan.price.epsilon, plan.budget.delta, _about_everyone(plan)
    if not (len(inside) and len(outside)):
        raise ConfigError(
            field="canaries", value=len(inside) + len(outside), remedy="give more: some have to be inside"
        )
    seen = odds(inside, outside, confidence=bounds.SURE)
    return Finding(
        attack=attack,
        unit=UNIT,
        claimed=claimed,
        delta=delta,
        lower_bound=bounds.lower_bound(inside, outside, delta=delta, confidence=CONFIDENCE, gaussian=gaussian),
        sure_bound=bounds.lower_bound(inside, outside, delta=delta, confidence=bounds.SURE, gaussian=gaussian),
        confidence=CONFIDENCE,
        auc=seen.auc,
        true_positives=seen.true_positives,
        allowed=allowed(seen.false_positives_at_most, epsilon=claimed, delta=delta),
        trials=len(inside) + len(outside),
        estimate=_estimate(inside, outside, delta=delta),
        note=note,
    )


def one_run(plan: Promise, play: Play) -> Finding:
    """Many canaries in a single run, as somebody audits who cannot repeat it."""
    attack = "many canaries in one run, guessed by all releases"
    return guessed(plan, play.scores, play.inside, attack=attack)


def guessed(plan: Promise, scores: Floats, inside: NDArray[np.bool_], *, attack: str, note: str = "") -> Finding:
    """What guesses prove of canaries who may interfere with each other: nobody is a trial by itself, each has a coin.

    Edge cases: area and true positives are None where nobody is inside, or nobody outside.
    """
    count, middle = len(scores), float(np.median(scores))
    order = np.argsort(-np.abs(scores - middle))[: max(1, count // 3)]  # the rest is not guessed at
    right = int(((scores[order] > middle) == inside[order]).sum())
    delta, both = plan.budget.delta, 0 < inside.sum() < count
    seen = odds(scores[inside], scores[~inside]) if both else None
    given = {"right": right, "guesses": len(order), "canaries": count}
    return Finding(
        attack=attack,
        unit=UNIT,
        claimed=plan.price.epsilon,
        delta=delta,
        lower_bound=bounds.from_guesses(**given, delta=delta, confidence=CONFIDENCE),
        sure_bound=bounds.from_guesses(**given, delta=delta, confidence=bounds.SURE),
        confidence=CONFIDENCE,
        auc=None if seen is None else seen.auc,
        true_positives=None if seen is None else seen.true_positives,
        trials=count,
        estimate=_estimate(scores[inside], scores[~inside], delta=delta),
        note=_joined(
            note, f"{right} of {len(order)} guesses right; the estimate takes scores for normal and is no bound"
        ),
    )


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


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
