"""What the canaries of `plays` could prove of the stated mechanism, with endless trials: a price from below.

The accountants bound epsilon from above. This is the same from below, by an arithmetic of its own: the two densities of
what one canary's releases look like, their privacy loss on a grid, rounded so that it is never too large, and all
rounds composed by a Fourier transform (Koskela, Jälkö, Honkela 2020). A plan whose stated epsilon is less is priced
wrongly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.signal import fftconvolve

from incrowd._random import Floats
from incrowd.audit.plays import log_mixed, participation
from incrowd.privacy.account.accounting import Relation
from incrowd.privacy.plan.correlated_plan import CorrelatedPlan
from incrowd.privacy.plan.promise import Promise

_REACH = 9.0
"""So many standard deviations are looked at; what lies beyond is left out, which makes delta no larger."""

_POINTS = 100_001
_LOSSES = 2**18
"""The losses of all rounds together are on a grid of so many steps."""


@dataclass(frozen=True, kw_only=True)
class Looks:
    """So many looks at Gaussian noise, in clip bounds, and at a canary that is in it with a probability; who is not
    inside sends nothing, or where values are replaced, the opposite.
    """

    prob: float
    noise: float
    times: int = 1
    replaces: bool = False

    @property
    def apart(self) -> int:
        """How many bounds neighbours are apart."""
        return 2 if self.replaces else 1


def attainable(plan: Promise) -> float:
    """The epsilon that is lost at the plan's delta to an adversary who sees all releases, from below.

    Guarantee: never above the epsilon of the stated mechanism, and near it.

    Edge cases: correlated noise is one Gaussian release.
    """
    delta = plan.budget.delta
    if isinstance(plan, CorrelatedPlan):
        return attainable_in([Looks(prob=1.0, noise=plan.noise.noise_multiplier)], delta)
    replaces = plan.relation is Relation.REPLACE_ONE
    alike: dict[tuple[float, float], int] = {}
    for number in range(plan.rounds):
        key = participation(plan, number), plan.round(number).noise_multiplier
        alike[key] = alike.get(key, 0) + 1
    looks = [Looks(prob=prob, noise=noise, times=times, replaces=replaces) for (prob, noise), times in alike.items()]
    return attainable_in(looks, delta)


def attainable_in(looks: Sequence[Looks], delta: float) -> float:
    """The same for any looks at one canary, whatever they are looks at."""
    return max(_of_direction(looks, delta, swapped=False), _of_direction(looks, delta, swapped=True))


def _of_direction(looks: Sequence[Looks], delta: float, *, swapped: bool) -> float:
    """The smallest epsilon whose delta is at most this, for losses of one of the two neighbours."""
    spread = math.sqrt(sum(one.times * (one.prob * one.apart / one.noise) ** 2 for one in looks))
    step = max((40 * spread + 20) / _LOSSES, 1e-6)
    composed, begin = np.ones(1), 0
    for look in looks:
        one, first = _losses(look, step, swapped=swapped)
        several, start = _repeated(one, first, look.times)
        composed, begin = fftconvolve(composed, several).clip(min=0), begin + start
        composed, begin = _trimmed(composed, begin)
    losses = (begin + np.arange(composed.size)) * step

    def left(epsilon: float) -> float:
        above = losses > epsilon
        return float((composed[above] * -np.expm1(epsilon - losses[above])).sum())

    if left(0.0) <= delta:
        return 0.0
    low, high = 0.0, float(losses[-1])
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if left(middle) > delta else (low, middle)
    return low


def _losses(look: Looks, step: float, *, swapped: bool) -> tuple[Floats, int]:
    """The loss of one look on the grid, rounded down, as probabilities from a first step on."""
    edges = np.linspace(-1 - _REACH * look.noise, 1 + _REACH * look.noise, _POINTS)
    middles = (edges[1:] + edges[:-1]) / 2
    alone = -0.5 * (middles / look.noise) ** 2 - math.log(look.noise * math.sqrt(2 * math.pi))
    inside = alone + log_mixed(middles, 1.0, look.noise, look.prob)
    outside = alone + log_mixed(middles, -1.0, look.noise, look.prob) if look.replaces else alone
    first, second = (outside, inside) if swapped else (inside, outside)
    places = np.floor((first - second) / step).astype(np.int64)
    begin = int(places.min())
    mass: Floats = np.bincount(places - begin, weights=np.exp(first) * (edges[1] - edges[0])).astype(np.float64)
    return mass, begin


def _repeated(one: Floats, begin: int, times: int) -> tuple[Floats, int]:
    """The sum of so many losses, by squaring."""
    total, start = np.ones(1), 0
    while times:
        if times % 2:
            total, start = _trimmed(fftconvolve(total, one).clip(min=0), start + begin)
        one, begin = _trimmed(fftconvolve(one, one).clip(min=0), 2 * begin)
        times //= 2
    return total, start


def _trimmed(mass: Floats, begin: int) -> tuple[Floats, int]:
    """Without ends that weigh nothing; leaving mass out makes delta no larger."""
    seen = np.flatnonzero(mass > 1e-17)
    return mass[seen[0] : seen[-1] + 1], begin + int(seen[0])
