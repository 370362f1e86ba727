"""Releases as plain data: dp_accounting's events and one more, their JSON, the mechanisms that they come to, and the
privacy losses of Gaussian ones, about everyone or a sample.

An event states what was released and how the participants were sampled; `incrowd.privacy.account.accounting` prices it.
A noise multiplier is the noise's standard deviation (or Laplace scale) over the sensitivity *under the neighbouring
relation in use*: twice the clip norm where one client is replaced.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from scipy.optimize import brentq
from scipy.special import log_ndtr

from incrowd import _validate
from incrowd.errors import ConfigError, UnpricedEvent

if TYPE_CHECKING:
    from incrowd._random import Floats

RepeatedEvent = tuple[DpEvent, int]


@dataclass(frozen=True)
class PureDpEvent(DpEvent):  # type: ignore[misc]  # its base has no types
    """Any epsilon-differentially private mechanism, at a delta of 0.

    It costs what randomised response with the odds e^epsilon costs, which is the worst mechanism (Kairouz, Oh and
    Viswanath 2015, theorem 3.4).
    """

    epsilon: float


def event_to_json(event: DpEvent) -> dict[str, object]:
    """The event as a dictionary that `json.dumps` can write.

    Guarantee: `event_from_json` gives back an equal event, every float to its last bit. Unknown kinds (`UnpricedEvent`)
    and impossible numbers (`ConfigError`) are refused at any depth.
    """
    for kind, (type_, attributes) in _KINDS.items():
        if type(event) is type_:
            written = {name: _written(name, getattr(event, attribute)) for name, attribute in attributes.items()}
            _check_cohort(written)
            return {"kind": kind} | written
    raise _unknown(type(event).__name__)


def event_from_json(obj: object) -> DpEvent:
    """The event that `event_to_json` wrote; malformed JSON is refused as there."""
    try:
        return _read("event", obj)
    except (RecursionError, OverflowError) as error:
        raise ConfigError(field="event", value=type(error).__name__, remedy="give the JSON of an event") from error


def canonical(event: DpEvent) -> str:
    """The event's JSON in one spelling: the same for equal events only, on every machine."""
    return json.dumps(event_to_json(event), sort_keys=True, separators=(",", ":"), allow_nan=False)


def compose(runs: Sequence[RepeatedEvent]) -> DpEvent:
    """One event for several, each with the number of times it happened, in order; equal neighbours are merged."""
    merged: list[RepeatedEvent] = []
    for once, times in runs:
        _validate.count(count=times)
        event, count = (once.event, once.count * times) if isinstance(once, SelfComposedDpEvent) else (once, times)
        before = merged.pop()[1] if merged and merged[-1][0] == event else 0
        if not isinstance(event, NoOpDpEvent):
            merged.append((event, before + count))
    events = [event if count == 1 else SelfComposedDpEvent(event, count) for event, count in merged]
    if not events:
        return NoOpDpEvent()
    return events[0] if len(events) == 1 else ComposedDpEvent(events)


def mechanisms(event: DpEvent) -> tuple[RepeatedEvent, ...]:
    """The different mechanisms that the event comes to, each with its count; the order of the event does not matter.

    Guarantee: the composition of these mechanisms has the privacy loss of the event. Equal mechanisms are counted
    together. Gaussian releases about everyone, or about the same sample, become the one Gaussian that they jointly
    are (for multipliers z_i, 1/z^2 is the sum of 1/z_i^2). A sample of everyone is no sample.
    """
    event_to_json(event)
    gaussians: list[RepeatedEvent] = []
    others: dict[str, RepeatedEvent] = {}
    for mechanism, count in _flatten(event, 1):
        if isinstance(mechanism, GaussianDpEvent):
            gaussians.append((mechanism, count))
        else:
            key = canonical(mechanism)
            others[key] = (mechanism, count + others.get(key, (mechanism, 0))[1])
    return (*_jointly(gaussians), *(others[key] for key in sorted(others)))


def _flatten(event: DpEvent, count: int) -> list[RepeatedEvent]:
    """The event's leaves: releases and samples of releases, each with its count."""
    match event:
        case NoOpDpEvent():
            return []
        case SelfComposedDpEvent():
            return _flatten(event.event, count * event.count)
        case ComposedDpEvent():
            return [run for part in event.events for run in _flatten(part, count)]
        case PoissonSampledDpEvent():
            sampling = {"sampling_probability": event.sampling_probability}
            everyone = event.sampling_probability == 1
        case SampledWithoutReplacementDpEvent():
            sampling = {"source_dataset_size": event.source_dataset_size, "sample_size": event.sample_size}
            everyone = event.source_dataset_size == event.sample_size
        case _:
            return [(event, count)]
    if everyone:
        return _flatten(event.event, count)
    within = compose(mechanisms(event.event))
    return [] if isinstance(within, NoOpDpEvent) else [(type(event)(event=within, **sampling), count)]


