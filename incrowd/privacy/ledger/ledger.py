"""The privacy budget ledger of some data: each charge is on disk before anything is released for it."""

import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from dp_accounting import DpEvent

from incrowd import _files, _validate
from incrowd._private import make_ours, read_ours
from incrowd._random import Randomness, SystemRandomness
from incrowd.errors import (
    AccountingError,
    BudgetExceeded,
    ConfigError,
    LedgerDamaged,
    LedgerError,
    LedgerMismatch,
    LedgerRolledBack,
)
from incrowd.privacy.account.accounting import Budget, Price, Relation, price, quickly_within
from incrowd.privacy.account.events import RepeatedEvent, canonical, compose, event_to_json
from incrowd.privacy.content import DataIdentity
from incrowd.privacy.ledger.chain import Chain, Entry, Mark
from incrowd.privacy.ledger.registry import Guard, Location, state_folder, write_witness
from incrowd.privacy.ledger.tally import (
    SEAL,
    Draws,
    Forgotten,
    Receipt,
    Reservation,
    Tally,
    Terms,
    check_note,
    check_paid,
    check_text,
    noted,
    runs_to_json,
)

EARNEST = SystemRandomness()
"""The source of noise unless a caller names another."""

_SPARE = 1 - 1e-3
"""More events may be priced on a coarser grid than fewer; they prove these with so much of the budget at most."""

_IN_MEMORY: "WeakKeyDictionary[Ledger, dict[str, str]]" = WeakKeyDictionary()

Result = TypeVar("Result")
Verification = dict[str, Any]


