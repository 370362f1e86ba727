"""What happened, as plain data: dp_accounting's events and two of ours, their JSON, the mechanisms they come to.

An event states what was released and how its participants were sampled, and nothing about what that costs (that is in
`incrowd.privacy.account.accounting`).

In every event the noise multiplier is the noise's standard deviation (or Laplace scale)
divided by the sensitivity *under the neighbouring relation in use*: where one client is replaced, twice the clip norm.
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
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from incrowd import _validate
from incrowd.errors import ConfigError, UnpricedEvent

RepeatedEvent = tuple[DpEvent, int]


@dataclass(frozen=True)
class OneOfDpEvent(DpEvent):  # type: ignore[misc]  # its base has no types
    """One of several events happened; which one was settled without looking at the data (by a coin, or by hand).

    It costs what the dearest costs, order by order: the divergence of a mixture is at most that of its worst part.
    """

    events: tuple[DpEvent, ...]


@dataclass(frozen=True)
class PureDpEvent(DpEvent):  # type: ignore[misc]  # its base has no types
    """Something happened that is epsilon-differentially private, with a delta of 0, whatever it was.

    It costs what the worst such thing costs: a yes or no that is told right with the odds e^epsilon (Kairouz, Oh and
    Viswanath 2015, theorem 3.4: every other one can be made of its answer).
    """

    epsilon: float


def event_to_json(event: DpEvent) -> dict[str, object]:
    """The event as a dictionary that `json.dumps` can write.

    Guarantee: `event_from_json` gives back an equal event, every float to its last bit.

    Edge cases: a kind of event that is not known here raises `UnpricedEvent`, at any depth; a number that no mechanism
    can have (a noise of 0, a probability above 1, NaN) raises `ConfigError`.
    """
    for kind, codec in _CODECS.items():
        if type(event) is codec.type:
            return {"kind": kind} | codec.write(event)
    raise UnpricedEvent(f"{type(event).__name__} is not a kind of event known here; known are {', '.join(_CODECS)}")


def event_from_json(obj: object) -> DpEvent:
    """The event that `event_to_json` wrote.

    Edge cases: an unknown kind raises `UnpricedEvent`; anything else that is not such a dictionary (a missing or
    surplus field, a value out of range, a nesting too deep to follow) raises `ConfigError`.
    """
    try:
        return _read_event("event", obj)
    except (RecursionError, OverflowError) as error:
        raise ConfigError(field="event", value=type(error).__name__, remedy="give the JSON of an event") from error


def canonical(event: DpEvent) -> str:
    """The event's JSON in the one way of writing it that equal events share."""
    return json.dumps(event_to_json(event), sort_keys=True, separators=(",", ":"), allow_nan=False)


def fingerprint(event: DpEvent) -> str:
    """The SHA-256 of the event's canonical JSON, in hexadecimal.

    Guarantee: equal events have equal fingerprints, in every process and on every machine; others have others.
    """
    return hashlib.sha256(canonical(event).encode()).hexdigest()


def compose(runs: Sequence[RepeatedEvent]) -> DpEvent:
    """One event for several, each with the number of times it happened, in order.

    Guarantee: equal neighbours are merged, and repetitions of repetitions multiplied, so that a plan of equal rounds is
    one short event whatever its length.

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
    """The different mechanisms that the event comes to, each with how often it ran; their order does not matter.

    Guarantee: the composition of these mechanisms has the privacy loss of the event. Equal mechanisms are counted
    together wherever they stood; Gaussian releases about everyone, and Gaussian releases about one and the same sample,
    become the one Gaussian that they jointly are (for multipliers z_i, 1/z^2 is the sum of 1/z_i^2); a sample of
    everyone is no sample.

    Edge cases: nothing happened: no mechanisms. Unknown kinds and impossible numbers are refused as in `event_to_json`.
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
    """The event's leaves: releases, samples of releases and selections, each with its count."""
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
        case RepeatAndSelectDpEvent():
            return [(RepeatAndSelectDpEvent(compose(mechanisms(event.event)), event.mean, event.shape), count)]
        case OneOfDpEvent():
            distinct = {canonical(option): option for option in (compose(mechanisms(each)) for each in event.events)}
            options = tuple(distinct[key] for key in sorted(distinct))
            return _flatten(options[0], count) if len(options) == 1 else [(OneOfDpEvent(options), count)]
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
    """One field of an event: its name in dp_accounting, and how its value is checked on the way in and out."""

    attribute: str
    read: Callable[[str, object], Any]
    write: Callable[[str, Any], object]


