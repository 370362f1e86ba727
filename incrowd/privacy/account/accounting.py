"""The price of an event: an event in, (epsilon, delta) out.

Every figure is an upper bound. Three accountants give one each for the events that they support, and the least counts:

- GDP: exact, for any composition of Gaussian releases about everyone (Dong, Roth and Su 2019; Balle and Wang 2018)
- PLD: privacy loss distributions on a grid, rounded pessimistically (dp_accounting; the module
  `incrowd.privacy.account.gaussian` adds cohorts of a fixed size), never above the sum of the largest losses
- RDP: Rényi differential privacy at dp_accounting's default orders; it knows every kind of event but pure ones

Any other name is a registered third-party accountant (`incrowd.types.Accountant`), which can only raise these figures.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from dp_accounting import NeighboringRelation as Relation
from dp_accounting.dp_event import (
    DpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
)

from incrowd import _extensions, _validate
from incrowd.errors import AccountingError, ConfigError, UnpricedEvent
from incrowd.privacy.account.accountants import Curve, LossDistributionCurve, RenyiCurve, largest_loss
from incrowd.privacy.account.events import OneOfDpEvent, PureDpEvent, RepeatedEvent, canonical, mechanisms
from incrowd.privacy.account.gaussian import GaussianCurve

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
        if isinstance(mechanism, RepeatAndSelectDpEvent):
            _check_relation(mechanisms(mechanism.event), relation)
        if isinstance(mechanism, OneOfDpEvent):
            for option in mechanism.events:
                _check_relation(mechanisms(option), relation)
        fixed = isinstance(mechanism, SampledWithoutReplacementDpEvent)
        if isinstance(mechanism, _SAMPLES) and fixed != (relation is Relation.REPLACE_ONE):
            fits = "REPLACE_ONE" if fixed else "ADD_OR_REMOVE_ONE or REPLACE_SPECIAL"
            raise UnpricedEvent(f"{type(mechanism).__name__} has a price under {fits}, not under {relation.name}")


_MOST_COMPUTED = 10_000
_computed: dict[Hashable, float] = {}
_SAMPLES = (PoissonSampledDpEvent, SampledWithoutReplacementDpEvent)
