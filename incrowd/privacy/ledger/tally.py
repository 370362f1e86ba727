"""The sum of a ledger's entries: data, budget, charges, reservations; and the receipts by which noise is drawn."""

import os
import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NoReturn

from dp_accounting import DpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from dp_accounting.dp_event import ComposedDpEvent, SampledWithoutReplacementDpEvent, SelfComposedDpEvent

from incrowd import _validate
from incrowd._random import Randomness, Stream, SystemRandomness
from incrowd.errors import AccountingError, BudgetExceeded, ConfigError, LedgerDamaged
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.account.events import PureDpEvent, RepeatedEvent, event_from_json, event_to_json
from incrowd.privacy.content import DataIdentity
from incrowd.privacy.ledger.chain import Chain, Entry, Mark, canonical


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """A ledger whose charges a fresh start does not count; `epsilon` is None where that ledger was unreadable."""

    ledger: str
    entries: int
    epsilon: float | None
    delta: float | None


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The first entry of a ledger, which never changes. `id` is random; a fresh start `forgets` other ledgers."""

    budget: Budget
    relation: Relation
    data_identity: DataIdentity
    forgets: tuple[Forgotten, ...] = ()
    id: str = field(default_factory=lambda: secrets.token_hex(16))

    def to_json(self) -> dict[str, object]:
        """The terms as JSON can hold them."""
        budget = {"epsilon": self.budget.epsilon, "delta": self.budget.delta}
        its, forgets = self.data_identity.to_json(), [asdict(each) for each in self.forgets]
        content = {"budget": budget, "relation": self.relation.name, "data_identity": its}
        return {**content, "forgets": forgets, "id": self.id}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Terms":
        """The terms that `to_json` wrote."""
        its, forgets = DataIdentity(**content["data_identity"]), (Forgotten(**each) for each in content["forgets"])
        budget, relation = Budget(**content["budget"]), Relation[content["relation"]]
        return cls(budget=budget, relation=relation, data_identity=its, forgets=tuple(forgets), id=content["id"])


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A plan whose price is reserved: its events in order, and how many of them were charged."""

    label: str
    runs: tuple[RepeatedEvent, ...]
    charged: int = 0
    released: bool = False

    @property
    def events(self) -> int:
        """The number of events of the plan."""
        return sum(count for _, count in self.runs)

    def left(self) -> Iterator[tuple[int, int]]:
        """The runs that are still to be charged, by their place in the plan, with the count that is left."""
        charged = self.charged
        for place, (_, count) in enumerate(() if self.released else self.runs):
            if charged < count:
                yield place, count - charged
            charged = max(0, charged - count)


