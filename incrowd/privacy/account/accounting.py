"""The price of an event: an event in, (epsilon, delta) out.

Every figure is an upper bound. Three accountants give one each for the events that they support, and the least counts:

- GDP: exact, for any composition of Gaussian releases about everyone (Dong, Roth and Su 2019; Balle and Wang 2018)
- PLD: privacy loss distributions on a grid, rounded pessimistically (dp_accounting; the module
  `incrowd.privacy.account.accountants` adds cohorts of a fixed size), never above the sum of the largest losses
- RDP: Rényi differential privacy at dp_accounting's default orders; it knows every kind of event but pure ones

Any other name is a registered third-party accountant (`incrowd.types.Accountant`), which can only raise these figures.

A budget leaves one number to find: the least noise, the most rounds, or the largest cohort. One search finds the last
value that the budget allows on the way from the cheapest to the dearest. It narrows that down on coarse grids, where a
price takes milliseconds, and confirms it on the fine one. Noise is never taken from sqrt(2 ln(1.25 / delta)) / epsilon,
which holds below epsilon = 1 only.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from dp_accounting import NeighboringRelation as Relation
from dp_accounting.dp_event import (
    DpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)

from incrowd import _extensions, _validate
from incrowd.errors import AccountingError, BudgetExceeded, ConfigError, UnpricedEvent
from incrowd.privacy.account.accountants import Curve, GaussianCurve, LossDistributionCurve, RenyiCurve, largest_loss
from incrowd.privacy.account.events import PureDpEvent, RepeatedEvent, canonical, mechanisms

__all__ = ["ACCOUNTANTS", "FINE_GRID", "Budget", "Price", "Relation", "delta_at", "first_bound", "price"]

ACCOUNTANTS = ("GDP", "PLD", "RDP")
FINE_GRID = 1e-4


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The most that may be learned about any one client: (epsilon, delta)."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon)
        _validate.fraction(delta=self.delta)

    def warn_for(self, clients: int) -> str | None:
        """A warning where delta is no smaller than one in the number of clients, or None.

        At delta = 1/K, publishing the data of one random client outright would be allowed.
        """
        _validate.count(clients=clients)
        if self.delta * clients < 1:
            return None
        return (
            f"delta = {self.delta:g} is at least 1/{clients}: publishing all data of one random client of {clients} "
            f"would count as private. Choose delta well below {1 / clients:g}."
        )


@dataclass(frozen=True, kw_only=True)
class Price:
    """The cost of an event: the least upper bound on epsilon, and which accountant stated it."""

    epsilon: float
    accountant: str
    by_accountant: Mapping[str, float]


def price(
    event: DpEvent,
    *,
    delta: float,
    relation: Relation,
    accountants: Sequence[str] = ACCOUNTANTS,
    grid: float = FINE_GRID,
) -> Price:
    """The least epsilon that can be proven for which the event is (epsilon, delta)-differentially private.

    Guarantee: never below the true epsilon. Only GDP runs for the events that it supports, because it is exact.

    Edge cases: an empty event costs 0. A delta of 0 has a price where every loss is bounded, as with Laplace noise. An
    event that no accountant supports, or that does not fit the relation, raises `UnpricedEvent`. An accountant that
    fails or answers nonsense raises `AccountingError`. Without a finite bound, epsilon is infinite.
    """
    _check_delta(delta)
    figures = dict(_bounds(event, "epsilon", delta, relation=relation, accountants=accountants, grid=grid))
    least = min(figures.items(), key=lambda figure: figure[1])
    others = _third_party(event, "epsilon", delta, relation=relation, accountants=accountants)
    name, epsilon = max([least, *others], key=lambda figure: figure[1])
    return Price(epsilon=epsilon, accountant=name, by_accountant=MappingProxyType(figures | dict(others)))


def delta_at(
    event: DpEvent,
    *,
    epsilon: float,
    relation: Relation,
    accountants: Sequence[str] = ACCOUNTANTS,
    grid: float = FINE_GRID,
) -> float:
    """The least delta that can be proven at an epsilon: the inverse of `price`.

    Guarantee: never below the true delta, never above 1.

    Edge cases: as `price`; epsilon may be 0, where delta is the total variation distance.
    """
    _validate.non_negative(epsilon=epsilon)
    bounds = _bounds(event, "delta", epsilon, relation=relation, accountants=accountants, grid=grid)
    others = _third_party(event, "delta", epsilon, relation=relation, accountants=accountants)
    return min(1.0, max([min(delta for _, delta in bounds), *(delta for _, delta in others)]))


def first_bound(
    event: DpEvent,
    *,
    delta: float,
    relation: Relation,
    accountants: Sequence[str] = ACCOUNTANTS,
    grid: float = FINE_GRID,
) -> tuple[str, float]:
    """The first finite bound on epsilon, in the order GDP, PLD, RDP, and its accountant: enough for a search.

    Edge cases: as `price`; without a finite bound, the last accountant's infinity.
    """
    _check_delta(delta)
    bound = "", math.inf
    for bound in _bounds(event, "epsilon", delta, relation=relation, accountants=accountants, grid=grid):
        if bound[1] < math.inf:
            break
    others = _third_party(event, "epsilon", delta, relation=relation, accountants=accountants)
    return bound[0], max([bound[1], *(epsilon for _, epsilon in others)])


def plainly_within(runs: Sequence[RepeatedEvent], budget: Budget) -> bool:
    """Whether two lines of arithmetic prove that these releases keep to the budget; otherwise `price` decides.

    The tight price of many Laplace releases can take seconds of Fourier transforms, and most charges are far from the
    end of a budget.

    Guarantee: a yes means that the releases together are (epsilon, delta)-differentially private for the budget's two
    numbers. Either their largest losses add up to at most epsilon, or their concentrated privacy does: each epsilon
    counts rho = epsilon^2 / 2, and a sum of rho is (rho + 2 sqrt(rho log(1 / delta)), delta)-private (Bun and Steinke
    2016, propositions 1.3 and 1.4).

    Edge cases: no releases, sampled ones, and any kind but Laplace noise and pure ones get a no.
    """
    losses = [(_plain_loss(event), count) for event, count in runs]
    if not runs or not all(0 < loss < math.inf for loss, _ in losses):
        return False
    if largest_loss(runs) <= budget.epsilon:
        return True
    rho = sum(count * 0.5 * loss**2 for loss, count in losses)
    return bool((rho + 2 * math.sqrt(rho * math.log(1 / budget.delta))) * (1 + 1e-9) <= budget.epsilon)


def _plain_loss(event: DpEvent) -> float:
    """The largest privacy loss of a release about everyone; infinite for any other event."""
    if isinstance(event, PureDpEvent):
        return float(event.epsilon)
    if isinstance(event, LaplaceDpEvent) and event.noise_multiplier > 0:
        return float(1 / event.noise_multiplier)
    return math.inf


def _bounds(
    event: DpEvent, asks: str, known: float, *, relation: Relation, accountants: Sequence[str], grid: float
) -> Iterator[tuple[str, float]]:
    """The answers of the accountants that support the mechanisms, one after the other, or of GDP alone.

    An answer is computed once in this process. None comes from a disk: ledgers and plans decide by it.
    """
    _validate.positive(grid=grid)
    if _others(accountants):
        accountants = [name for name in accountants if name in ACCOUNTANTS] or ACCOUNTANTS
    runs = mechanisms(event)
    _check_relation(runs, relation)
    if "GDP" in accountants and GaussianCurve.supports(runs):
        yield "GDP", _answer("GDP", lambda: GaussianCurve(runs), asks, known)  # which keeps its answers
        return
    curves: dict[str, Callable[[], Curve]] = {}
    if "PLD" in accountants and LossDistributionCurve.supports(runs):
        curves["PLD"] = lambda: LossDistributionCurve(runs, grid)
    if "RDP" in accountants and RenyiCurve.supports(runs):
        curves["RDP"] = lambda: RenyiCurve(runs, relation)
    if not curves:
        kinds = ", ".join(type(mechanism).__name__ for mechanism, _ in runs)
        raise UnpricedEvent(f"none of {', '.join(accountants)} can price this composition of {kinds}")
    composed = tuple((canonical(mechanism), count) for mechanism, count in runs)
    for name, curve in curves.items():
        key = name, grid if name == "PLD" else None, relation.name, asks, float(known), composed
        if key not in _computed:
            if len(_computed) >= _MOST_COMPUTED:
                _computed.clear()
            _computed[key] = _answer(name, curve, asks, known)
        yield name, _computed[key]


def _third_party(
    event: DpEvent, asks: str, known: float, *, relation: Relation, accountants: Sequence[str]
) -> list[tuple[str, float]]:
    """The answers of third-party accountants. They are not verified, so they may raise a price and never lower it."""
    asked = {name: getattr(accountant, asks) for name, accountant in _others(accountants).items()}
    return [(name, _checked(name, partial(ask, event, known, relation=relation))) for name, ask in asked.items()]


def _others(accountants: Sequence[str]) -> dict[str, Any]:
    """The third-party accountants among these."""
    names = [name for name in accountants if name not in ACCOUNTANTS]
    found = partial(_extensions.found, "accountants", field="accountants", known=ACCOUNTANTS)
    return {name: found(name) for name in names}


def _answer(name: str, curve: Callable[[], Curve], asks: str, known: float) -> float:
    """An accountant's epsilon or delta, checked."""
    return _checked(name, lambda: getattr(curve(), asks)(known))


