"""What the entries of a ledger add up to: what was charged, and what is promised on top."""

import json
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dp_accounting import DpEvent

from incrowd import _validate
from incrowd.errors import AccountingError, BudgetExceeded, ConfigError, LedgerDamaged
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.account.events import RepeatedEvent, event_from_json, event_to_json, fingerprint
from incrowd.privacy.ledger.chain import Entry, canonical
from incrowd.privacy.ledger.identity import DataIdentity


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """A ledger whose spend a fresh start left out of account; `epsilon` is None where it could not be read any more."""

    ledger: str
    entries: int
    epsilon: float | None
    delta: float | None


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a ledger was opened for; its first entry, never changed.

    `id` is drawn for each ledger, so that copies of it can be told from it. `forgets` is empty unless the ledger was a
    deliberate fresh start on data that had been spent on.
    """

    budget: Budget
    relation: Relation
    data_identity: DataIdentity
    forgets: tuple[Forgotten, ...] = ()
    id: str = field(default_factory=lambda: secrets.token_hex(16))

    def to_json(self) -> dict[str, object]:
        """The terms as JSON can hold them."""
        return {
            "budget": {"epsilon": self.budget.epsilon, "delta": self.budget.delta},
            "relation": self.relation.name,
            "data_identity": self.data_identity.to_json(),
            "forgets": [asdict(each) for each in self.forgets],
            "id": self.id,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Terms":
        """What `to_json` wrote."""
        return cls(
            budget=Budget(**content["budget"]),
            relation=Relation[content["relation"]],
            data_identity=DataIdentity.from_json(content["data_identity"]),
            forgets=tuple(Forgotten(**each) for each in content["forgets"]),
            id=content["id"],
        )


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A plan whose price is promised: its events in order, and how many of them were charged."""

    label: str
    runs: tuple[RepeatedEvent, ...]
    charged: int = 0
    released: bool = False

    @property
    def id(self) -> str:
        """What `charge` and `release_reservation` take: the label, which no two reservations of a ledger share."""
        return self.label

    @property
    def events(self) -> int:
        """How many events the plan has."""
        return sum(count for _, count in self.runs)

    def check_continued(self, runs: Sequence[RepeatedEvent]) -> None:
        """The plan is this one, and was not given back (`ConfigError`)."""
        if self.released or runs_to_json(self.runs) != runs_to_json(runs):
            why = "it was released" if self.released else "it has other events"
            raise ConfigError(field="label", value=self.label, remedy=f"{why}; reserve under a new label")


@dataclass
class _OpenReservation:
    """A reservation on its way: what is still to be charged, in order."""

    label: str
    runs: tuple[RepeatedEvent, ...]
    remaining: deque[tuple[str, RepeatedEvent]]
    charged: int = 0
    released: bool = False

    def take(self) -> None:
        """Count the next event as charged."""
        key, (event, count) = self.remaining.popleft()
        if count > 1:
            self.remaining.appendleft((key, (event, count - 1)))
        self.charged += 1