@dataclass
class Tally:
    """The sum of a ledger's entries. A charge on a reservation does not change what is `promised`."""

    charged: int = 0
    simulated: int = 0
    hashes: list[str] = field(default_factory=list)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    _terms: Terms | None = None
    _paid: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    _spent: Counter[str] = field(default_factory=Counter)  # by the canonical JSON of the events
    _prints: dict[str, list[str]] = field(default_factory=dict)
    _events: dict[str, DpEvent] = field(default_factory=dict)

    @classmethod
    def of(cls, chain: Chain) -> "Tally":
        """The sum of all entries of a file, which is checked from its first byte to its last."""
        tally = cls()
        chain.check_file()
        for entry in chain.entries():
            tally.apply(entry)
        return tally

    @property
    def terms(self) -> Terms:
        """The first entry."""
        if self._terms is None:
            raise LedgerDamaged("the ledger has no entries: put an intact copy back")
        return self._terms

    @property
    def head(self) -> str:
        """The hash of the last entry."""
        return self.hashes[-1] if self.hashes else ""

    @property
    def mark(self) -> Mark:
        """How far the ledger has come."""
        return Mark(entries=len(self.hashes), head=self.head)

    def spent(self) -> list[RepeatedEvent]:
        """All that was charged, equal events counted together."""
        return [(self._events[kind], count) for kind, count in self._spent.items()]

    def promised(self) -> list[RepeatedEvent]:
        """All that was charged or is reserved, equal events counted together."""
        total = self._spent.copy()
        for label, reservation in self.reservations.items():
            for place, count in reservation.left():
                total[self._prints[label][place]] += count
        return [(self._events[kind], count) for kind, count in total.items()]

    def reservation(self, label: str) -> Reservation:
        """A reservation as it stands now."""
        if label not in self.reservations:
            remedy = f"give one of this ledger's reservations: {', '.join(map(repr, self.reservations)) or 'none'}"
            raise ConfigError(field="reservation", value=label, remedy=remedy)
        return self.reservations[label]

    def check_due(self, event: str, label: str) -> None:
        """The event of this canonical JSON is the next one of the reservation."""
        its, more = self.reservation(label), "under a new label"
        if its.released:
            raise ConfigError(field="reservation", value=label, remedy=f"it was released; reserve again {more}")
        place, _ = next(its.left(), (None, 0))
        if place is None:
            raise BudgetExceeded(f"all {its.charged} events of the reservation {label!r} are charged: reserve {more}")
        if event != self._prints[label][place]:
            due = f"which is number {its.charged} (from 0): {its.runs[place][0]}"
            raise ConfigError(field="event", value=event, remedy=f"charge the reservation's next event, {due}")

    def paid(self, key: str | None) -> int | None:
        """The position of the charge under this key, if the key was charged."""
        return self._paid[key][2] if key in self._paid else None

    def check_again(self, key: str, *, event: str, source: str) -> None:
        """The key was charged for this event with noise from the same seed: drawn again, it tells no more."""
        charged, noted, _ = self._paid[key]
        if source == "system" or source != noted:
            remedy = "it is paid for already, and fresh noise would cost again: go on with the next round"
            raise ConfigError(field="key", value=key, remedy=remedy)
        if charged != event:
            raise ConfigError(field="key", value=key, remedy="it is paid for already, and another event was")

    def apply(self, entry: Entry) -> None:
        """Count one more entry. One that contradicts those before it, or is unreadable, raises `LedgerDamaged`."""
        content = entry.content()
        try:
            match entry.kind:
                case "terms" if entry.position == 0:
                    self._terms = Terms.from_json(content)
                case "charge" if entry.position:
                    self._apply_charge(content, entry.position)
                case "reserve" if entry.position:
                    self._apply_reserve(content["label"], content["runs"])
                case "release" if entry.position:
                    label = content["label"]
                    self.reservations[label] = replace(self.reservation(label), released=True)
                case kind:
                    raise ConfigError(field="kind", value=kind, remedy="no such entry belongs here")
        except (AccountingError, BudgetExceeded, ConfigError, KeyError, TypeError, ValueError) as error:
            where = f"entry {entry.position} of the ledger ({entry.kind})"
            raise LedgerDamaged(f"{where} makes no sense: {error}") from error
        self.hashes.append(entry.hash)

    def _apply_charge(self, content: Mapping[str, Any], position: int) -> None:
        kind = self._kind(content["event"])
        label, key, source = content["reservation"], content["key"], content["randomness"]
        check_text(randomness=source, **({} if key is None else {"key": key}))
        if key in self._paid:
            raise ConfigError(field="key", value=key, remedy="it is charged already, and a key pays once")
        if label is not None:
            self.check_due(kind, label)
            its = self.reservations[label]
            self.reservations[label] = replace(its, charged=its.charged + 1)
        if key is not None:
            self._paid[key] = kind, source, position
        self._spent[kind] += 1
        self.charged += 1
        self.simulated += source != "system"

    def _apply_reserve(self, label: str, runs: Sequence[Sequence[Any]]) -> None:
        if label in self.reservations:
            raise ConfigError(field="label", value=label, remedy="two reservations share it")
        for _, count in runs:
            _validate.count(count=count)
        kinds = [self._kind(obj) for obj, _ in runs]
        plan = tuple((self._events[kind], count) for kind, (_, count) in zip(kinds, runs, strict=True))
        self._prints[label], self.reservations[label] = kinds, Reservation(label=label, runs=plan)

    def _kind(self, obj: Mapping[str, object]) -> str:
        """The canonical JSON of an event; a long ledger repeats few events many times, so each is read once."""
        text = canonical(obj)
        if text not in self._events:
            self._events[text] = event_from_json(obj)
        return text


