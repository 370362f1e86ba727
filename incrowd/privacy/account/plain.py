"""A bound that costs nothing to compute: enough to see that a small sum is within a budget.

The tight price of many Laplace releases takes a Fourier transform of their losses, up to seconds of it. Most charges
are far from the budget's end, where two lines of arithmetic prove as much as is asked.
"""

import math
from collections.abc import Sequence

from dp_accounting import DpEvent, LaplaceDpEvent

from incrowd.privacy.account.accountants import largest_loss
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.account.events import PureDpEvent, RepeatedEvent

_ROUNDED_UP = 1 + 1e-9


def plainly_within(runs: Sequence[RepeatedEvent], budget: Budget) -> bool:
    """Whether it is plain that these releases cost no more than the budget; if not, the price has to tell.

    Guarantee: where it says yes, the releases together are (epsilon, delta)-differentially private for the budget's two
    numbers: their largest losses add up to no more than epsilon, or their concentrated privacy does (an epsilon is rho
    = epsilon^2 / 2, and so many rho are (rho + 2 sqrt(rho log(1 / delta)), delta): Bun and Steinke 2016, propositions
    1.3 and 1.4).

    Edge cases: no releases, and those of any kind but Laplace noise and pure ones, sampled ones among them, are never
    plain.
    """
    losses = [(_loss(event), count) for event, count in runs]
    if not runs or not all(0 < loss < math.inf for loss, _ in losses):
        return False
    if largest_loss(runs) <= budget.epsilon:
        return True
    rho = sum(count * 0.5 * loss**2 for loss, count in losses)
    return bool((rho + 2 * math.sqrt(rho * math.log(1 / budget.delta))) * _ROUNDED_UP <= budget.epsilon)


def _loss(event: DpEvent) -> float:
    """The largest privacy loss of a release about everyone; infinite where it has none that is plain."""
    if isinstance(event, PureDpEvent):
        return float(event.epsilon)
    if isinstance(event, LaplaceDpEvent) and event.noise_multiplier > 0:
        return float(1 / event.noise_multiplier)
    return math.inf
