"""The price of an event: an event in, (epsilon, delta) out.

Every figure is an upper bound. Three accountants give one each for the events that they support, and the least counts:

- GDP: exact, for any composition of Gaussian releases about everyone (Dong, Roth and Su 2019; Balle and Wang 2018)
- PLD: privacy loss distributions on a grid, rounded pessimistically, never above the sum of the largest losses
- RDP: Rényi differential privacy at dp_accounting's default orders; it knows every kind of event but pure ones

Any other name is a registered third-party accountant (`incrowd.types.Accountant`), which can only raise these figures.
PLD and RDP rest on dp_accounting's mechanisms and arithmetic, and close its gaps: failed arithmetic is an error, not an
epsilon of 0, and a mechanism is priced once however often it ran.
"""

import json
import logging
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, partial, reduce
from types import MappingProxyType
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation as Relation
from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.rdp import rdp_privacy_accountant as rdp

from incrowd import _extensions, _validate
from incrowd._random import Floats
from incrowd.errors import AccountingError, ConfigError, UnpricedEvent
from incrowd.privacy.account.events import (
    PureDpEvent,
    RepeatedEvent,
    canonical,
    compose,
    event_from_json,
    fixed_size_loss,
    gaussian_epsilon,
    log_delta,
    mechanisms,
    poisson_loss,
)

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
        """A warning where delta is at least one in the number of clients, or None."""
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

    Guarantee: never below the true epsilon, and infinite where nothing is proven. An event that no accountant supports,
    or that does not fit the relation (`UnpricedEvent`), and an accountant that fails (`AccountingError`) have no price.
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

    Guarantee: never below the true delta, never above 1. At an epsilon of 0 it is the total variation distance.
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
    """The first finite bound on epsilon, in the order GDP, PLD, RDP, and its accountant: enough for a search."""
    _check_delta(delta)
    bound = "", math.inf
    for bound in _bounds(event, "epsilon", delta, relation=relation, accountants=accountants, grid=grid):
        if bound[1] < math.inf:
            break
    others = _third_party(event, "epsilon", delta, relation=relation, accountants=accountants)
    return bound[0], max([bound[1], *(epsilon for _, epsilon in others)])


def quickly_within(runs: Sequence[RepeatedEvent], budget: Budget, relation: Relation) -> bool:
    """Whether bounds that need no Fourier transforms prove that these releases keep to the budget. Otherwise `price`
    decides, whose transforms can take seconds each time.

    Guarantee: a yes means that the releases together are (epsilon, delta)-differentially private for the budget's two
    numbers. GDP or RDP proves it. Or, for Laplace noise and pure releases about everyone, their largest losses add up
    to at most epsilon, or their concentrated privacy does: each epsilon counts rho = epsilon^2 / 2, and a sum of rho is
    (rho + 2 sqrt(rho log(1 / delta)), delta)-private (Bun and Steinke 2016, propositions 1.3 and 1.4).
    """
    losses = [(_plain_loss(event), count) for event, count in runs]
    if runs and all(0 < loss < math.inf for loss, _ in losses):
        rho = sum(count * 0.5 * loss**2 for loss, count in losses)
        concentrated = (rho + 2 * math.sqrt(rho * math.log(1 / budget.delta))) * (1 + 1e-9)
        return min(largest_loss(runs), concentrated) <= budget.epsilon
    try:
        asked = {"delta": budget.delta, "relation": relation, "accountants": ("GDP", "RDP")}
        return first_bound(compose(runs), **asked)[1] <= budget.epsilon
    except UnpricedEvent:
        return False


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
    found = partial(_extensions.found, "accountants", field="accountants", known=ACCOUNTANTS)
    return {name: found(name) for name in accountants if name not in ACCOUNTANTS}


def _answer(name: str, curve: Callable[[], "Curve"], asks: str, known: float) -> float:
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


class GaussianCurve:
    """The exact privacy curve of Gaussian releases about everyone (Balle and Wang 2018, theorem 8).

    Beyond mu = 10^4 (an epsilon of some 5 * 10^7) nothing is proven: epsilon is infinite and delta 1.
    """

    def __init__(self, runs: Sequence[RepeatedEvent]) -> None:
        self.mu = math.hypot(*(math.sqrt(count) / gaussian.noise_multiplier for gaussian, count in runs))

    @staticmethod
    def supports(runs: Sequence[RepeatedEvent]) -> bool:
        """Whether all of these are Gaussian releases about everyone."""
        return all(isinstance(mechanism, GaussianDpEvent) for mechanism, _ in runs)

    def epsilon(self, delta: float) -> float:
        """The epsilon that goes with a delta, moved up by more than the error of its root."""
        return gaussian_epsilon(self.mu, delta)

    def delta(self, epsilon: float) -> float:
        """The delta that goes with an epsilon."""
        if self.mu == 0:
            return 0.0
        if self.mu > 1e4:
            return 1.0
        return min(1.0, math.exp(log_delta(self.mu, epsilon)))