def _jointly(gaussians: Sequence[RepeatedEvent]) -> list[RepeatedEvent]:
    """The one Gaussian that releases the same as several do (Dwork, Roth and Smith 2019, "Gaussian DP", cor. 2)."""
    if not gaussians:
        return []
    (first, count), *rest = gaussians
    if not rest and count == 1:
        return [(GaussianDpEvent(float(first.noise_multiplier)), 1)]
    return [(GaussianDpEvent(1 / math.hypot(*(math.sqrt(count) / g.noise_multiplier for g, count in gaussians))), 1)]


def _written(name: str, value: Any) -> object:
    if name == "events":
        return [event_to_json(each) for each in value]
    return event_to_json(value) if name == "event" else _number(name, value)


def _read(name: str, obj: Any) -> Any:
    if name in _NUMBERS:
        return _number(name, obj)
    if name == "events":
        if not isinstance(obj, list):
            raise ConfigError(field=name, value=obj, remedy="give a list of events")
        return [_read("event", item) for item in obj]
    if not isinstance(obj, Mapping):
        raise ConfigError(field=name, value=obj, remedy="give the JSON object of an event")
    if str(obj.get("kind")) not in _KINDS:
        raise _unknown(repr(obj.get("kind")))
    type_, attributes = _KINDS[str(obj["kind"])]
    if obj.keys() != attributes.keys() | {"kind"}:
        remedy = f"give exactly the fields {', '.join(['kind', *attributes])}"
        raise ConfigError(field="event", value=sorted(map(str, obj)), remedy=remedy)
    event = type_(**{attribute: _read(each, obj[each]) for each, attribute in attributes.items()})
    _check_cohort(obj)
    return event


def _number(name: str, value: Any) -> float:
    check, kind = _NUMBERS[name]
    check(**{name: value})
    return kind(value)


def _unknown(kind: str) -> UnpricedEvent:
    return UnpricedEvent(f"{kind} is not a kind of event known here; known are {', '.join(_KINDS)}")


def _check_cohort(obj: Mapping[str, Any]) -> None:
    if "cohort" in obj:
        _validate.at_most(obj["clients"], "the number of clients", cohort=obj["cohort"])


_NUMBERS: Mapping[str, tuple[Callable[..., None], type[float]]] = {
    "noise_multiplier": (_validate.positive, float),
    "epsilon": (_validate.positive, float),
    "sampling_prob": (_validate.probability, float),
    "clients": (_validate.count, int),
    "cohort": (_validate.count, int),
    "count": (_validate.count, int),
}

_NOISE, _EVENT = {"noise_multiplier": "noise_multiplier"}, {"event": "event"}

# Each kind of event: its class, and the attributes of that class by their names in JSON.
_KINDS: Mapping[str, tuple[type[DpEvent], Mapping[str, str]]] = {
    "nothing": (NoOpDpEvent, {}),
    "gaussian": (GaussianDpEvent, _NOISE),
    "laplace": (LaplaceDpEvent, _NOISE),
    "pure": (PureDpEvent, {"epsilon": "epsilon"}),
    "poisson_sampled": (PoissonSampledDpEvent, {"sampling_prob": "sampling_probability", **_EVENT}),
    "sampled_without_replacement": (
        SampledWithoutReplacementDpEvent,
        {"clients": "source_dataset_size", "cohort": "sample_size", **_EVENT},
    ),
    "repeated": (SelfComposedDpEvent, {"count": "count", **_EVENT}),
    "composed": (ComposedDpEvent, {"events": "events"}),
}


_TAIL = 12.0  # deviations: a larger value has a probability below 2e-33, and counts as an infinite loss
_SLACK = 1e-9  # far more, relative to delta, than all rounding of the differences taken here


@lru_cache(maxsize=4096)
def gaussian_epsilon(mu: float, delta: float) -> float:
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


def log_delta(mu: float, epsilon: "float | Floats") -> "Floats":
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
    computes all of them at once. With everyone in the sample both directions are one.
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


def divergence(losses: GaussianPrivacyLoss, epsilons: "Floats") -> "Floats":
    """The hockey-stick divergence at each epsilon, of N(0, z^2) and (1 - q) N(0, z^2) + q N(1, z^2).

    The loss rises or falls along the line, so the divergence is taken where the loss equals epsilon. A rounded place
    costs nothing, because the derivative is 0 there. For a client more, losses end at -log(1 - q), where the divergence
    is 0. For a client less, they begin at log(1 - q), where it is 1 - e^epsilon. It is never less than these.

    Guarantee: within 1e-15 of `losses.get_delta_for_epsilon`.
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