def runs_to_json(runs: Sequence[RepeatedEvent]) -> list[list[object]]:
    """Runs as JSON can hold them."""
    if not runs:
        raise ConfigError(field="runs", value=runs, remedy="give at least one event with its count")
    for _, count in runs:
        _validate.count(count=count)
    return [[event_to_json(event), int(count)] for event, count in runs]


def check_text(**values: object) -> None:
    """Each value is a text of 1 to 200 characters."""
    for name, value in values.items():
        if not isinstance(value, str) or not 0 < len(value) <= 200:
            raise ConfigError(field=name, value=value, remedy="give a text of 1 to 200 characters")


def check_note(note: Mapping[Any, object]) -> None:
    """A note is small and flat."""
    if not all(
        isinstance(key, str) and isinstance(value, str | int | float | bool | None) for key, value in note.items()
    ):
        raise ConfigError(field="note", value=note, remedy="give texts, numbers or flags by name")
    try:
        text = canonical(note)
    except ValueError as error:
        raise ConfigError(field="note", value=note, remedy="give finite numbers") from error
    if len(text) > 1000:
        raise ConfigError(field="note", value=f"{text[:50]}...", remedy="give at most 1000 characters of JSON")


Draws = Sequence[tuple[object, int]]
"""Noises, and how often each may be drawn."""

SEAL = object()
"""`Ledger.charge` shows this when it makes a receipt. A test checks that no other function does."""

_ROUNDING = 1 - 1e-9


class Receipt:
    """The noises that a charge pays for, each to be drawn as often as it was paid for, and once for one purpose.

    Guarantee: the event of a receipt is on the ledger's disk. Noise comes from the randomness that the ledger noted
    with the charge, so a charge of the operating system's noise is never drawn from a seed. A noise that was not paid
    for, a draw too many, and a second draw for the same purpose are refused, among any number of threads. A receipt is
    neither copied nor sent to another process.
    """

    def __init__(self, entry: Entry, *, randomness: Randomness, pays_for: Draws, seal: object) -> None:
        if seal is not SEAL:
            raise ConfigError(field="receipt", value=entry.position, remedy="only Ledger.charge makes receipts")
        self.entry = entry
        self._randomness = randomness
        self._pays_for = pays_for
        self._remaining = [times for _, times in pays_for]
        self._drawn: set[tuple[str, tuple[int, ...]]] = set()
        self._process = os.getpid()
        self._lock = threading.Lock()

    @property
    def simulated(self) -> bool:
        """Whether its noise comes from a seed."""
        return self._randomness.simulated

    def noise_stream(self, noise: object, purpose: str, *indices: int) -> Stream:
        """Take one of the draws of a noise that were paid for: the stream that it is drawn from."""
        name = purpose, indices
        if os.getpid() != self._process:  # a copy that a fork made would draw what the original draws, too
            self.__reduce__()
        with self._lock:
            if name in self._drawn:
                raise ConfigError(field="noise", value=name, remedy="it was drawn already: charge again for another")
            its = [place for place, (paid, _) in enumerate(self._pays_for) if _same(paid, noise)]
            if not its:
                raise ConfigError(field="noise", value=noise, remedy="it is not what this receipt was paid for")
            usable = [place for place in its if self._remaining[place]]
            if not usable:
                raise BudgetExceeded(f"all noise that was paid for ({purpose}) is drawn: charge again")
            self._remaining[usable[0]] -= 1
            self._drawn.add(name)
        return self._randomness.stream(purpose, *indices)

    def __reduce__(self) -> NoReturn:
        raise ConfigError(field="receipt", value=self.entry.position, remedy="a receipt is not copied: charge again")