ORDERS: Sequence[float] = tuple(rdp.DEFAULT_RDP_ORDERS)


class LossDistributionCurve:
    """PLD: the distribution of the privacy loss on a grid, rounded pessimistically (Doroshenko et al. 2022).

    Bounded losses have a bounded sum (basic composition: Dwork and Roth 2014, theorem 3.16), whatever delta is. The
    lesser of this sum and of the grid's bound counts. A mechanism without sampling costs the same under every relation,
    because its noise multiplier is relative to that relation's sensitivity: dp_accounting, which would double some
    sensitivities under REPLACE_ONE, is not told the relation.

    Guarantee: an upper bound even where the rounding of the Fourier transforms is as large as delta. Their error grows
    with the number of compositions (below 6e-17 times it in all measurements against the exact curve), and 15 times
    that is taken off delta: at a delta below this margin only the largest loss is proven. Losses too large for memory
    are put on a coarser grid, which only raises the bound; a grid above 1 proves nothing.
    """

    def __init__(self, runs: Sequence[RepeatedEvent], grid: float) -> None:
        self._runs = runs
        self._largest = largest_loss(runs)
        self._grid = grid * _widening(runs)
        self._margin = 4 * np.finfo(float).eps * sum(count for _, count in runs)

    @cached_property
    def _total(self) -> Any:
        parts = [part for mechanism, count in self._runs for part in _repeated(canonical(mechanism), count, self._grid)]
        return reduce(lambda total, part: total.compose(part), parts) if parts else pld.identity(self._grid)

    @staticmethod
    def supports(runs: Sequence[RepeatedEvent]) -> bool:
        """Whether PLD knows the losses of each."""
        return all(_has_losses(mechanism) for mechanism, _ in runs)

    def epsilon(self, delta: float) -> float:
        """The epsilon that goes with a delta, which may be 0; infinite where none can be proven."""
        if self._grid > 1 or delta <= self._margin:
            return self._largest
        with _quietly():
            return min(float(self._total.get_epsilon_for_delta(delta - self._margin)), self._largest)

    def delta(self, epsilon: float) -> float:
        """The delta that goes with an epsilon."""
        if epsilon >= self._largest:
            return 0.0
        if self._grid > 1:
            return 1.0
        with _quietly():
            return float(self._total.get_delta_for_epsilon(epsilon)) + self._margin


def _release(mechanism: DpEvent) -> tuple[float, DpEvent]:
    """The probability with which one client takes part, and the release."""
    if isinstance(mechanism, PoissonSampledDpEvent):
        return mechanism.sampling_probability, mechanism.event
    if isinstance(mechanism, SampledWithoutReplacementDpEvent):
        return mechanism.sample_size / mechanism.source_dataset_size, mechanism.event
    return 1.0, mechanism


def _has_losses(mechanism: DpEvent) -> bool:
    if isinstance(mechanism, PureDpEvent):
        return True
    return isinstance(mechanism, LaplaceDpEvent) or isinstance(_release(mechanism)[1], GaussianDpEvent)


def largest_loss(runs: Sequence[RepeatedEvent]) -> float:
    """The sum of the largest privacy losses, exactly, then rounded up; infinite for Gaussian releases."""
    total = Fraction(0)
    for mechanism, count in runs:
        if isinstance(mechanism, PureDpEvent):
            total += count * Fraction(mechanism.epsilon)
        elif isinstance(mechanism, LaplaceDpEvent):
            total += count / Fraction(mechanism.noise_multiplier)
        else:
            return math.inf
    try:
        nearest = float(total)
    except OverflowError:
        return math.inf
    return nearest if nearest >= total else math.nextafter(nearest, math.inf)