@dataclass(frozen=True)
class _Codec:
    """How one kind of event is written and read: a check of each field, then of the whole."""

    type: type[DpEvent]
    fields: Mapping[str, _Field]

    def write(self, event: DpEvent) -> dict[str, object]:
        written = {name: field.write(name, getattr(event, field.attribute)) for name, field in self.fields.items()}
        _check_cohort(written)
        return written

    def read(self, obj: Mapping[str, object]) -> DpEvent:
        if obj.keys() != self.fields.keys() | {"kind"}:
            remedy = f"give exactly the fields {', '.join(['kind', *self.fields])}"
            raise ConfigError(field="event", value=sorted(map(str, obj)), remedy=remedy)
        values = {field.attribute: field.read(name, obj[name]) for name, field in self.fields.items()}
        _check_cohort(obj)
        return self.type(**values)


def _check_cohort(obj: Mapping[str, Any]) -> None:
    if "cohort" in obj:
        _validate.at_most(obj["clients"], "the number of clients", cohort=obj["cohort"])


def _read_event(name: str, obj: object) -> DpEvent:
    if not isinstance(obj, Mapping):
        raise ConfigError(field=name, value=obj, remedy="give the JSON object of an event")
    codec = _CODECS.get(str(obj.get("kind")))
    if codec is None:
        raise UnpricedEvent(f"{obj.get('kind')!r} is not a kind of event known here; known are {', '.join(_CODECS)}")
    return codec.read(obj)


def _read_events(name: str, obj: object) -> list[DpEvent]:
    if not isinstance(obj, list):
        raise ConfigError(field=name, value=obj, remedy="give a list of events")
    return [_read_event(name, item) for item in obj]


def _read_options(name: str, obj: object) -> tuple[DpEvent, ...]:
    options = tuple(_read_events(name, obj))
    _check_options(name, options)
    return options


def _check_options(name: str, options: Sequence[DpEvent]) -> None:
    if not options:
        raise ConfigError(field=name, value=[], remedy="give at least one event to pick from")


def _event(attribute: str = "event") -> _Field:
    return _Field(attribute, _read_event, lambda _, event: event_to_json(event))


def _events() -> _Field:
    return _Field("events", _read_events, lambda _, events: [event_to_json(event) for event in events])


def _options() -> _Field:
    def write(name: str, options: Sequence[DpEvent]) -> object:
        _check_options(name, options)
        return [event_to_json(event) for event in options]

    return _Field("events", _read_options, write)


def _number(attribute: str, check: Callable[..., None], kind: Callable[[Any], float] = float) -> _Field:
    def checked(name: str, value: Any) -> float:
        check(**{name: value})
        return kind(value)

    return _Field(attribute, checked, checked)


def _shape() -> _Field:
    """The shape of the number of repetitions; infinite for a Poisson number, which JSON has no number for."""

    def read(name: str, value: Any) -> float:
        if value == "inf":
            return math.inf
        _validate.non_negative(**{name: value})
        return float(value)

    return _Field("shape", read, lambda name, value: "inf" if value == math.inf else read(name, value))


def _at_least_one(**fields: float) -> None:
    _validate.number(**fields)
    for field, value in fields.items():
        if value < 1:
            raise ConfigError(field=field, value=value, remedy="give a number of at least 1")


_CODECS: Mapping[str, _Codec] = {
    "nothing": _Codec(NoOpDpEvent, {}),
    "gaussian": _Codec(GaussianDpEvent, {"noise_multiplier": _number("noise_multiplier", _validate.positive)}),
    "laplace": _Codec(LaplaceDpEvent, {"noise_multiplier": _number("noise_multiplier", _validate.positive)}),
    "pure": _Codec(PureDpEvent, {"epsilon": _number("epsilon", _validate.positive)}),
    "poisson_sampled": _Codec(
        PoissonSampledDpEvent,
        {"sampling_prob": _number("sampling_probability", _validate.probability), "event": _event()},
    ),
    "sampled_without_replacement": _Codec(
        SampledWithoutReplacementDpEvent,
        {
            "clients": _number("source_dataset_size", _validate.count, int),
            "cohort": _number("sample_size", _validate.count, int),
            "event": _event(),
        },
    ),
    "repeated": _Codec(SelfComposedDpEvent, {"count": _number("count", _validate.count, int), "event": _event()}),
    "composed": _Codec(ComposedDpEvent, {"events": _events()}),
    "one_of": _Codec(OneOfDpEvent, {"events": _options()}),
    "best_of_repeated": _Codec(
        RepeatAndSelectDpEvent,
        {"mean": _number("mean", _at_least_one), "shape": _shape(), "event": _event()},
    ),
}
