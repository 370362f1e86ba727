"""Noise, samples and price, measured on federations of canaries, beside what their plan states.

Noise is what is left of a release when what the canaries sent is taken off, so its size is measured on millions of
numbers within seconds.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import chi2, norm

from incrowd._random import Floats, SeededRandomness
from incrowd.audit.bounds import SURE
from incrowd.audit.finding import Check
from incrowd.audit.plays import CanaryGame, Play, participation
from incrowd.privacy.account.accounting import Relation
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.sampling import Poisson

ALARM = (1 - SURE) / 4
"""How probable a false alarm of a measurement may be, on either side."""

Steps = Mapping[tuple[float, float], int]
"""How often a canary is sampled with this probability under this noise multiplier."""


def noise_checks(game: CanaryGame, plays: Sequence[Play]) -> list[Check]:
    """The noise of all releases, in stated standard deviations: its size in every part, and between rounds and plays.

    Guarantee: of a right pipeline each of them fails once in a million audits at most.
    """
    noise = np.array([play.noise for play in plays])  # [plays, rounds, numbers]
    found, begin = [], 0
    for place, size in enumerate(game.parts):
        part = noise[:, :, begin : begin + size]
        name = "noise" if len(game.parts) == 1 else f"noise of part {place}"
        found.append(size_of_noise(name, part.ravel(), looks=len(game.parts)))
        begin += size
    rounds = [(noise[:, first], noise[:, second]) for first, second in _pairs(noise.shape[1])]
    runs = [(noise[first], noise[second]) for first, second in _pairs(noise.shape[0])]
    for name, pairs in (("noise of two rounds, alike by", rounds), ("noise of two runs, alike by", runs)):
        if pairs:
            found.append(likeness(pairs, name=name))
    return found


def sampling_checks(game: CanaryGame, plays: Sequence[Play]) -> list[Check]:
    """How often canaries were drawn, and how large cohorts were, against what is priced."""
    plan = game.plan
    sampler = plan.round(0).sampler
    cohorts = np.array([play.cohorts for play in plays])
    expected = np.array([plan.round(number).sampler.expected_cohort for number in range(plan.rounds)])
    probs = np.array([participation(plan, number) for number in range(plan.rounds)])
    name = type(sampler).__name__
    if not isinstance(sampler, Poisson) or bool((probs == 1).all()):
        off = float(np.abs(cohorts - expected).max())
        return [
            Check(
                name="sizes of the cohorts",
                measured=_span(cohorts.min(), cohorts.max()),
                stated=f"{name}, {_span(expected.min(), expected.max())}",
                holds=off < 1,
            )
        ]
    clients = sampler.clients
    variance = clients * probs * (1 - probs)
    taken, chances = sum(int(play.taken.sum()) for play in plays), game.canaries * len(plays)
    mean, spread = chances * probs.sum(), math.sqrt(chances * (probs * (1 - probs)).sum())
    often = abs(taken - mean) / spread
    deviations = (cohorts - expected) / np.sqrt(variance)
    reach = 12 + 40 / math.sqrt(deviations.size)  # a binomial has heavier tails than a normal where few are drawn
    ratio = float((deviations**2).mean())
    slack = reach * math.sqrt((2 + 1 / variance.min()) / deviations.size)
    return [
        Check(
            name="how often a client is drawn",
            measured=f"{taken / chances / plan.rounds:.4f} of the rounds",
            stated=f"{probs.mean():.4f}",
            holds=bool(often < norm.isf(ALARM) + 1),
            note=f"would see {2 * norm.isf(ALARM) * spread / mean:.1%} more or less",
        ),
        Check(
            name="variance of the cohorts' sizes",
            measured=f"{ratio:.3f} of what is stated",
            stated=f"{name}: {variance.mean():.4g}",
            holds=abs(ratio - 1) < slack,
            note="a cohort of one size, priced as a Poisson sample, has none",
        ),
    ]


def price_checks(plan: Plan) -> list[Check]:
    """The stated epsilon, against a lower bound of the stated noise; and what the ledger says in the end."""
    lost, stated = least_epsilon(plan), plan.price.epsilon
    game = CanaryGame(plan=plan)
    ledger = game.ledger()
    nobody = np.zeros(game.canaries, dtype=np.bool_)
    for _ in game.releases(SeededRandomness(seed=0), nobody, ledger=ledger):
        pass
    spent = ledger.spent().epsilon
    return [
        Check(
            name="price",
            measured=f"at least {lost:.4f}",
            stated=f"{stated:.4f}",
            holds=lost <= stated * (1 + 1e-6) and stated <= plan.budget.epsilon * (1 + 1e-9),
            note="the rounds of a canary, composed by an arithmetic of its own",
        ),
        Check(
            name="what the ledger says after the last round",
            measured=f"{spent:.4f}",
            stated=f"{stated:.4f}",
            holds=spent >= lost * (1 - 1e-6),
        ),
    ]


def least_epsilon(plan: Plan) -> float:
    """The epsilon that an adversary gains at the plan's delta, from below.

    Guarantee: never above the epsilon of the stated mechanism.

    Edge cases: correlated noise is one Gaussian release. Where neighbours replace a value, only full participation
    counts both values.
    """
    delta = plan.budget.delta
    if plan.correlated is not None:
        return least_epsilon_of({(1.0, plan.correlated.noise_multiplier): 1}, delta)
    replaces = plan.relation is Relation.REPLACE_ONE
    steps: Counter[tuple[float, float]] = Counter()
    for number in range(plan.rounds):
        prob, noise = participation(plan, number), plan.round(number).noise_multiplier
        steps[prob, noise / 2 if replaces and prob == 1 else noise] += 1
    return least_epsilon_of(steps, delta)


def least_epsilon_of(steps: Steps, delta: float) -> float:
    """The same for Gaussian releases of unit sensitivity."""
    each = [
        pld.from_gaussian_mechanism(
            noise, sampling_prob=prob, pessimistic_estimate=False, use_connect_dots=False
        ).self_compose(times)
        for (prob, noise), times in steps.items()
    ]
    return float(reduce(lambda one, other: one.compose(other), each).get_epsilon_for_delta(delta))


def size_of_noise(name: str, noise: Floats, *, looks: int = 1, kurtosis: float = 3.0) -> Check:
    """Whether numbers have the standard deviation 1, exactly for normal ones, nearly for others; one of so many looks.

    Edge cases: of few numbers that are not normal nothing is sure; the limits are wider than they need be.
    """
    count, alarm = noise.size, ALARM / looks
    ratio = float(np.sqrt((noise**2).mean()))
    if kurtosis == 3:
        low, high = (math.sqrt(float(limit) / count) for limit in (chi2.ppf(alarm, count), chi2.isf(alarm, count)))
    else:
        reach = float(norm.isf(alarm)) * math.sqrt((kurtosis - 1) / count) * (1 + 8 / math.sqrt(count))
        low, high = math.sqrt(max(0.0, 1 - reach)), math.sqrt(1 + 1.5 * reach)
    return Check(
        name=name,
        measured=f"{ratio:.4f} of what is stated",
        stated="1",
        holds=low <= ratio <= high,
        note=f"{count} numbers; would see {2 * (1 - low):.1%} less",
    )


def likeness(pairs: Sequence[tuple[Floats, Floats]], *, name: str) -> Check:
    """Whether noise that should be independent is: no pair of it is alike."""
    size = pairs[0][0].size
    worst = max((float((one * other).mean()) for one, other in pairs), key=abs)
    limit = float(norm.isf(ALARM / len(pairs))) * math.sqrt((1 + 8 / math.sqrt(size)) / size)
    return Check(
        name=name,
        measured=f"{worst:.4f} at most, of {len(pairs)} pairs",
        stated="0",
        holds=abs(worst) <= limit,
        note=f"would see {2 * limit:.2g}",
    )


def _span(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g}\u2013{high:g}"


def _pairs(count: int, most: int = 200) -> list[tuple[int, int]]:
    """Some pairs of so many, neighbours first."""
    pairs = [(first, first + gap) for gap in range(1, count) for first in range(count - gap)]
    return pairs[:most]