@lru_cache(maxsize=16)
def _repeated(mechanism: str, count: int, grid: float) -> list[Any]:
    """Distributions that compose to `count` repetitions of the mechanism.

    One composition takes at most 10^4 repetitions: dp_accounting raises the number of grid points to the power of the
    count, in whole numbers, only to see that it is large.
    """
    once = _loss_distribution(mechanism, grid)
    lots, rest = divmod(count, 10**4)
    many = [once.self_compose(10**4).self_compose(lots)] if lots else []
    return many + ([once.self_compose(rest)] if rest else [])


@lru_cache(maxsize=32)
def _loss_distribution(mechanism: str, grid: float) -> Any:
    event = event_from_json(json.loads(mechanism))
    if isinstance(event, PureDpEvent):  # a loss of plus or minus epsilon
        worst = DifferentialPrivacyParameters(event.epsilon)
        return pld.from_privacy_parameters(worst, value_discretization_interval=grid)
    sampling_prob, release = _release(event)
    if isinstance(event, SampledWithoutReplacementDpEvent):
        sizes = {"clients": event.source_dataset_size, "cohort": event.sample_size}
        return fixed_size_loss(release.noise_multiplier, **sizes, grid=grid)
    if isinstance(release, GaussianDpEvent):
        return poisson_loss(release.noise_multiplier, sampling_prob=sampling_prob, grid=grid)
    return pld.from_laplace_mechanism(release.noise_multiplier, value_discretization_interval=grid)


def _widening(runs: Sequence[RepeatedEvent]) -> float:
    """How much coarser a grid of 1e-4 has to be for at most 5 * 10^5 points a mechanism, and some 3 * 10^6 in all.

    The sizes are estimated from means and variances of the losses: only memory and time depend on them.
    """
    widest = mean = variance = 0.0
    for mechanism, count in runs:
        sampling_prob, release = _release(mechanism)
        pure = isinstance(mechanism, PureDpEvent)
        inverse = mechanism.epsilon if pure else 1 / release.noise_multiplier
        widest = max(widest, inverse * inverse / 2 + 12 * inverse)
        spread = min(inverse, sampling_prob * math.sqrt(math.expm1(min(inverse * inverse, 700.0))))
        mean += count * min(sampling_prob * inverse * inverse / 2, spread * spread)
        variance += count * spread * spread
    return max(1.0, widest / 50, (mean + 16 * math.sqrt(variance) + widest) / 300)


class RenyiCurve:
    """RDP: Rényi differential privacy at dp_accounting's default orders (Mironov 2017), of fixed-size samples, too
    (Wang, Balle and Kasiviswanathan 2019).
    """

    def __init__(self, runs: Sequence[RepeatedEvent], relation: Relation) -> None:
        self.divergences = np.zeros(len(ORDERS))
        for mechanism, count in runs:
            self.divergences += count * _renyi(canonical(mechanism), relation)

    @staticmethod
    def supports(runs: Sequence[RepeatedEvent]) -> bool:
        """Whether dp_accounting knows the divergence of each."""
        return all(_has_renyi(mechanism) for mechanism, _ in runs)

    def epsilon(self, delta: float) -> float:
        """The epsilon that goes with a delta, which may be 0; infinite where none can be proven."""
        with _quietly():
            return float(rdp.compute_epsilon(ORDERS, self.divergences, delta)[0])

    def delta(self, epsilon: float) -> float:
        """The delta that goes with an epsilon."""
        with _quietly():
            return float(rdp.compute_delta(ORDERS, self.divergences, epsilon)[0])


Curve = GaussianCurve | LossDistributionCurve | RenyiCurve
"""The joint privacy curve of some mechanisms."""


def _has_renyi(event: DpEvent) -> bool:
    if isinstance(event, PoissonSampledDpEvent | SampledWithoutReplacementDpEvent):
        return isinstance(event.event, GaussianDpEvent)
    return isinstance(event, GaussianDpEvent | LaplaceDpEvent)


@lru_cache(maxsize=1024)
def _renyi(mechanism: str, relation: Relation) -> Floats:
    event = event_from_json(json.loads(mechanism))
    with _quietly():
        vector: Floats = rdp.RdpAccountant(neighboring_relation=relation).compose(event).rdp
    if not np.all(vector >= 0):
        raise AccountingError(f"RDP gives {vector.min()} for {mechanism}: its arithmetic failed, so there is no price")
    return vector


def _quietly() -> np.errstate:
    """Without NumPy's remarks on dp_accounting's arithmetic, in this block."""
    return np.errstate(all="ignore")


logging.getLogger("absl").addFilter(lambda record: "dp_accounting" not in record.pathname)  # its remarks help nobody