@dataclass
class Tally:
    """The sum of a ledger's entries, from the first up to `length`.

    Guarantee: `promised` changes only where `version` does, and a charge on a reservation changes neither.
    """

    length: int = 0
    head: str = ""
    version: int = 0
    charged: int = 0
    simulated: int = 0
    _terms: Terms | None = None
    _keys: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    _spent: dict[str, RepeatedEvent] = field(default_factory=dict)
    _promises: dict[str, _OpenReservation] = field(default_factory=dict)
    _events: dict[str, tuple[str, DpEvent]] = field(default_factory=dict)

    @property
    def terms(self) -> Terms:
        """What the ledger was opened for. Edge cases: no entry, no terms: `LedgerDamaged`."""
        if self._terms is None:
            raise LedgerDamaged("the ledger has no entries: put an intact copy back")
        return self._terms

    def spent(self) -> list[RepeatedEvent]:
        """All that was charged, equal events counted together."""
        return list(self._spent.values())

    def promised(self) -> list[RepeatedEvent]:
        """All that was charged or is reserved, equal events counted together."""
        total = dict(self._spent)
        for promise in self._promises.values():
            for key, run in promise.remaining:
                _add(total, key, run)
        return list(total.values())

    def labels(self) -> list[str]:
        """The labels of all reservations, in order."""
        return list(self._promises)

    def reservation(self, label: str) -> Reservation:
        """How a reservation stands at present. Edge cases: an unknown label raises `ConfigError`."""
        promise = self._promise(label)
        return Reservation(label=label, runs=promise.runs, charged=promise.charged, released=promise.released)

    def check_charge(self, key: str, label: str) -> None:
        """The event of this fingerprint is the reservation's next one."""
        promise = self._promise(label)
        if promise.released:
            raise ConfigError(
                field="reservation", value=label, remedy="it was released; reserve again under a new label"
            )
        if not promise.remaining:
            raise BudgetExceeded(
                f"all {promise.charged} events of the reservation {label!r} are charged: reserve more under a new label"
            )
        due, (event, _) = promise.remaining[0]
        if key != due:
            remedy = f"charge the reservation's next event, which is number {promise.charged} (from 0): {event}"
            raise ConfigError(field="event", value=key, remedy=remedy)

    def paid(self, key: str) -> int | None:
        """The position of the charge under this key, if there is one."""
        return self._keys[key][2] if key in self._keys else None

    def check_key(self, key: str) -> None:
        """A key that nothing was charged under yet."""
        check_text(key=key)
        if key in self._keys:
            raise ConfigError(field="key", value=key, remedy="it is charged already, and a key pays once")

    def check_again(self, key: str, *, event: str, source: str) -> int:
        """The same may be drawn once more: this event was charged under the key, with noise from the same seed.

        Edge cases: anything else would be new noise, which costs again: `ConfigError`.
        """
        charged, noted, position = self._keys[key]
        if source == "system" or source != noted:
            remedy = "it is paid for already, and fresh noise would cost again: go on with the next round"
            raise ConfigError(field="key", value=key, remedy=remedy)
        if charged != event:
            raise ConfigError(field="key", value=key, remedy="it is paid for already, and another event was")
        return position

    def apply(self, entry: Entry) -> None:
        """Count one more entry.

        Edge cases: an entry that contradicts those before it, or that cannot be read, raises `LedgerDamaged` and is not
        counted.
        """
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
                    self._apply_release(content["label"])
                case kind:
                    raise ConfigError(field="kind", value=kind, remedy="no such entry belongs here")
        except (AccountingError, BudgetExceeded, ConfigError, KeyError, TypeError, ValueError) as error:
            raise LedgerDamaged(
                f"entry {entry.position} of the ledger ({entry.kind}) makes no sense: {error}"
            ) from error
        if content.get("reservation") is None:
            self.version = entry.position
        self.length, self.head = entry.position + 1, entry.hash

    def _apply_charge(self, content: Mapping[str, Any], position: int) -> None:
        kind, event = self._event(content["event"])
        label, key, source = content["reservation"], content["key"], content["randomness"]
        check_text(randomness=source)
        if key is not None:
            self.check_key(key)
        if label is not None:
            self.check_charge(kind, label)
            self._promises[label].take()
        if key is not None:
            self._keys[key] = kind, source, position
        _add(self._spent, kind, (event, 1))
        self.charged += 1
        self.simulated += source != "system"

    def _apply_reserve(self, label: str, runs: Sequence[Sequence[Any]]) -> None:
        if label in self._promises:
            raise ConfigError(field="label", value=label, remedy="two reservations share it")
        remaining: deque[tuple[str, RepeatedEvent]] = deque()
        for obj, count in runs:
            _validate.count(count=count)
            key, event = self._event(obj)
            remaining.append((key, (event, count)))
        self._promises[label] = _OpenReservation(label, tuple(run for _, run in remaining), remaining)

    def _apply_release(self, label: str) -> None:
        promise = self._promise(label)
        promise.remaining.clear()
        promise.released = True

    def _promise(self, label: str) -> _OpenReservation:
        if label not in self._promises:
            known = ", ".join(map(repr, self._promises)) or "none"
            raise ConfigError(
                field="reservation", value=label, remedy=f"give one of this ledger's reservations: {known}"
            )
        return self._promises[label]

    def _event(self, obj: Mapping[str, object]) -> tuple[str, DpEvent]:
        """The event and its fingerprint; a long ledger repeats few events many times, so each is read once."""
        text = json.dumps(obj)
        if text not in self._events:
            event = event_from_json(obj)
            self._events[text] = fingerprint(event), event
        return self._events[text]


def runs_to_json(runs: Sequence[RepeatedEvent]) -> list[list[object]]:
    """Runs as JSON can hold them. Edge cases: no runs, or a count below 1, raise `ConfigError`."""
    if not runs:
        raise ConfigError(field="runs", value=runs, remedy="give at least one event with its count")
    for _, count in runs:
        _validate.count(count=count)
    return [[event_to_json(event), int(count)] for event, count in runs]


def check_text(**fields: object) -> None:
    """Each value is a text of 1 to 200 characters."""
    for name, value in fields.items():
        if not isinstance(value, str) or not 0 < len(value) <= 200:
            raise ConfigError(field=name, value=value, remedy="give a text of 1 to 200 characters")


def check_note(note: Mapping[Any, object]) -> None:
    """A note is small and flat."""
    for name, value in note.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | bool | None):
            raise ConfigError(field="note", value=note, remedy="give texts, numbers or flags by name")
    try:
        text = canonical(note)
    except ValueError as error:
        raise ConfigError(field="note", value=note, remedy="give finite numbers") from error
    if len(text) > 1000:
        raise ConfigError(field="note", value=f"{text[:50]}...", remedy="give at most 1000 characters of JSON")


def _add(total: dict[str, RepeatedEvent], key: str, run: RepeatedEvent) -> None:
    event, count = run
    total[key] = event, count + total.get(key, (event, 0))[1]
