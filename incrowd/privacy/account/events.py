"""Releases as plain data: dp_accounting's events and one more, their JSON, and the mechanisms that they come to.

An event states what was released and how the participants were sampled; `incrowd.privacy.account.accounting` prices it.
A noise multiplier is the noise's standard deviation (or Laplace scale) over the sensitivity *under the neighbouring
relation in use*: twice the clip norm where one client is replaced.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

from incrowd import _validate
from incrowd.errors import ConfigError, UnpricedEvent

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

    Guarantee: `event_from_json` gives back an equal event, every float to its last bit.

    Edge cases: an unknown kind of event raises `UnpricedEvent`, at any depth; an impossible number (a noise of 0, a
    probability above 1, NaN) raises `ConfigError`.
    """
    for kind, (type_, fields) in _KINDS.items():
        if type(event) is type_:
            written = {name: each.write(name, getattr(event, each.attribute)) for name, each in fields.items()}
            _check_cohort(written)
            return {"kind": kind} | written
    raise _unknown(type(event).__name__)


def event_from_json(obj: object) -> DpEvent:
    """The event that `event_to_json` wrote.

    Edge cases: an unknown kind raises `UnpricedEvent`; any other malformed JSON (a missing or surplus field, a value
    out of range, too deep a nesting) raises `ConfigError`.
    """
    try:
        return _read_event("event", obj)
    except (RecursionError, OverflowError) as error:
        raise ConfigError(field="event", value=type(error).__name__, remedy="give the JSON of an event") from error


def canonical(event: DpEvent) -> str:
    """The event's JSON in one spelling, which equal events share."""
    return json.dumps(event_to_json(event), sort_keys=True, separators=(",", ":"), allow_nan=False)


def fingerprint(event: DpEvent) -> str:
    """The SHA-256 of the event's canonical JSON, in hexadecimal.

    Guarantee: two events have the same fingerprint exactly if they are equal, in every process and on every machine.
    """
    return hashlib.sha256(canonical(event).encode()).hexdigest()


def compose(runs: Sequence[RepeatedEvent]) -> DpEvent:
    """One event for several, each with the number of times it happened, in order.

    Guarantee: equal neighbours are merged and repetitions multiplied, so a plan of equal rounds is one short event.

    Edge cases: no runs, or only events that did nothing, give `NoOpDpEvent`; a single run of count 1 gives its event.
    """
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

    Edge cases: an empty event has no mechanisms. Unknown kinds and impossible numbers are refused as in
    `event_to_json`.
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


@dataclass(frozen=True)
class _Field:
    """One field of an event: its attribute in dp_accounting, and how to check its value on the way in and out."""

    attribute: str
    read: Callable[[str, Any], Any]
    write: Callable[[str, Any], object]


def _number(attribute: str, check: Callable[..., None], kind: Callable[[Any], float] = float) -> _Field:
    def checked(name: str, value: Any) -> float:
        check(**{name: value})
        return kind(value)

    return _Field(attribute, checked, checked)


def _read_event(name: str, obj: object) -> DpEvent:
    if not isinstance(obj, Mapping):
        raise ConfigError(field=name, value=obj, remedy="give the JSON object of an event")
    if str(obj.get("kind")) not in _KINDS:
        raise _unknown(repr(obj.get("kind")))
    type_, fields = _KINDS[str(obj["kind"])]
    if obj.keys() != fields.keys() | {"kind"}:
        remedy = f"give exactly the fields {', '.join(['kind', *fields])}"
        raise ConfigError(field="event", value=sorted(map(str, obj)), remedy=remedy)
    values = {each.attribute: each.read(name, obj[name]) for name, each in fields.items()}
    _check_cohort(obj)
    return type_(**values)


def _unknown(kind: str) -> UnpricedEvent:
    return UnpricedEvent(f"{kind} is not a kind of event known here; known are {', '.join(_KINDS)}")


def _check_cohort(obj: Mapping[str, Any]) -> None:
    if "cohort" in obj:
        _validate.at_most(obj["clients"], "the number of clients", cohort=obj["cohort"])


def _read_events(name: str, obj: object) -> list[DpEvent]:
    if not isinstance(obj, list):
        raise ConfigError(field=name, value=obj, remedy="give a list of events")
    return [_read_event(name, item) for item in obj]


def _write_events(_: str, events: Sequence[DpEvent]) -> list[object]:
    return [event_to_json(event) for event in events]


_EVENT = _Field("event", _read_event, lambda _, event: event_to_json(event))
_NOISE = {"noise_multiplier": _number("noise_multiplier", _validate.positive)}

_KINDS: Mapping[str, tuple[type[DpEvent], Mapping[str, _Field]]] = {
    "nothing": (NoOpDpEvent, {}),
    "gaussian": (GaussianDpEvent, _NOISE),
    "laplace": (LaplaceDpEvent, _NOISE),
    "pure": (PureDpEvent, {"epsilon": _number("epsilon", _validate.positive)}),
    "poisson_sampled": (
        PoissonSampledDpEvent,
        {"sampling_prob": _number("sampling_probability", _validate.probability), "event": _EVENT},
    ),
    "sampled_without_replacement": (
        SampledWithoutReplacementDpEvent,
        {
            "clients": _number("source_dataset_size", _validate.count, int),
            "cohort": _number("sample_size", _validate.count, int),
            "event": _EVENT,
        },
    ),
    "repeated": (SelfComposedDpEvent, {"count": _number("count", _validate.count, int), "event": _EVENT}),
    "composed": (ComposedDpEvent, {"events": _Field("events", _read_events, _write_events)}),
}
