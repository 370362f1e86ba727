"""The one number that a budget leaves to find: the least noise, the most rounds, or the largest cohort.

One search finds the last value that the budget allows on the way from the cheapest to the dearest. It narrows that down
on coarse grids, where a price takes milliseconds, and confirms it on the fine one. Noise is never taken from
sqrt(2 ln(1.25 / delta)) / epsilon, which holds below epsilon = 1 only.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dp_accounting import DpEvent

from incrowd.errors import BudgetExceeded
from incrowd.privacy.account.accounting import ACCOUNTANTS, FINE_GRID, Budget, Relation, first_bound

LEAST_NOISE, MOST_NOISE = 1e-2, 1e9
MOST_ROUNDS = 10**9

_COARSE, _MIDDLE, _FINE = 1e-2, 1e-3, FINE_GRID
# The grids to search on, one after another, and how far from the last allowed value the search on each may end.
_STAGES = {"GDP": ((_FINE, 1e-9),), "PLD": ((_COARSE, 1e-3), (_MIDDLE, 2e-5), (_FINE, 1e-4)), "RDP": ((_FINE, 1e-4),)}


def smallest_noise(
    make_event: Callable[[float], DpEvent],
    *,
    budget: Budget,
    relation: Relation,
    accountants: Sequence[str] = ACCOUNTANTS,
) -> float:
    """The least noise multiplier (or common factor of several) whose event keeps to the budget.

    Guarantee: the price of the event at the returned value is at most the budget's epsilon; at one ten-thousandth less
    noise it is not, unless that would be below `LEAST_NOISE`.
    """
    search = _Calibration(make_event, budget, relation, accountants, cheapest=MOST_NOISE, dearest=LEAST_NOISE)
    return search.last_allowed(start=1.0, cheapest_is=f"noise of {MOST_NOISE:g} times the sensitivity")


def most_rounds(
    make_event: Callable[[int], DpEvent],
    *,
    budget: Budget,
    relation: Relation,
    accountants: Sequence[str] = ACCOUNTANTS,
    most: int = MOST_ROUNDS,
    one: str = "one round",
) -> int:
    """The largest number of rounds (or whatever is counted from `one`), of at most `most`, that keeps to the budget.

    Guarantee: the price of this many rounds is at most the budget's epsilon, the price of one more is not.
    """

    def event(value: float) -> DpEvent:
        return make_event(round(value))

    search = _Calibration(event, budget, relation, accountants, cheapest=1, dearest=most, whole=True)
    return round(search.last_allowed(start=1, cheapest_is=one))


@dataclass(frozen=True)
class _Calibration:
    """The way from the cheapest to the dearest value of one unknown. Distances are differences of logarithms."""

    make_event: Callable[[float], DpEvent]
    budget: Budget
    relation: Relation
    accountants: Sequence[str]
    cheapest: float
    dearest: float
    whole: bool = False
    known: dict[tuple[float, float], float] = field(default_factory=dict)

    def last_allowed(self, *, start: float, cheapest_is: str) -> float:
        """The dearest value that the budget allows: exactly if it is whole, else within the last stage's tolerance."""
        value, step, slope = start, 0.35, 0.0
        for grid, tolerance in _STAGES[self._bound(start, _COARSE)[0]]:
            near = slope * tolerance / 2
            if slope and not 0 <= -self._excess(value, grid) <= near:
                # Follow the last stage's slope, from its edge to this grid's.
                value = self._moved(value, -self._excess(value, grid) / slope - tolerance / 4)
            if grid == _FINE and not self.whole and 0 <= -self._excess(value, grid) <= near:
                break
            value, refused = self._edge(value, step, grid, 0.0 if self.whole and grid == _FINE else tolerance)
            rise = self._excess(refused, grid) - self._excess(value, grid)
            slope = rise / abs(math.log(refused / value)) if 0 < rise < 1 else 0.0  # above, it is a jump
            step = tolerance
        if self._excess(value, _FINE) > 0:
            raise BudgetExceeded(
                f"{cheapest_is} costs epsilon = {self._bound(value, _FINE)[1]:.4g} at delta = {self.budget.delta:g}, "
                f"and the budget is {self.budget.epsilon:g}: ask for less of what is fixed, or allow a larger budget"
            )
        return value

    def _edge(self, start: float, step: float, grid: float, tolerance: float) -> tuple[float, float]:
        """Two neighbours, of which the budget allows the first and refuses the second, or twice the end of the way."""
        allowed, refused = self._bracket(start, step, grid)
        attempts = 0
        while (width := abs(math.log(allowed / refused))) > tolerance:
            if self.whole and abs(allowed - refused) == 1:
                break
            attempts += 1
            below, above = -self._excess(allowed, grid), self._excess(refused, grid)
            # Twice as far as where a straight line crosses, so that not only one of the two ends moves.
            crossing = 2 * width * min(below, above) / (below + above)
            reach = max(crossing, 0.9 * tolerance) if attempts < 15 else width
            step = min(reach, width / 2)
            value = self._moved(allowed, step) if below < above else self._moved(refused, -step)
            if self._excess(value, grid) <= 0:
                allowed = value
            else:
                refused = value
        return allowed, refused

    def _bracket(self, start: float, step: float, grid: float) -> tuple[float, float]:
        """Two values, of which the budget allows the first and refuses the second, in ever longer steps."""
        allowed = refused = None
        value = start
        while allowed is None or refused is None:
            if self._excess(value, grid) <= 0:
                allowed, end, step = value, self.dearest, abs(step)
            else:
                refused, end, step = value, self.cheapest, -abs(step)
            if value == end:
                return end, end
            value = self._moved(value, step)
            step *= 2
        return allowed, refused

    def _moved(self, value: float, distance: float) -> float:
        """The value this far towards the dearest (back, if below 0), within the limits.

        If the unknown is whole, the way ends at a whole number, and at the next one at least.
        """
        up = (self.dearest > self.cheapest) == (distance > 0)
        moved = value * math.exp(abs(distance) if up else -abs(distance))
        if self.whole:
            moved = max(round(moved), value + 1) if up else min(round(moved), value - 1)
        return max(min(self.cheapest, self.dearest), min(max(self.cheapest, self.dearest), moved))

    def _excess(self, value: float, grid: float) -> float:
        """The logarithm of the cost over the budget, between -20 and 20."""
        key = value, grid
        if key not in self.known:
            cost = self._bound(value, grid)[1]
            self.known[key] = max(-20.0, min(20.0, math.log(cost / self.budget.epsilon))) if cost else -20.0
        return self.known[key]

    def _bound(self, value: float, grid: float) -> tuple[str, float]:
        delta, event = self.budget.delta, self.make_event(value)
        return first_bound(event, delta=delta, relation=self.relation, accountants=self.accountants, grid=grid)