class Ledger:
    """The budget of some data, and every event that was charged to it.

    Guarantee: when `charge` returns, the event is on disk (fsync); only then may anything be released for it. A crash
    at any instruction can waste the last charge; it can neither forget a charge nor make room for more. A charge or
    reservation is refused before it is written if all that is charged and reserved would then exceed the budget, or has
    no price. This holds among any number of threads and processes. An edited, truncated or damaged file is refused. So
    is an older copy or another ledger in its place, unless its witness was restored with it, and of a registered ledger
    (`incrowd.privacy.ledger.home`) even then. A registered ledger is charged at its registered place only. If a call
    raises `LedgerUnwritable`, its event may be on disk; then it counts as charged, and nothing may be released for it.
    Notes, labels and data identities are stored in clear, so they hold public information only.

    Not covered: the price assumes that no charge or reservation was chosen by looking at earlier releases from the same
    data (ending a plan early is no such choice).
    """

    def __init__(self, chain: Chain, guard: Guard | None = None, *, write: bool = True) -> None:
        self._chain, self._guard = chain, guard
        self._proven: tuple[Counter[str], float] = Counter(), 0.0  # events that keep to the budget, and their epsilon
        with chain.transaction(write=False):
            self._tally = Tally.of(chain)
            terms = self._tally.terms
            if guard is not None:
                guard.check_place(terms.id, write=write)
                guard.check(self._tally.hashes)
        self.id: Final = terms.id
        self.budget: Final = terms.budget
        self.relation: Final = terms.relation
        self.data_identity: Final = terms.data_identity
        self.forgets: Final = terms.forgets
        self.kept: Final = chain.path is not None  # or gone with the process

    @classmethod
    def open(
        cls,
        path: Location,
        *,
        budget: Budget | None = None,
        relation: Relation | None = None,
        data_identity: DataIdentity | str | None = None,
        witness: Location | None = None,
        forgets: Sequence[Forgotten] = (),
    ) -> "Ledger":
        """Open the ledger at a path for writing, or begin one there; a text as data identity is a name.

        Guarantee: an existing ledger keeps its terms. A new one is for this user alone (0600, whatever the umask). A
        ledger that was seen before and is gone is not begun anew (`LedgerRolledBack`); a copy of a registered one, a
        file with hard links and one that others may write are refused (`LedgerMisplaced`).
        """
        guard = Guard(path, witness)
        identity = DataIdentity(name=data_identity) if isinstance(data_identity, str) else data_identity
        given = {"budget": budget, "relation": relation, "data_identity": identity}
        exists = guard.path.exists()
        if not exists:
            guard.check_missing(given)
        chain = Chain(guard.path, mode="rw" if exists else "rwc")
        with chain.transaction(write=True):
            if chain.is_new():
                guard.check_missing(given)
                chain.begin(Terms(**given, forgets=tuple(forgets)).to_json())  # type: ignore[arg-type]  # checked just now
        ledger = cls(chain, guard)
        for name, value in given.items():
            its, remedy = getattr(ledger, name), "give its own, or name another file"
            if value is not None and value != its:
                raise LedgerMismatch(f"{guard.path} was begun with {name} = {its!r}, not {value!r}: {remedy}")
        ledger._testify()
        return ledger

    @classmethod
    def read(cls, path: Location, *, witness: Location | None = None) -> "Ledger":
        """Open an existing ledger for reading: no file is created or changed, and writing raises `LedgerUnwritable`."""
        guard = Guard(path, witness)
        if not guard.path.exists():
            guard.check_missing()
            raise ConfigError(field="path", value=str(path), remedy="give the path of an existing ledger")
        return cls(Chain(guard.path, mode="ro"), guard, write=False)

    @classmethod
    def in_memory(
        cls, *, budget: Budget, relation: Relation, data_identity: DataIdentity | str = "simulation"
    ) -> "Ledger":
        """A ledger without a file, for simulations; the same code on another store."""
        identity = DataIdentity(name=data_identity) if isinstance(data_identity, str) else data_identity
        chain = Chain(None)
        with chain.transaction(write=True):
            chain.begin(Terms(budget=budget, relation=relation, data_identity=identity).to_json())
        return cls(chain)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file. Every charge is on disk already."""
        self._chain.close()

    @property
    def head(self) -> str:
        """The hash of the last entry known here. Kept elsewhere, it lets `verify` notice missing entries."""
        return self._tally.head

    @property
    def mark(self) -> Mark:
        """How far it had come at the last look."""
        return self._tally.mark

    @contextmanager
    def held(self) -> Iterator[Mark]:
        """Keep all others from writing meanwhile; how far it has come."""
        with self._current(write=True):
            yield self.mark

    def reserve(self, runs: Sequence[RepeatedEvent], *, label: str) -> Reservation:
        """Reserve a plan: events in order, each with its count. The same runs under the same label continue it.

        Guarantee: afterwards every event of the plan can be charged, whatever else is charged meanwhile.
        """
        return self.reserve_all({label: runs})[0]

    def reserve_all(self, plans: Mapping[str, Sequence[RepeatedEvent]]) -> list[Reservation]:
        """Reserve several plans, each under its label, or none of them; see `reserve`."""
        check_text(**{f"label[{place}]": label for place, label in enumerate(plans)})
        wanted = {label: runs_to_json(runs) for label, runs in plans.items()}

        def new(tally: Tally) -> list[str]:
            for label in plans.keys() & tally.reservations.keys():
                standing = tally.reservations[label]
                if standing.released or runs_to_json(standing.runs) != wanted[label]:
                    why = "it was released" if standing.released else "it has other events"
                    raise ConfigError(field="label", value=label, remedy=f"{why}; reserve under a new label")
            return [label for label in plans if label not in tally.reservations]

        with self._writing(lambda tally: [run for label in new(tally) for run in plans[label]]) as tally:
            for label in new(tally):
                self._chain.append("reserve", {"label": label, "runs": wanted[label]})
        return [self.reservation(label) for label in plans]

    def check_room(self, runs: Sequence[RepeatedEvent]) -> None:
        """There is room for these events beside all that is charged and reserved by now (`BudgetExceeded`)."""
        self._check_budget([*self.commitments(), *runs])

    def charge(
        self,
        event: DpEvent,
        *,
        pays_for: Draws = (),
        randomness: Randomness = EARNEST,
        key: str | None = None,
        reservation: str | None = None,
        note: Mapping[str, str | int | float | bool | None] | None = None,
        people: int = 1,
    ) -> Receipt:
        """Charge an event: the next one of a reservation, or else one for which the rest of the budget has room.

        The receipt pays for the noises of `pays_for`, drawn from `randomness`, which is noted; each of `people` draws a
        share. A `key` is charged once.

        Guarantee: see `Ledger` and `check_paid`. A charged key is refused, but the same event with the same seed gives
        a receipt once more, and nothing is written: the very same noise is no second release.
        """
        check_note(note := dict(note or {}))
        check_text(**({} if key is None else {"key": key}))
        source, its, kind = noted(randomness), event_to_json(event), canonical(event)
        content = {"event": its, "key": key, "note": note, "randomness": source, "reservation": reservation}
        planned = self.reservation(reservation).runs if reservation is not None and pays_for else ()
        check_paid(event, pays_for, relation=self.relation, people=people, planned=planned, per=note.get("per"))

        with self._writing(
            lambda tally: [(event, 1)] if reservation is None and tally.paid(key) is None else []
        ) as tally:
            if key is not None and (position := tally.paid(key)) is not None:
                tally.check_again(key, event=kind, source=source)
                entry = next(self._chain.entries(start=position, previous=tally.hashes[position - 1]))
            else:
                if reservation is not None:
                    tally.check_due(kind, reservation)
                entry = self._chain.append("charge", content)
        return Receipt(entry, randomness=randomness, pays_for=pays_for, seal=SEAL)

    def paid(self, key: str) -> bool:
        """Whether something was charged under this key."""
        return self._ask(lambda tally: tally.paid(key) is not None)

    def charges(self) -> tuple[int, int]:
        """How many charges there are, and how many of them are for noise that comes from a seed."""
        return self._ask(lambda tally: (tally.charged, tally.simulated))

    def release_reservation(self, reservation: str) -> None:
        """Give back what a reservation has not charged.

        Guarantee: rounds whose cohorts were drawn are charged first. Who gave them back and drew again under another
        label until a cohort pleased would exceed the sampling probability that is charged.
        """
        with _cohorts(self) as keys:
            drawn = [its[1] for its in map(json.loads, keys) if its[0] == reservation]
        standing = self.reservation(reservation)
        events = [event for event, count in standing.runs for _ in range(count)] if drawn else []
        for number in range(standing.charged, max(drawn, default=-1) + 1):
            self.charge(events[number], reservation=reservation, note={"round": number, "drawn": True})
        if drawn:
            forget_cohorts(self, reservation, upto=max(drawn))
        with self._writing() as tally:
            if next(tally.reservation(reservation).left(), None) is not None:
                self._chain.append("release", {"label": reservation})

    def reservation(self, reservation: str) -> Reservation:
        """A reservation as it stands now."""
        return self._ask(lambda tally: tally.reservation(reservation))

    def reservations(self) -> tuple[Reservation, ...]:
        """All reservations, in order."""
        return self._ask(lambda tally: tuple(tally.reservations.values()))

    def spent(self) -> Price:
        """The price of all that was charged."""
        return self.price(self._ask(Tally.spent))

    def promised(self) -> Price:
        """The price of all that was charged or is reserved; the budget is never less."""
        return self.price(self.commitments())

    def commitments(self) -> tuple[RepeatedEvent, ...]:
        """All that was charged or is reserved, equal events counted together: what `promised` prices."""
        return tuple(self._ask(Tally.promised))

    def price(self, runs: Sequence[RepeatedEvent]) -> Price:
        """The price of events together."""
        return price(compose(runs), delta=self.budget.delta, relation=self.relation)

    def entries(self, *, start: int = 0) -> tuple[Entry, ...]:
        """All entries from a position on, each checked against the one before it; no earlier one is read again."""
        _validate.natural(start=start)
        with self._current(write=False) as tally:
            previous = "" if start == 0 else (*tally.hashes[start - 1 : start], "")[0]
            return tuple(self._chain.entries(start=start, previous=previous))

    def verify(self, *, head: str | None = None) -> Tally:
        """Check everything again, from the first byte: file, chain, witness, head (kept elsewhere), and the budget."""
        with self._current(write=False):
            tally = Tally.of(self._chain)
        if head is not None and head not in tally.hashes:
            raise LedgerRolledBack(f"no entry of {self._chain.path} has the hash {head}: put the latest copy back")
        promised = self._cost(tally.promised())
        # Entries were priced in another order when they were written, so the last digit may differ.
        if not promised <= self.budget.epsilon * (1 + 1e-9):
            raise LedgerDamaged(f"{self._chain.path} promises epsilon = {promised}, its budget is {self.budget}")
        return tally

    @contextmanager
    def _writing(self, new: Callable[[Tally], Sequence[RepeatedEvent]] = lambda _: ()) -> Iterator[Tally]:
        """All or nothing is written, by nobody else meanwhile; then the guard knows of it.

        Guarantee: the budget has room for the `new` events, if there are any, beside all that is charged and reserved
        at the moment of writing. A price can take seconds: it is computed while others write, and again if their
        entries changed the sum.
        """
        priced: list[RepeatedEvent] = []
        while True:
            with self._current(write=True) as tally:
                wanted = new(tally)
                total = [*tally.promised(), *wanted] if wanted else []
                if total in ([], priced) or self._is_proven(total):
                    yield tally
                    break
            self._prove(total, wanted)
            priced = total
        self._testify()

    def _is_proven(self, total: Sequence[RepeatedEvent]) -> bool:
        """Whether more than these events were priced, with some of the budget to spare."""
        proven, cost = self._proven
        return _counted(total) <= proven and cost <= self.budget.epsilon * _SPARE

    def _prove(self, total: Sequence[RepeatedEvent], wanted: Sequence[RepeatedEvent]) -> None:
        """Price events (`BudgetExceeded`). Where that took transforms, price them from the second time on together with
        so many more of the wanted ones as should fit, so that these need no price of their own.
        """
        self._check_budget(total)
        if quickly_within(total, self.budget, self.relation):
            return
        (before, cost_before), counted, cost = self._proven, _counted(total), self.price(total).epsilon
        self._proven = counted, cost
        added, rise = counted.total() - before.total(), cost - cost_before
        if before and added > 0 and rise > 0:
            fitting = (self.budget.epsilon * _SPARE - cost) / rise * added / sum(count for _, count in wanted)
            times = int(min(fitting, counted.total()))
            more = [*total, *((event, count * times) for event, count in wanted if times > 0)]
            if times > 0 and (cost := self.price(more).epsilon) <= self.budget.epsilon * _SPARE:
                self._proven = _counted(more), cost

    def _check_budget(self, total: Sequence[RepeatedEvent]) -> None:
        """All of these events together keep to the budget (`BudgetExceeded`)."""
        cost = self._cost(total)
        if not cost <= self.budget.epsilon:
            where = self._chain.path or "FILE"
            raise BudgetExceeded(
                f"together with all that is charged and reserved this would cost epsilon = {cost:.6g} at delta = "
                f"{self.budget.delta:g}; the budget is {self.budget.epsilon:g}, of which {self.spent().epsilon:.6g} is "
                f"spent, and {self.promised().epsilon:.6g} spent or reserved. Plan fewer or noisier events; `incrowd "
                f"ledger show {where}` lists what is reserved, `incrowd ledger release {where} LABEL` gives it back"
            )

    def _cost(self, runs: Sequence[RepeatedEvent]) -> float:
        """The epsilon of events together; 0 if it is plain that they are within the budget."""
        return 0.0 if quickly_within(runs, self.budget, self.relation) else self.price(runs).epsilon

    def _ask(self, question: Callable[[Tally], Result]) -> Result:
        with self._current(write=False) as tally:
            return question(tally)

    @contextmanager
    def _current(self, *, write: bool) -> Iterator[Tally]:
        """A transaction that knows all that others have written."""
        with self._chain.transaction(write=write):
            tally = self._tally
            if self._chain.hash_at(len(tally.hashes) - 1) != tally.head:
                path = self._chain.path
                raise LedgerRolledBack(f"{path} lost entries or was replaced while in use: put the right file back")
            for entry in self._chain.entries(start=len(tally.hashes), previous=tally.head):
                tally.apply(entry)
            if self._guard is not None:
                self._guard.check(tally.hashes)
            yield tally

    def _testify(self) -> None:
        """Bring the guard up to date: after the commit, and under the write lock, so that it never goes back."""
        with self.held() as mark:
            if self._guard is not None:
                self._guard.write(mark)


def _counted(runs: Sequence[RepeatedEvent]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for event, count in runs:
        counted[canonical(event)] += count
    return counted


def verify(path: Location, *, head: str | None = None, witness: Location | None = None) -> Verification:
    """Check a ledger from the first byte to the last, and report instead of raising. No file is created or changed."""
    try:
        with Ledger.read(path, witness=witness) as ledger:
            tally, spent, delta = ledger.verify(head=head), ledger.spent().epsilon, ledger.budget.delta
    except (LedgerError, AccountingError) as error:
        problem = {"intact": False, "problem": str(error)}
        return problem | dict.fromkeys(("events", "epsilon", "delta", "head"))
    figures = {"events": tally.charged, "epsilon": spent, "delta": delta, "head": tally.head}
    return {"intact": True, "problem": None, **figures}


def renew_witness(path: Location, *, head: str, witness: Location | None = None) -> None:
    """Replace a lost witness: the operator vouches for the ledger's last head hash."""
    guard = Guard(path, witness)
    if guard.witness.exists():
        remedy = "it is still there; only a lost one is renewed"
        raise ConfigError(field="witness", value=str(guard.witness), remedy=remedy)
    guard.files = guard.files[1:]
    with Ledger(Chain(guard.path), guard) as ledger, ledger.held() as mark:
        if mark.head != head:
            raise LedgerRolledBack(f"the head of {guard.path} is {mark.head}, not {head}: put the latest copy back")
        write_witness(guard.witness, mark)


