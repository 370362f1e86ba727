"""A lower bound on the epsilon of the stated noise, from dp_accounting's optimistic privacy loss distributions.

The accountants bound epsilon from above. A plan whose stated epsilon is below this bound is priced wrongly.
"""

from collections import Counter
from collections.abc import Mapping
from functools import reduce

from dp_accounting.pld import privacy_loss_distribution as pld

from incrowd.audit.plays import participation
from incrowd.privacy.account.accounting import Relation
from incrowd.privacy.plan.correlated_plan import CorrelatedPlan
from incrowd.privacy.plan.promise import Promise

Steps = Mapping[tuple[float, float], int]
"""How often a canary is sampled with this probability under this noise multiplier."""


def least_epsilon(plan: Promise) -> float:
    """The epsilon that an adversary gains at the plan's delta, from below.

    Guarantee: never above the epsilon of the stated mechanism.

    Edge cases: correlated noise is one Gaussian release. Where neighbours replace a value, only full participation
    counts both values.
    """
    delta = plan.budget.delta
    if isinstance(plan, CorrelatedPlan):
        return least_epsilon_of({(1.0, plan.noise.noise_multiplier): 1}, delta)
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
