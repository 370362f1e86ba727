"""The noise of the next round, from what is left of a budget and the rounds that are to share it.

A plan that is made once cannot know what will happen to it: rounds that a party misses, other spending from the same
ledger, a number of rounds that changes. Here the noise of a round is solved for when the round is due, by composition
with all that was spent before. How the rest of the budget is divided is a pace:

| pace               | divides                                                                                       |
| ------------------ | --------------------------------------------------------------------------------------------- |
| `constant-noise`   | nothing: all remaining rounds get the same noise, the least that they can all have        |
| `constant-epsilon` | epsilon: each round adds the same to it                                                       |
| `square-root`      | the square of epsilon: after round t of R it is the budget's times sqrt(t / R)                |

Many small releases together cost about as much epsilon as the root of their number, so the square root is nearly the
constant noise, while constant epsilon starts with much noise and ends with little.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dp_accounting import DpEvent

from incrowd import _validate
from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.account.accounting import FINE_GRID, Budget, Relation, first_bound, price
from incrowd.privacy.account.calibration import smallest_noise
from incrowd.privacy.account.events import RepeatedEvent, compose

NoiseRuns = Callable[[float], Sequence[RepeatedEvent]]
"""What a round costs for a noise multiplier: its events, each with a count."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How the rest of a budget is divided among the remaining rounds.

    `divided` takes the epsilon that is spent, the budget's, and the number of remaining rounds, and gives what epsilon
    may be after the next of them; without it, all of them are to have the same noise.
    """

    name: str
    divided: Callable[[float, float, int], float] | None = None


def _even(spent: float, whole: float, rounds: int) -> float:
    return spent + (whole - spent) / rounds


def _root(spent: float, whole: float, rounds: int) -> float:
    return math.sqrt(spent**2 + (whole**2 - spent**2) / rounds)


CONSTANT_NOISE = Pace(name="constant-noise")
CONSTANT_EPSILON = Pace(name="constant-epsilon", divided=_even)
SQUARE_ROOT = Pace(name="square-root", divided=_root)
PACES = {pace.name: pace for pace in (CONSTANT_NOISE, CONSTANT_EPSILON, SQUARE_ROOT)}
"""The paces by the names that configuration files and the command line use."""

_TOLERANCE = 1e-4
_COARSE_GRID = 10 * FINE_GRID
_ATTEMPTS = 10


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """What remains: a budget, all that was spent of it, and how many rounds are still planned, the next one included.

    Edge cases: no round remains: `BudgetExceeded`.
    """

    budget: Budget
    relation: Relation
    spent: tuple[RepeatedEvent, ...]
    rounds: int

    def __post_init__(self) -> None:
        _validate.natural(rounds=self.rounds)
        if self.rounds == 0:
            raise BudgetExceeded("all planned rounds are over: plan more of them before the first one")

    @property
    def epsilon(self) -> float:
        """What was spent."""
        return price(compose(self.spent), delta=self.budget.delta, relation=self.relation).epsilon

    def target(self, pace: Pace) -> float:
        """What epsilon may be after the next round (under constant noise: after the last).

        Edge cases: nothing remains: `BudgetExceeded`.
        """
        spent, whole = self.epsilon, self.budget.epsilon
        if spent >= whole:
            raise BudgetExceeded(f"epsilon = {spent:.6g} of {whole:g} is spent: nothing remains for another round")
        if pace.divided is None:
            return whole
        return min(whole, pace.divided(spent, whole, self.rounds))

    def noise(
        self,
        runs: NoiseRuns,
        *,
        pace: Pace = CONSTANT_NOISE,
        usual: float | None = None,
        most: float = math.inf,
    ) -> float:
        """The least noise multiplier of the next round that keeps to the pace.

        More than `most` is not looked for once anything was spent: where that is too little, nothing remains. `usual`
        is the multiplier of the round before: where constant noise still means that one, it is given again, so that
        equal rounds stay equal, and quick to price.

        Guarantee: all that was spent, and the next round (under constant noise: all remaining rounds) with this noise,
        cost at most the target; with one ten-thousandth less noise they would cost more. So a run that asks before each
        round never breaks its budget, and meets it in its last round.

        Edge cases: where not even a noise of 10^9 times the sensitivity is enough, or nothing remains:
        `BudgetExceeded`.
        """
        goal = Budget(epsilon=self.target(pace), delta=self.budget.delta)
        times = self.rounds if pace.divided is None else 1

        def event(multiplier: float) -> DpEvent:
            return compose([*self.spent, *((once, count * times) for once, count in runs(multiplier))])

        search = _NoiseSearch(event=event, goal=goal, relation=self.relation, spent=compose(self.spent))
        if usual is not None and pace.divided is None and search.is_least(usual):
            return usual
        if self.spent and most < math.inf and not search.fits(most):
            raise BudgetExceeded(
                f"what remains of epsilon = {self.budget.epsilon:g} would take a noise multiplier above {most:g}, and "
                "that is the most: nobody would learn from more"
            )
        if self.spent:
            least = search.least_noise(start=usual or 1.0)
            if least is not None:
                return least
        return smallest_noise(event, budget=goal, relation=self.relation)


@dataclass(frozen=True, kw_only=True)
class _NoiseSearch:
    """A search for the least noise that asks for the price on the fine grid about once.

    Every round that was spent with noise of its own makes that price dearer. A coarser grid overstates epsilon by a
    share that one more round hardly changes, so what it says of the spent rounds tells how far to trust it.

    Guarantee: what is found is confirmed on the fine grid, where it keeps to the goal; how close it comes is judged by
    the slope there. It depends on the arguments alone.
    """

    event: Callable[[float], DpEvent]
    goal: Budget
    relation: Relation
    spent: DpEvent

    def is_least(self, multiplier: float) -> bool:
        """Whether a search could have found this multiplier: it keeps to the goal, and a little less does not."""
        return self.fits(multiplier) and not self.fits(multiplier / (1 + _TOLERANCE))

    def fits(self, multiplier: float) -> bool:
        """Whether this multiplier keeps to the goal."""
        return self._excess(self.event(multiplier), FINE_GRID)[1] <= 0

    def least_noise(self, *, start: float) -> float | None:
        """The multiplier, or None where it takes the thorough search: another accountant, or too many attempts.

        It follows the secant of the logarithms of price and multiplier into the last ten-thousandth before the goal.
        """
        accountant, excess = self._excess(self.event(start), _COARSE_GRID)
        if accountant != "PLD":
            return None
        before = self._excess(self.spent, _COARSE_GRID)[1]
        offset = before - self._excess(self.spent, FINE_GRID)[1]
        # Epsilon squared grows with the sum of 1 / multiplier^2, or somewhat faster: a first guess, put right at once.
        at, slope = math.log(start), min(1.5 * math.expm1(2 * before), -1e-6)
        excess -= offset
        for attempt in range(_ATTEMPTS):
            near = -slope * _TOLERANCE
            if attempt and abs(excess + near / 2) <= near / 4:
                fine = self._excess(self.event(math.exp(at)), FINE_GRID)[1]
                if -near <= fine <= 0:
                    return math.exp(at)
                excess, offset = fine, offset + excess - fine
            step = max(-0.5, min(0.5, (excess + near / 2) / -slope))
            after = self._excess(self.event(math.exp(at + step)), _COARSE_GRID)[1] - offset
            if abs(step) > _TOLERANCE:  # shorter ones show more rounding than slope
                slope = min((after - excess) / step, -1e-6)
            at, excess = at + step, after
        return None

    def _excess(self, event: DpEvent, grid: float) -> tuple[str, float]:
        """The logarithm of the price over the goal, after the name of the accountant."""
        accountant, cost = first_bound(event, delta=self.goal.delta, relation=self.relation, grid=grid)
        return accountant, math.log(cost / self.goal.epsilon) if 0 < cost < math.inf else math.copysign(20.0, cost - 1)


def named(name: str) -> Pace:
    """The pace of this name."""
    if name not in PACES:
        raise ConfigError(field="pace", value=name, remedy=f"give one of {', '.join(PACES)}")
    return PACES[name]
