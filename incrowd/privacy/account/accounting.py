"""What it costs: an event in, (epsilon, delta) out.

Every figure is an upper bound. Three accountants give one each, for the events that they support; the least counts:

- GDP: exact, for any composition of Gaussian releases about everyone (Dong, Roth and Su 2019; Balle and Wang 2018)
- PLD: privacy loss distributions on a grid, rounded pessimistically (dp_accounting; cohorts of a fixed size by
  `incrowd.privacy.account.without_replacement`), and never above the sum of the largest losses: for Laplace releases
  the sum of their epsilons, with a delta of 0
- RDP: Rényi differential privacy at dp_accounting's default orders; knows every kind of event here
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from dp_accounting import NeighboringRelation as Relation
from dp_accounting.dp_event import (
    DpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
)

from incrowd import _validate
from incrowd.errors import AccountingError, ConfigError, UnpricedEvent
from incrowd.privacy.account.accountants import Curve, LossDistributionCurve, RenyiCurve
from incrowd.privacy.account.events import OneOfDpEvent, RepeatedEvent, canonical, mechanisms
from incrowd.privacy.account.gaussian import GaussianCurve

__all__ = ["ACCOUNTANTS", "FINE_GRID", "Budget", "Price", "Relation", "delta_at", "first_bound", "price"]

ACCOUNTANTS = ("GDP", "PLD", "RDP")
FINE_GRID = 1e-4


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much may be learned about any one client: (epsilon, delta)."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon)
        _validate.fraction(delta=self.delta)

    def warn_for(self, clients: int) -> str | None:
        """What to tell someone whose delta is no smaller than one in the number of clients, or nothing.

        At delta = 1/K, publishing one client's data outright, the client chosen at random, would be allowed.
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
    """The cost of an event: the least upper bound on epsilon, and who stated it."""

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
    """An epsilon for which the event is (epsilon, delta)-differentially private: the least that can be proven.

    Guarantee: never below the true epsilon. The exact answer (GDP) makes the others superfluous, so they are not asked.

    Edge cases: nothing happened: 0. A delta of 0 has a price where no release can lose more than some epsilon: Laplace
    noise. An event that none of the accountants supports, or that does not fit the relation, raises `UnpricedEvent`.
    An accountant that fails or answers nonsense raises `AccountingError`. Where no finite epsilon can be proven,
    epsilon is infinite.
    """
    _check_delta(delta)
    figures = _BoundQuery(event, relation, accountants, grid, "epsilon", delta).answers()
    best = min(figures, key=lambda name: figures[name])
    return Price(epsilon=figures[best], accountant=best, by_accountant=MappingProxyType(figures))


def delta_at(
    event: DpEvent,
    *,
    epsilon: float,
    relation: Relation,
    accountants: Sequence[str] = ACCOUNTANTS,
    grid: float = FINE_GRID,
) -> float:
    """A delta for which the event is (epsilon, delta)-differentially private: `price`, asked the other way round.

    Guarantee: never below the true delta, never above 1.

    Edge cases: as `price`; epsilon may be 0, where delta is the total variation distance.
    """
    _validate.non_negative(epsilon=epsilon)
    return min(1.0, *_BoundQuery(event, relation, accountants, grid, "delta", epsilon).answers().values())


def first_bound(
    event: DpEvent,
    *,
    delta: float,
    relation: Relation,
    accountants: Sequence[str] = ACCOUNTANTS,
    grid: float = FINE_GRID,
) -> tuple[str, float]:
    """The first finite bound on epsilon, in the order GDP, PLD, RDP, and who stated it: what a search needs, not more.

    Edge cases: as `price`; where nobody proves a finite epsilon, the last one's infinity.
    """
    _check_delta(delta)
    question = _BoundQuery(event, relation, accountants, grid, "epsilon", delta)
    name, epsilon = "", math.inf
    for name in question.curves():
        epsilon = question.kept_answer(name)
        if epsilon < math.inf:
            break
    return name, epsilon


@dataclass(frozen=True)
class _BoundQuery:
    """What is the other of epsilon and delta, given one."""

    event: DpEvent
    relation: Relation
    accountants: Sequence[str]
    grid: float
    asks: Literal["epsilon", "delta"]
    given: float
    runs: Sequence[RepeatedEvent] = field(init=False)

    def __post_init__(self) -> None:
        _validate.positive(grid=self.grid)
        for name in self.accountants:
            if name not in ACCOUNTANTS:
                raise ConfigError(field="accountants", value=name, remedy=f"choose from {', '.join(ACCOUNTANTS)}")
        object.__setattr__(self, "runs", mechanisms(self.event))
        _check_relation(self.runs, self.relation)

    def curves(self) -> dict[str, Callable[[], Curve]]:
        """The way to the curve of each accountant that supports the mechanisms; of GDP alone where it does."""
        curves: dict[str, Callable[[], Curve]] = {}
        if "GDP" in self.accountants and GaussianCurve.supports(self.runs):
            return {"GDP": lambda: GaussianCurve(self.runs)}
        if "PLD" in self.accountants and LossDistributionCurve.supports(self.runs):
            curves["PLD"] = lambda: LossDistributionCurve(self.runs, self.grid)
        if "RDP" in self.accountants and RenyiCurve.supports(self.runs):
            curves["RDP"] = lambda: RenyiCurve(self.runs, self.relation)
        if not curves:
            kinds = ", ".join(type(mechanism).__name__ for mechanism, _ in self.runs)
            raise UnpricedEvent(f"none of {', '.join(self.accountants)} can price this composition of {kinds}")
        return curves

    def answers(self) -> dict[str, float]:
        """What each of these accountants says."""
        return {name: self.kept_answer(name) for name in self.curves()}

    def kept_answer(self, name: str) -> float:
        """`answer`, computed once in this process; GDP keeps its own, by less than is looked at here.

        Nothing of it comes from a disk: ledgers and plans decide by what is said here.
        """
        if name == "GDP":
            return self.answer(name)
        key = self._key(name)
        if key not in _computed:
            if len(_computed) >= _MOST_COMPUTED:
                _computed.clear()
            _computed[key] = self.answer(name)
        return _computed[key]

    def answer(self, name: str) -> float:
        """What the accountant says, if it is an answer."""
        try:
            value = getattr(self.curves()[name](), self.asks)(self.given)
        except (ArithmeticError, MemoryError, ValueError) as error:
            raise AccountingError(f"{name} failed, so there is no price: {error}") from error
        if not value >= 0:
            raise AccountingError(f"{name} answered {value}, so there is no price")
        return float(value)

    def _key(self, name: str) -> Hashable:
        """What the answer depends on."""
        runs = tuple((canonical(mechanism), count) for mechanism, count in self.runs)
        return name, self.grid if name == "PLD" else None, self.relation.name, self.asks, float(self.given), runs


def _check_delta(delta: float) -> None:
    if delta != 0:
        _validate.fraction(delta=delta)


def _check_relation(runs: Sequence[RepeatedEvent], relation: Relation) -> None:
    """Poisson samples go with one client more or less, samples of a fixed size with one client replaced (rule 3)."""
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