def _checked(name: str, answer: Callable[[], float]) -> float:
    try:
        value = float(answer())
    except (ArithmeticError, MemoryError, ValueError) as error:
        raise AccountingError(f"{name} failed, so there is no price: {error}") from error
    if not value >= 0:
        raise AccountingError(f"{name} answered {value}, so there is no price")
    return value


def _check_delta(delta: float) -> None:
    if delta != 0:
        _validate.fraction(delta=delta)


def _check_relation(runs: Sequence[RepeatedEvent], relation: Relation) -> None:
    """Poisson samples go with one client more or less, samples of a fixed size with one client replaced."""
    if not isinstance(relation, Relation):
        raise ConfigError(field="relation", value=relation, remedy="give a Relation")
    for mechanism, _ in runs:
        fixed = isinstance(mechanism, SampledWithoutReplacementDpEvent)
        if isinstance(mechanism, _SAMPLES) and fixed != (relation is Relation.REPLACE_ONE):
            fits = "REPLACE_ONE" if fixed else "ADD_OR_REMOVE_ONE or REPLACE_SPECIAL"
            raise UnpricedEvent(f"{type(mechanism).__name__} has a price under {fits}, not under {relation.name}")


_MOST_COMPUTED = 10_000
_computed: dict[Hashable, float] = {}
_SAMPLES = (PoissonSampledDpEvent, SampledWithoutReplacementDpEvent)


