"""GDP, PLD and RDP: each turns a list of mechanisms into a privacy curve, an upper bound in both directions.

`incrowd.privacy.account.accounting` chooses among them. The Gaussian mechanism has an exact curve about everyone, and a
privacy loss distribution about a sample. PLD and RDP rest on dp_accounting's mechanisms and arithmetic, and close its
gaps: failed arithmetic is an error, not an epsilon of 0, and a mechanism is priced once however often it ran.
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
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from scipy.optimize import brentq
from scipy.special import log_ndtr

from incrowd._random import Floats
from incrowd.errors import AccountingError
from incrowd.privacy.account.events import (
    PureDpEvent,
    RepeatedEvent,
    canonical,
    event_from_json,
)

_TAIL = 12.0  # deviations: a larger value has a probability below 2e-33, and counts as an infinite loss
_SLACK = 1e-9  # far more, relative to delta, than all rounding of the differences taken here


class GaussianCurve:
    """The exact privacy curve of Gaussian releases about everyone (Balle and Wang 2018, theorem 8).

    Edge cases: beyond mu = 10^4 (an epsilon of some 5 * 10^7) nothing is proven: epsilon is infinite and delta 1. A
    delta of 0 has no finite epsilon.
    """

    def __init__(self, runs: Sequence[RepeatedEvent]) -> None:
        self.mu = math.hypot(*(math.sqrt(count) / gaussian.noise_multiplier for gaussian, count in runs))

    @staticmethod
    def supports(runs: Sequence[RepeatedEvent]) -> bool:
        """Whether all of these are Gaussian releases about everyone."""
        return all(isinstance(mechanism, GaussianDpEvent) for mechanism, _ in runs)

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`. The root is moved up by more than its error."""
        return _epsilon(self.mu, delta)

    def delta(self, epsilon: float) -> float:
        """See `Curve.delta`."""
        if self.mu == 0:
            return 0.0
        if self.mu > 1e4:
            return 1.0
        return min(1.0, math.exp(log_delta(self.mu, epsilon)))


@lru_cache(maxsize=4096)
def _epsilon(mu: float, delta: float) -> float:
    """The epsilon of one Gaussian; searches and ledgers repeat a question, and one answer takes a millisecond."""
    if mu == 0:
        return 0.0
    if mu > 1e4 or delta == 0:
        return math.inf
    target = math.log(delta)

    def excess(epsilon: float) -> float:
        return max(float(log_delta(mu, epsilon)) - target, -50.0)

    if excess(0.0) <= 0:
        return 0.0
    above = 1.0
    while excess(above) > 0:
        above *= 2
    root: float = brentq(excess, 0.0, above, xtol=1e-12)
    return root * (1 + 1e-14) + 2e-12


def log_delta(mu: float, epsilon: float | Floats) -> Floats:
    """The logarithm of the exact delta at each epsilon, for two normal distributions that are mu > 0 deviations apart.

    Guarantee: never below the true value: a slack covers the rounding of a difference of nearly equal terms.
    """
    at = np.asarray(epsilon, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # far out, both terms vanish
        above = np.asarray(log_ndtr(mu / 2 - at / mu))
        below = at + log_ndtr(-mu / 2 - at / mu)
        slack = 1e-15 * (2 + abs(above) + abs(below) + at)
        bound: Floats = above + slack + np.log(-np.expm1(below - slack - above))
    return np.where(above == -np.inf, -np.inf, bound)


def poisson_loss(noise_multiplier: float, *, sampling_prob: float, grid: float) -> PrivacyLossDistribution:
    """The loss distributions of a Gaussian release about a Poisson sample, for one client less and one more.

    They are dp_accounting's `from_gaussian_mechanism`: chords of the hockey-stick divergence between the points of a
    grid (Doroshenko et al. 2022). dp_accounting computes tens of thousands of divergences one by one; `divergence`
    computes all of them at once.

    Guarantee: equal to dp_accounting's distributions, but for rounding.

    Edge cases: with everyone in the sample both directions are one.
    """
    both = (AdjacencyType.REMOVE, AdjacencyType.ADD) if sampling_prob < 1 else (AdjacencyType.REMOVE,)
    return PrivacyLossDistribution(
        *(
            _one_direction(
                GaussianPrivacyLoss(noise_multiplier, sampling_prob=sampling_prob, adjacency_type=direction), grid
            )
            for direction in both
        )
    )


def _one_direction(losses: GaussianPrivacyLoss, grid: float) -> pld_pmf.PLDPmf:
    ends = losses.connect_dots_bounds()
    lower, upper = math.floor(ends.epsilon_lower / grid), math.ceil(ends.epsilon_upper / grid)
    divergences = divergence(losses, np.arange(lower, upper + 1) * grid)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, lower, upper, divergences)