def noted(randomness: Randomness) -> str:
    """The name under which a ledger notes a source of randomness; a foreign one that takes the system's is refused."""
    if randomness.source == "system" and type(randomness) is not SystemRandomness:
        remedy = "only SystemRandomness may be called so: give another source a name of its own"
        raise ConfigError(field="randomness", value=type(randomness).__name__, remedy=remedy)
    return randomness.source


def check_paid(
    event: DpEvent,
    pays_for: Draws,
    *,
    relation: Relation,
    people: int = 1,
    planned: Sequence[RepeatedEvent] = (),
    per: object = None,
) -> None:
    """Refuse to pay for noises with an event that tells less than they do.

    A noise says what one draw costs (`event`). Where one unit replaces another, a sum moves by two of its bounds,
    unless the noise counts these already (`of_replacing`). If so many `people` draw, each draws once. A noise for a
    `whole_run` is paid for by all that is `planned` under the reservation.

    Guarantee: the sum of 1 / z^2 of the event's Gaussian releases is at least that of the noises, and so is the sum of
    the epsilons of all others. How participants are sampled is not seen here: `PrivateRun` and `RecordRun` draw them. A
    charge `per` feature, as the ledger notes, is one number of the many that a noise bounds together: not checked.
    """
    if per == "feature" or not pays_for:
        return
    once = [(_event_of(noise), -(-times // people), noise) for noise, times in pays_for]
    whole = [noise for _, _, noise in once if getattr(noise, "whole_run", False)]
    stated = _told(planned if whole and planned else [(event, 1)])
    drawn = (0.0, 0.0)
    for its, times, noise in once:
        bounds = 2 if relation is Relation.REPLACE_ONE and not getattr(noise, "of_replacing", False) else 1
        gaussian, pure = _told([(its, 1 if noise in whole else times)])
        drawn = drawn[0] + gaussian * bounds**2, drawn[1] + pure * bounds
    if any(told < its * _ROUNDING for told, its in zip(stated, drawn, strict=True)):
        remedy = "it costs less than the noise that it is to pay for: charge the event of that noise"
        raise ConfigError(field="event", value=event, remedy=remedy)


def _event_of(noise: object) -> DpEvent:
    stated = getattr(noise, "event", None)
    if stated is None:
        remedy = "it does not say what a draw costs: give one of incrowd.privacy.mechanism"
        raise ConfigError(field="pays_for", value=type(noise).__name__, remedy=remedy)
    return stated()


def _told(runs: Sequence[RepeatedEvent]) -> tuple[float, float]:
    """The sum of 1 / z^2 of Gaussian releases, and of the epsilons of others, as if all units took part in each."""
    gaussian = pure = 0.0
    for event, times in runs:
        within = (0.0, 0.0)
        if isinstance(event, GaussianDpEvent):
            inverse = 1 / event.noise_multiplier
            gaussian += times * inverse * inverse
        elif isinstance(event, LaplaceDpEvent):
            pure += times / event.noise_multiplier
        elif isinstance(event, PureDpEvent):
            pure += times * event.epsilon
        elif isinstance(event, ComposedDpEvent):
            within = _told([(each, 1) for each in event.events])
        elif isinstance(event, SelfComposedDpEvent | PoissonSampledDpEvent | SampledWithoutReplacementDpEvent):
            within = _told([(event.event, getattr(event, "count", 1))])
        gaussian, pure = gaussian + times * within[0], pure + times * within[1]
    return gaussian, pure


def _same(paid: object, noise: object) -> bool:
    return paid is noise or (type(paid) is type(noise) and bool(paid == noise))