LEAST_NOISE, MOST_NOISE = 1e-2, 1e9
MOST_ROUNDS = 10**9

_COARSE, _MIDDLE, _FINE = 1e-2, 1e-3, FINE_GRID
# The grids to search on, one after another, and how far from the last allowed value the search on each may end.
_STAGES = {
    "GDP": ((_FINE, 1e-9),),
    "PLD": ((_COARSE, 1e-3), (_MIDDLE, 2e-5), (_FINE, 1e-4)),
    "RDP": ((_FINE, 1e-4),),
}


def smallest_noise(
    make_event: Callable[[float], DpEvent],
    *,
    budget: Budget,
    relation: Relation,
    accountants: Sequence[str] = ACCOUNTANTS,
) -> float:
    """The least noise multiplier (or common factor of several) whose event keeps to the budget.

    Guarantee: the price of the event at the returned value is at most the budget's epsilon; at one ten-thousandth less
    noise it is not.

    Edge cases: if a factor of 10^9 is not enough, `BudgetExceeded`. The result is at least 0.01, even if delta is so
    large that sampling alone is private enough.
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
    """The largest number of rounds, of at most `most`, whose event keeps to the budget.

    Guarantee: the price of this many rounds is at most the budget's epsilon, the price of one more is not.

    Edge cases: if one round costs too much, `BudgetExceeded`.
    """

    def event(value: float) -> DpEvent:
        return make_event(round(value))

    search = _Calibration(event, budget, relation, accountants, cheapest=1, dearest=most, whole=True)
    return round(search.last_allowed(start=1, cheapest_is=one))


def largest_cohort(
    make_event: Callable[[int], DpEvent],
    *,
    clients: int,
    budget: Budget,
    relation: Relation,
    accountants: Sequence[str] = ACCOUNTANTS,
) -> int:
    """The largest cohort, of at most all clients, whose event keeps to the budget: as `most_rounds`."""
    _validate.count(clients=clients)
    one = "a cohort of one client"
    return most_rounds(make_event, budget=budget, relation=relation, accountants=accountants, most=clients, one=one)


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
        """Two neighbours, of which the budget allows the first and refuses the second.

        Edge cases: if everything is allowed or everything refused, twice the end of the way.
        """
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
