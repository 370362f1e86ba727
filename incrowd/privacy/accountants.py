"""The three accountants: each turns a list of mechanisms into a privacy curve, an upper bound in both directions.

They differ in what they support and in how tight they are; `incrowd.privacy.accounting` chooses among them. PLD and RDP
rest on dp_accounting's mechanisms and arithmetic. What is added here is what its accountants leave open: a failure that
would end in epsilon = 0 is an error, a mechanism is priced once however often and wherever it ran, and the neighbouring
relation means one thing only.
"""

import json
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
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
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr

from incrowd.errors import AccountingError
from incrowd.privacy.events import Run, canonical, event_from_json, mechanisms

Vector = NDArray[np.float64]
ORDERS: Sequence[float] = tuple(rdp.DEFAULT_RDP_ORDERS)


class Curve(Protocol):
    """What some mechanisms cost together."""

    def epsilon(self, delta: float) -> float:
        """An epsilon that goes with this delta; infinite where none can be proven."""
        ...

    def delta(self, epsilon: float) -> float:
        """A delta that goes with this epsilon."""
        ...


class GaussianCurve:
    """GDP: the exact curve of the Gaussian mechanism (Balle and Wang 2018, theorem 8), for releases about everyone.

    Edge cases: beyond mu = 10^4 (an epsilon of some 5 * 10^7) nothing is proven: epsilon is infinite and delta 1.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.mu = math.hypot(*(math.sqrt(count) / gaussian.noise_multiplier for gaussian, count in runs))

    @staticmethod
    def supports(runs: Sequence[Run]) -> bool:
        """Whether these are Gaussian releases about everyone, or nothing at all."""
        return all(isinstance(mechanism, GaussianDpEvent) for mechanism, _ in runs)

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`. The root is moved up by more than its error."""
        if self.mu > 1e4:
            return math.inf
        target = math.log(delta)

        def excess(epsilon: float) -> float:
            return max(self._log_delta(epsilon) - target, -50.0)

        if excess(0.0) <= 0:
            return 0.0
        above = 1.0
        while excess(above) > 0:
            above *= 2
        root: float = brentq(excess, 0.0, above, xtol=1e-12)
        return root * (1 + 1e-10) + 1e-11

    def delta(self, epsilon: float) -> float:
        """See `Curve.delta`."""
        if self.mu > 1e4:
            return 1.0
        return min(1.0, math.exp(self._log_delta(epsilon)) * (1 + 1e-9))

    def _log_delta(self, epsilon: float) -> float:
        if self.mu == 0:
            return -math.inf
        above = log_ndtr(self.mu / 2 - epsilon / self.mu)
        below = epsilon + log_ndtr(-self.mu / 2 - epsilon / self.mu)
        if below >= above or above == -math.inf:
            return -math.inf
        return float(above + math.log1p(-math.exp(below - above)))


class LossDistributionCurve:
    """PLD: the distribution of the privacy loss on a grid, rounded pessimistically (Doroshenko et al. 2022).

    A mechanism without sampling costs the same under every relation, because its noise multiplier is relative to that
    relation's sensitivity; dp_accounting would double the sensitivity of some under REPLACE_ONE, and is not told.
    """

    def __init__(self, runs: Sequence[Run], grid: float) -> None:
        with _quietly():
            total = pld.identity(grid)
            for mechanism, count in runs:
                total = total.compose(_loss_distribution(canonical(mechanism), grid).self_compose(count))
        self._total = total

    @staticmethod
    def supports(runs: Sequence[Run]) -> bool:
        """Whether these are Gaussian or Laplace releases, about everyone or about a Poisson sample."""
        released = (m.event if isinstance(m, PoissonSampledDpEvent) else m for m, _ in runs)
        return all(isinstance(mechanism, GaussianDpEvent | LaplaceDpEvent) for mechanism in released)

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`."""
        with _quietly():
            return float(self._total.get_epsilon_for_delta(delta))

    def delta(self, epsilon: float) -> float:
        """See `Curve.delta`."""
        with _quietly():
            return float(self._total.get_delta_for_epsilon(epsilon))


@lru_cache(maxsize=32)
def _loss_distribution(mechanism: str, grid: float) -> Any:
    event = event_from_json(json.loads(mechanism))
    sampled = isinstance(event, PoissonSampledDpEvent)
    release = event.event if sampled else event
    make = pld.from_gaussian_mechanism if isinstance(release, GaussianDpEvent) else pld.from_laplace_mechanism
    return make(
        release.noise_multiplier,
        sampling_prob=event.sampling_probability if sampled else 1.0,
        value_discretization_interval=grid,
    )


class RenyiCurve:
    """RDP: Rényi differential privacy at dp_accounting's default orders (Mironov 2017).

    Nearly every kind of event has it, fixed-size samples (Wang, Balle and Kasiviswanathan 2019) and private selection
    (Papernot and Steinke 2022) included.
    """

    def __init__(self, runs: Sequence[Run], relation: Relation) -> None:
        self._rdp = np.zeros(len(ORDERS))
        for mechanism, count in runs:
            self._rdp += count * _renyi(canonical(mechanism), relation)

    @staticmethod
    def supports(runs: Sequence[Run]) -> bool:
        """Whether dp_accounting knows the divergence of each."""
        return all(_has_renyi(mechanism) for mechanism, _ in runs)

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`."""
        with _quietly():
            return float(rdp.compute_epsilon(ORDERS, self._rdp, delta)[0])

    def delta(self, epsilon: float) -> float:
        """See `Curve.delta`."""
        with _quietly():
            return float(rdp.compute_delta(ORDERS, self._rdp, epsilon)[0])


def _has_renyi(event: DpEvent) -> bool:
    match event:
        case GaussianDpEvent() | LaplaceDpEvent():
            return True
        case PoissonSampledDpEvent() | SampledWithoutReplacementDpEvent():
            return isinstance(event.event, GaussianDpEvent)
        case RepeatAndSelectDpEvent():
            return RenyiCurve.supports(mechanisms(event.event))
    return False


@lru_cache(maxsize=1024)
def _renyi(mechanism: str, relation: Relation) -> Vector:
    event = event_from_json(json.loads(mechanism))
    if isinstance(event, RepeatAndSelectDpEvent):
        RenyiCurve(mechanisms(event.event), relation)  # refuses what would silently spoil the sum within
    with _quietly():
        accountant = rdp.RdpAccountant(neighboring_relation=relation)
        vector: Vector = accountant.compose(event).rdp
    if not np.all(vector >= 0):
        raise AccountingError(f"RDP gives {vector.min()} for {mechanism}: its arithmetic failed, so there is no price")
    return vector


_silent: ContextVar[bool] = ContextVar("_silent", default=False)


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep dp_accounting's log and NumPy's floating point remarks from the terminal, in this thread and block only."""
    token = _silent.set(True)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        _silent.reset(token)


def _speaks(record: logging.LogRecord) -> bool:
    del record  # what is said does not matter, only where from
    return not _silent.get()


logging.getLogger("absl").addFilter(_speaks)