def divergence(losses: GaussianPrivacyLoss, epsilons: Floats) -> Floats:
    """The hockey-stick divergence at each epsilon, of N(0, z^2) and (1 - q) N(0, z^2) + q N(1, z^2).

    The loss rises or falls along the line, so the divergence is taken where the loss equals epsilon. A rounded place
    costs nothing, because the derivative is 0 there.

    Guarantee: within 1e-15 of `losses.get_delta_for_epsilon`.

    Edge cases: for a client more, losses end at -log(1 - q), where the divergence is 0. For a client less, they begin
    at log(1 - q), where it is 1 - e^epsilon. The divergence is never less than these.
    """
    less = losses.adjacency_type == AdjacencyType.REMOVE
    sign = 1.0 if less else -1.0
    with np.errstate(all="ignore"):  # infinite beyond where losses end or begin, and everywhere with everyone sampled
        log_share, log_odds = np.log(losses.sampling_prob), np.log(1 / losses.sampling_prob - 1)
        # log(1 + (e^loss - 1) / q) is the loss of the release that the client takes part in.
        scaled = sign * epsilons - log_share
        own = scaled + np.log1p(-np.exp(np.minimum(log_odds - scaled, 0.0)))
        cut = -sign * (own * losses.standard_deviation**2 + 0.5)
        deltas = losses.mu_upper_cdf(cut) - np.exp(epsilons + losses.mu_lower_log_cdf(cut))
        least = np.maximum(0.0, -np.expm1(epsilons))
    return np.asarray(np.clip(deltas, least, 1.0))


def fixed_size_loss(noise_multiplier: float, *, clients: int, cohort: int, grid: float) -> PrivacyLossDistribution:
    """The loss distribution of a Gaussian release about m of n clients, without replacement, one client replaced.

    Let q = m / n, and let mu = 1 / noise multiplier be how many deviations a replaced client moves the release. H(a) is
    the hockey-stick divergence of the two releases, the integral of max(0, p - a p'); G(a) is that of two normal
    distributions mu apart.

    1.  H(1 + q (a - 1)) <= q G(a) for a >= 1 (Balle, Barthe and Gaboardi 2018). Call A, B and B' the release without
        the client in the sample, with it, and with its replacement: p = (1 - q) A + q B, p' = (1 - q) A + q B'. Let
        M mix A and B' with weights (1 - q) (a - 1) / a and (1 + q (a - 1)) / a. Then p - (1 + q (a - 1)) p' equals
        q (B - a M). Divergences are convex, so it is enough that those of B from B' and from A are at most
        G(a). They are, sample by sample: B' has the client replaced; a uniform sample without the client is a uniform
        one with it where a random client from outside takes its place.
    2.  Either data set may come first, so H(a) = 1 - a + a H'(1 / a) below 1. Let h(a) = q G(1 + (a - 1) / q) above
        1, and 1 - a + a h(1 / a) below. Let P and Q be normal and mu apart. Above 1, h is the divergence of
        (1 - q) Q + q P from Q; below, that of P from (1 - q) P + q Q.
    3.  h is 1 at 0, decreasing, never below max(0, 1 - a), and convex: on either side as a divergence, and at 1 because
        its slope rises there by (1 - q) (1 - 2 Phi(-mu / 2)) >= 0. So h is the divergence of a pair of distributions.
        The pair dominates the release for any two neighbours in any order, and dominating pairs compose, adaptively,
        too (Zhu, Dong and Wang 2022): n rounds cost n independent draws from the pair.

    Composing each direction of a Poisson sample alone and taking the larger is no bound under replacement (Lebeda,
    Regehr, Kamath and Steinke 2024); one pair for both orders is.

    Guarantee: its divergences are nowhere below those of the pair. Above 1 they are the chords of h between the points
    of the grid (Doroshenko et al. 2022), and a chord lies above a convex curve; the rise of the slope at a point is the
    second distribution's probability there. Below 1 all is mirrored, as in step 2; the rest is at a loss of 0.
    """
    mu, share = 1 / noise_multiplier, cohort / clients
    largest = math.log1p(share * math.expm1(min(mu * mu / 2 + _TAIL * mu, 700.0)))
    losses = grid * np.arange(math.ceil(largest / grid) + 2)
    amplified = np.log1p(np.expm1(losses) / share)
    delta = np.minimum(1.0, (1 + _SLACK) * share * np.exp(log_delta(mu, amplified)))
    slope = np.append(np.diff(delta) / (np.exp(losses[:-1]) * math.expm1(grid)), 0.0)
    second = np.maximum(0.0, np.diff(slope))  # at each loss above 0; as much has the first at minus that loss
    first = second * np.exp(losses[1:])
    beyond = float(delta[-1])
    rest = max(0.0, 1 - beyond - float(first.sum() + second.sum()))
    probabilities = np.concatenate([second[::-1], [rest], first])
    return PrivacyLossDistribution(
        pld_pmf.DensePLDPmf(grid, -second.size, probabilities, beyond, pessimistic_estimate=True)
    )


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

    Nearly every kind of event has it, fixed-size samples (Wang, Balle and Kasiviswanathan 2019) included.
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
