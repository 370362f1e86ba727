"""PLD and RDP: each turns a list of mechanisms into a privacy curve, an upper bound in both directions.

`incrowd.privacy.account.accounting` chooses among them and the exact curve of `incrowd.privacy.account.gaussian`. Both
rest on dp_accounting's mechanisms and arithmetic, and close its gaps: failed arithmetic is an error rather than an
epsilon of 0, and a mechanism is priced once however often it ran.
"""

import json
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from typing import Any, Protocol

import numpy as np
from dp_accounting import NeighboringRelation as Relation
from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.rdp import rdp_privacy_accountant as rdp

from incrowd._random import Floats
from incrowd.errors import AccountingError
from incrowd.privacy.account.events import (
    OneOfDpEvent,
    PureDpEvent,
    RepeatedEvent,
    canonical,
    event_from_json,
    mechanisms,
)
from incrowd.privacy.account.gaussian import fixed_size_loss, poisson_loss
from incrowd.privacy.account.selection import Repetitions

ORDERS: Sequence[float] = tuple(rdp.DEFAULT_RDP_ORDERS)


class Curve(Protocol):
    """The joint privacy curve of some mechanisms."""

    def epsilon(self, delta: float) -> float:
        """An epsilon that goes with this delta, which may be 0; infinite where none can be proven."""

    def delta(self, epsilon: float) -> float:
        """A delta that goes with this epsilon."""


class LossDistributionCurve:
    """PLD: the distribution of the privacy loss on a grid, rounded pessimistically (Doroshenko et al. 2022).

    Bounded losses have a bounded sum (basic composition: Dwork and Roth 2014, theorem 3.16), whatever delta is. The
    lesser of this sum and of the grid's bound counts. A mechanism without sampling costs the same under every relation,
    because its noise multiplier is relative to that relation's sensitivity: dp_accounting, which would double some
    sensitivities under REPLACE_ONE, is not told the relation.

    Guarantee: an upper bound even where the rounding of the Fourier transforms is as large as delta. Their error grows
    with the number of compositions (below 6e-17 times it in all measurements against the exact curve), and 15 times
    that is taken off delta.

    Edge cases: at a delta below this margin, 0 included, only the largest loss is proven, which is infinite for
    Gaussian noise. Losses too large for memory are put on a coarser grid, which only raises the bound; a grid above
    1 proves nothing.
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
        """Whether these are Gaussian or Laplace releases about everyone or a Poisson sample, Gaussian ones about a
        sample of a fixed size, or pure ones about everyone.
        """
        return all(_has_losses(mechanism) for mechanism, _ in runs)

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`."""
        if self._grid > 1 or delta <= self._margin:
            return self._largest
        with _quietly():
            return min(float(self._total.get_epsilon_for_delta(delta - self._margin)), self._largest)

    def delta(self, epsilon: float) -> float:
        """See `Curve.delta`."""
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
    fixed = isinstance(mechanism, SampledWithoutReplacementDpEvent)
    return isinstance(_release(mechanism)[1], GaussianDpEvent if fixed else GaussianDpEvent | LaplaceDpEvent)


def largest_loss(runs: Sequence[RepeatedEvent]) -> float:
    """The sum of the largest privacy losses, exactly, then rounded up; infinite for Gaussian releases."""
    total = Fraction(0)
    for mechanism, count in runs:
        sampling_prob, release = _release(mechanism)
        if isinstance(mechanism, PureDpEvent):
            total += count * Fraction(mechanism.epsilon)
            continue
        if not isinstance(release, LaplaceDpEvent):
            return math.inf
        total += count * _largest_laplace_loss(sampling_prob, release)
    try:
        nearest = float(total)
    except OverflowError:
        return math.inf
    return nearest if nearest >= total else math.nextafter(nearest, math.inf)


def _largest_laplace_loss(sampling_prob: float, release: LaplaceDpEvent) -> Fraction:
    """1 / noise, and log(1 + q (e^(1 / noise) - 1)) among a sample (Balle, Barthe and Gaboardi 2018, theorem 8).

    The latter is moved up by more than its rounding. The former is a bound too, if the exponential is out of reach.
    """
    everyone = 1 / Fraction(release.noise_multiplier)
    if sampling_prob == 1 or everyone > 700:
        return everyone
    amplified = math.log1p(sampling_prob * math.expm1(float(everyone)))
    return Fraction(amplified * (1 + 4e-15))


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
    return pld.from_laplace_mechanism(
        release.noise_multiplier, sampling_prob=sampling_prob, value_discretization_interval=grid
    )


def _widening(runs: Sequence[RepeatedEvent]) -> float:
    """How much coarser a grid of 1e-4 has to be to fit into memory; other grids go in proportion.

    Then one mechanism takes at most 5 * 10^5 points, and the composition hardly more than 3 * 10^6. The sizes are
    estimated from means and variances of the losses: only memory and time depend on them.
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
    """RDP: Rényi differential privacy at dp_accounting's default orders (Mironov 2017).

    Nearly every kind of event has it, fixed-size samples (Wang, Balle and Kasiviswanathan 2019) and private selection
    (Papernot and Steinke 2022) included.
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
        """See `Curve.epsilon`."""
        with _quietly():
            return float(rdp.compute_epsilon(ORDERS, self.divergences, delta)[0])

    def delta(self, epsilon: float) -> float:
        """See `Curve.delta`."""
        with _quietly():
            return float(rdp.compute_delta(ORDERS, self.divergences, epsilon)[0])


def _has_renyi(event: DpEvent) -> bool:
    match event:
        case PoissonSampledDpEvent() | SampledWithoutReplacementDpEvent():
            return isinstance(event.event, GaussianDpEvent)
        case RepeatAndSelectDpEvent():
            return RenyiCurve.supports(mechanisms(event.event))
        case OneOfDpEvent():
            return all(RenyiCurve.supports(mechanisms(option)) for option in event.events)
    return isinstance(event, GaussianDpEvent | LaplaceDpEvent)


@lru_cache(maxsize=1024)
def _renyi(mechanism: str, relation: Relation) -> Floats:
    event = event_from_json(json.loads(mechanism))
    with _quietly():
        vector = _divergences(event, relation)
    if not np.all(vector >= 0):
        raise AccountingError(f"RDP gives {vector.min()} for {mechanism}: its arithmetic failed, so there is no price")
    return vector


def _divergences(event: DpEvent, relation: Relation) -> Floats:
    match event:
        case RepeatAndSelectDpEvent():
            once = RenyiCurve(mechanisms(event.event), relation).divergences
            return Repetitions(mean=event.mean, shape=event.shape).renyi(ORDERS, once)
        case OneOfDpEvent():
            each = [RenyiCurve(mechanisms(option), relation).divergences for option in event.events]
            return np.asarray(np.max(each, axis=0))
    vector: Floats = rdp.RdpAccountant(neighboring_relation=relation).compose(event).rdp
    return vector


_silent: ContextVar[bool] = ContextVar("_silent", default=False)


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence dp_accounting's log and NumPy's floating point remarks, in this thread and block only."""
    token = _silent.set(True)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        _silent.reset(token)


logging.getLogger("absl").addFilter(lambda _: not _silent.get())