def cohort_key(ledger: Ledger, reservation: str, round: int) -> bytes:
    """The key from which a round's cohort is drawn: redrawing it would exceed the sampling probability that is charged.

    Guarantee: all processes of this user get the same key until the round is charged, and only this user can read it.
    """
    with _cohorts(ledger) as keys:
        return bytes.fromhex(keys.setdefault(json.dumps([reservation, round]), secrets.token_hex(32)))


def forget_cohorts(ledger: Ledger, reservation: str, *, upto: int) -> None:
    """Forget the keys of a reservation's rounds up to this one, which is charged."""
    with _cohorts(ledger) as keys:
        for name in [name for name in keys if (its := json.loads(name))[0] == reservation and its[1] <= upto]:
            del keys[name]


@contextmanager
def _cohorts(ledger: Ledger) -> Iterator[dict[str, str]]:
    """The keys of a ledger's cohorts; changes are on disk afterwards, unless the ledger is in memory."""
    path = state_folder() / "cohorts" / ledger.id
    with ledger.held():
        keys = _IN_MEMORY.setdefault(ledger, {})
        if ledger.kept:
            keys = json.loads(read_ours(path, secret=True)) if path.exists() else {}
        before = dict(keys)
        yield keys
        if ledger.kept and keys != before:
            make_ours(path.parent)
            _files.write(path, json.dumps(keys)) if keys else path.unlink()
