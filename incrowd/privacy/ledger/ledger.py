"""What has been spent on some data: written down, and on disk, before anything is released."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, TypedDict

from dp_accounting import DpEvent

from incrowd import _validate
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
from incrowd.privacy.account.accounting import Budget, Price, Relation, plainly_within, price
from incrowd.privacy.account.events import RepeatedEvent, compose, event_to_json, fingerprint
from incrowd.privacy.ledger.chain import Chain, Entry
from incrowd.privacy.ledger.identity import DataIdentity
from incrowd.privacy.ledger.paid import check_paid
from incrowd.privacy.ledger.place import LedgerPlace, Location
from incrowd.privacy.ledger.receipt import SEAL, Draws, Receipt, noted
from incrowd.privacy.ledger.shown import html_of
from incrowd.privacy.ledger.tally import Forgotten, Reservation, Tally, Terms, check_note, check_text, runs_to_json
from incrowd.privacy.ledger.witness import Mark, Witness

__all__ = ["DataIdentity", "Entry", "Ledger", "Receipt", "Reservation", "Verification", "renew_witness", "verify"]

EARNEST = SystemRandomness()
"""Where noise comes from unless something else is asked for by name."""


class Ledger:
    """The budget of some data, and every event that was charged to it.

    Guarantee: when `charge` returns, the event is on disk (fsync); only then may anything be released for it. A crash
    at any instruction can waste what was charged last; it can neither forget a charge nor make room for more. A charge
    or reservation is refused, and nothing written, when the price of all that is charged and reserved would exceed the
    budget with it, or cannot be stated. This holds among any number of threads and processes. A file that was edited,
    truncated or damaged is refused; so is an older copy or another ledger in its place, unless its witness was put back
    with it, and of a ledger that is registered (`incrowd.privacy.ledger.home`) even then. A registered ledger is
    charged at its own place only.

    Edge cases: a charge on a reservation is not priced, since the whole plan was, and must be the plan's next event.
    Where a call raises `LedgerUnwritable`, its event may have been written all the same; then it counts as charged, and
    nothing may be released for it. A note, a label and a data identity are stored in clear, so they hold public
    information only, such as the number of a round.

    Not covered: the price assumes that nothing charged or reserved was chosen by looking at earlier releases from the
    same data (ending a plan early is no such choice).
    """

    def __init__(self, chain: Chain, witnesses: Sequence[Witness] = ()) -> None:
        self._chain = chain
        self._witnesses = list(witnesses)
        self._tally = Tally()
        with chain.transaction(write=False):
            chain.check_file()
            self._catch_up()

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
        busy_timeout_s: float = 30.0,
    ) -> "Ledger":
        """Open the ledger at a path for writing, or begin one there; `forgets` is for a fresh start.

        Its witness is the file `<path>.witness` unless another is named or registered. Other processes are waited for
        as long as said. A data identity that is a text is a name.

        Guarantee: a ledger that is there keeps its terms. A new one is for this user alone (0600, whatever the umask).

        Edge cases: to begin one, budget, relation and data identity are needed (`ConfigError`); of an existing one,
        those that are given must be its own (`LedgerMismatch`). Where the ledger is gone or empty but its witness, or
        the registry, saw it, the answer is `LedgerRolledBack`. Witnesses are looked for beside every name that leads to
        the file, through symbolic links, and all that are there must agree. A copy of a registered ledger, a file with
        hard links and one that others may write are refused with `LedgerMisplaced`.
        """
        place = LedgerPlace.of(path, witness)
        identity = DataIdentity(name=data_identity) if isinstance(data_identity, str) else data_identity
        given = {"budget": budget, "relation": relation, "data_identity": identity}
        mode = "rw"
        if not place.path.exists():
            place.check_beginning(given)
            mode = "rwc"
        with ExitStack() as stack:
            chain = Chain.open(place.path, mode=mode, busy_timeout_s=busy_timeout_s)
            stack.callback(chain.close)
            with chain.transaction(write=True):
                if chain.is_new():
                    place.check_beginning(given)
                    _begin(chain, Terms(**given, forgets=tuple(forgets)))  # type: ignore[arg-type]  # checked just now
            ledger = cls(chain, place.witnesses)
            ledger._check_registered(place, write=True)
            ledger._check_terms(given)
            ledger._testify()
            stack.pop_all()
        return ledger

    @classmethod
    def read(cls, path: Location, *, witness: Location | None = None) -> "Ledger":
        """Open an existing ledger for reading: no file is created or changed, and writing raises `LedgerUnwritable`."""
        place = LedgerPlace.of(path, witness)
        if not place.path.exists():
            place.check_not_removed()
            raise ConfigError(field="path", value=str(path), remedy="give the path of an existing ledger")
        with ExitStack() as stack:
            chain = Chain.open(place.path, mode="ro", busy_timeout_s=30.0)
            stack.callback(chain.close)
            ledger = cls(chain, place.witnesses)
            ledger._check_registered(place, write=False)
            stack.pop_all()
        return ledger

    @classmethod
    def in_memory(
        cls, *, budget: Budget, relation: Relation, data_identity: DataIdentity | str = "simulation"
    ) -> "Ledger":
        """A ledger that nobody keeps, for simulations; the same code on another store."""
        identity = DataIdentity(name=data_identity) if isinstance(data_identity, str) else data_identity
        chain = Chain.in_memory()
        with chain.transaction(write=True):
            _begin(chain, Terms(budget=budget, relation=relation, data_identity=identity))
        return cls(chain)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file. Every charge is on disk already."""
        self._chain.close()

    @property
    def budget(self) -> Budget:
        """The budget that the ledger was begun with."""
        return self._tally.terms.budget

    @property
    def relation(self) -> Relation:
        """The neighbouring relation that all prices are under."""
        return self._tally.terms.relation

    @property
    def data_identity(self) -> DataIdentity:
        """The data that it is about, as they were when it was begun."""
        return self._tally.terms.data_identity

    @property
    def forgets(self) -> tuple[Forgotten, ...]:
        """The ledgers whose spend on the same data deliberate fresh starts left out of account."""
        return self._tally.terms.forgets

    @property
    def id(self) -> str:
        """What tells this ledger from all others, and a copy of it from none."""
        return self._tally.terms.id

    @property
    def head(self) -> str:
        """The hash of the last entry known here. Kept elsewhere, it lets `verify` tell whether entries are missing."""
        return self._tally.head

    @property
    def mark(self) -> Mark:
        """How far it had come when it was last looked at."""
        return Mark(entries=self._tally.length, head=self._tally.head)

    @contextmanager
    def held(self) -> Iterator[Mark]:
        """Let nobody write meanwhile; how far it has come."""
        with self._current(write=True):
            yield self.mark

    def reserve(self, runs: Sequence[RepeatedEvent], *, label: str) -> Reservation:
        """Promise a plan: events in order, each with its count.

        Guarantee: afterwards every event of the plan can be charged, whatever else is charged meanwhile.

        Edge cases: the same runs under the same label, say after a crash, are the same reservation: it is continued and
        not promised twice. Other runs under its label, and the label of a released reservation, raise `ConfigError`.
        """
        return self.reserve_all({label: runs})[0]

    def reserve_all(self, plans: Mapping[str, Sequence[RepeatedEvent]]) -> list[Reservation]:
        """Promise several plans, each under its label, or none of them; see `reserve`."""
        check_text(**{f"label[{place}]": label for place, label in enumerate(plans)})
        contents = [{"label": label, "runs": runs_to_json(runs)} for label, runs in plans.items()]
        while True:
            with self._current(write=False) as tally:
                standing = {label: tally.reservation(label) for label in plans if label in tally.labels()}
                version, promised = tally.version, tally.promised()
            for label, reservation in standing.items():
                reservation.check_continued(plans[label])
            fresh = [content for content in contents if content["label"] not in standing]
            if not fresh:
                return [self.reservation(label) for label in plans]
            self.check_room([run for content in fresh for run in plans[str(content["label"])]], promised=promised)
            if self._record("reserve", *fresh, version=version):
                return [self.reservation(label) for label in plans]

    def check_room(self, runs: Sequence[RepeatedEvent], *, promised: Sequence[RepeatedEvent] | None = None) -> None:
        """There is room for these events beside all that is charged and reserved by now (`BudgetExceeded`)."""
        self._check_budget([*(promised if promised is not None else self.commitments()), *runs])

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
        """Spend: on a reservation, whose next event this must be, or else on what remains of the budget.

        What comes back pays for the noises of `pays_for`, drawn from `randomness`, which is noted; where `people` add
        noise of their own, each draws its share. Under a `key` the ledger is charged once.

        Guarantee: see `Ledger` and `check_paid`. On a reservation it takes a few writes to the disk; otherwise all is
        priced anew. A key that is charged already gives a receipt once more, and nothing is written, where event and
        seed are those that were charged: the very same noise is no second release.

        Edge cases: an event that costs less than its noises, another than the reservation's next, an unknown or
        released reservation, a note that is not small and flat, and a charged key in any other case raise
        `ConfigError`; a reservation without remaining events raises `BudgetExceeded`.
        """
        check_note(note := dict(note or {}))
        check_text(**({} if key is None else {"key": key}))
        source, its = noted(randomness), event_to_json(event)
        content = {"event": its, "key": key, "note": note, "randomness": source, "reservation": reservation}
        planned = self.reservation(reservation).runs if reservation is not None and pays_for else ()
        check_paid(event, pays_for, relation=self.relation, people=people, planned=planned, per=note.get("per"))
        charge = self._charge_unplanned if reservation is None else self._charge_reserved
        entry = charge(event, content)
        return Receipt(entry, randomness=randomness, pays_for=pays_for, seal=SEAL)

    def paid(self, key: str) -> bool:
        """Whether something was charged under this key."""
        with self._current(write=False) as tally:
            return tally.paid(key) is not None

    @property
    def kept(self) -> bool:
        """Whether it is a file; the other kind is forgotten with the process."""
        return self._chain.path is not None

    def charges(self) -> tuple[int, int]:
        """How many charges there are, and how many of them are for noise that comes from a seed."""
        with self._current(write=False) as tally:
            return tally.charged, tally.simulated

    def release_reservation(self, reservation: str) -> None:
        """Give back what a reservation has not charged.

        Edge cases: where nothing remains to give back, nothing is written.
        """
        with self._current(write=True) as tally:
            standing = tally.reservation(reservation)
            if standing.released or standing.charged == standing.events:
                return
            self._chain.append("release", {"label": reservation})
        self._testify()

    def reservation(self, reservation: str) -> Reservation:
        """How a reservation stands now. Edge cases: an unknown one raises `ConfigError`."""
        with self._current(write=False) as tally:
            return tally.reservation(reservation)

    def reservations(self) -> tuple[Reservation, ...]:
        """All reservations, in order."""
        with self._current(write=False) as tally:
            return tuple(tally.reservation(label) for label in tally.labels())

    def spent(self) -> Price:
        """The price of all that was charged."""
        with self._current(write=False) as tally:
            runs = tally.spent()
        return self.price(runs)

    def promised(self) -> Price:
        """The price of all that was charged or is reserved; the budget is never less."""
        with self._current(write=False) as tally:
            runs = tally.promised()
        return self.price(runs)

    def commitments(self) -> tuple[RepeatedEvent, ...]:
        """All that was charged or is reserved, equal events counted together: what `promised` prices."""
        with self._current(write=False) as tally:
            return tuple(tally.promised())

    def entries(self, *, start: int = 0) -> tuple[Entry, ...]:
        """All entries from a position on, each checked against the one before it.

        Guarantee: those before the position are not read again, so who keeps up with a ledger pays for what is new.

        Edge cases: a position at the end or behind it: none.
        """
        _validate.natural(start=start)
        with self._current(write=False) as tally:
            if start >= tally.length:
                return ()
            previous = str(self._chain.hash_at(start - 1)) if start else ""
            return tuple(self._chain.entries(start=start, previous=previous))

    def verify(self, *, head: str | None = None) -> Tally:
        """Check everything again, from the first byte: file, chain, witness, and that the budget was kept.

        Edge cases: what does not hold raises the `LedgerError` that says so; a head hash that was kept elsewhere and is
        not among the entries raises `LedgerRolledBack`.
        """
        tally, seen = Tally(), set[str]()
        with self._current(write=False):
            self._chain.check_file()
            for entry in self._chain.entries(start=0, previous=""):
                tally.apply(entry)
                seen.add(entry.hash)
        if head is not None and head not in seen:
            raise LedgerRolledBack(f"no entry of {self._chain.path} has the hash {head}: put the latest copy back")
        runs = tally.promised()
        promised = 0.0 if plainly_within(runs, self.budget) else self.price(runs).epsilon
        # Entries were priced in another order when they were written, so the last digit may differ.
        if not promised <= self.budget.epsilon * (1 + 1e-9):
            raise LedgerDamaged(f"{self._chain.path} promises epsilon = {promised}, its budget is {self.budget}")
        return tally

    def _repr_html_(self) -> str:
        return html_of(self)

    def _again(self, tally: Tally, event: DpEvent, content: Mapping[str, Any]) -> Entry | None:
        """The charge under this key, where it may be used again."""
        key = content["key"]
        if key is None or tally.paid(key) is None:
            return None
        position = tally.check_again(key, event=fingerprint(event), source=content["randomness"])
        return next(self._chain.entries(start=position, previous=str(self._chain.hash_at(position - 1))))

    def _charge_reserved(self, event: DpEvent, content: Mapping[str, Any]) -> Entry:
        with self._current(write=True) as tally:
            if (entry := self._again(tally, event, content)) is not None:
                return entry
            tally.check_charge(fingerprint(event), content["reservation"])
            entry = self._chain.append("charge", content)
        self._testify()
        return entry

    def _charge_unplanned(self, event: DpEvent, content: Mapping[str, Any]) -> Entry:
        while True:
            with self._current(write=False) as tally:
                if (entry := self._again(tally, event, content)) is not None:
                    return entry
                version, promised = tally.version, tally.promised()
            self._check_budget([*promised, (event, 1)])
            if entry := self._record("charge", content, version=version, key=content["key"]):
                return entry

    def _record(self, kind: str, *contents: Mapping[str, object], version: int, key: str | None = None) -> Entry | None:
        """Write entries, and give the last, unless more was promised since they were priced, while nobody waited."""
        with self._current(write=True) as tally:
            if tally.version != version:
                return None
            if key is not None:  # another process may have charged under it meanwhile
                tally.check_key(key)
            entry = [self._chain.append(kind, content) for content in contents][-1]
        self._testify()
        return entry

    def _check_budget(self, runs: Sequence[RepeatedEvent]) -> None:
        total = 0.0 if plainly_within(runs, self.budget) else self.price(runs).epsilon  # which may take seconds
        if not total <= self.budget.epsilon:
            where = self._chain.path or "FILE"
            raise BudgetExceeded(
                f"together with all that is charged and reserved this would cost epsilon = {total:.6g} at delta = "
                f"{self.budget.delta:g}; the budget is {self.budget.epsilon:g}, of which {self.spent().epsilon:.6g} is "
                f"spent, and {self.promised().epsilon:.6g} spent or reserved. Plan fewer or noisier events; `incrowd "
                f"ledger show {where}` lists what is reserved, `incrowd ledger release {where} LABEL` gives it back"
            )

    def price(self, runs: Sequence[RepeatedEvent]) -> Price:
        """What events would cost together."""
        return price(compose(runs), delta=self.budget.delta, relation=self.relation)

    @contextmanager
    def _current(self, *, write: bool) -> Iterator[Tally]:
        """A transaction that knows all that others have written."""
        with self._chain.transaction(write=write):
            self._catch_up()
            yield self._tally

    def _catch_up(self) -> None:
        tally = self._tally
        if tally.length and self._chain.hash_at(tally.length - 1) != tally.head:
            raise LedgerRolledBack(
                f"{self._chain.path} lost entries or was replaced while in use: put the right file back"
            )
        for entry in self._chain.entries(start=tally.length, previous=tally.head):
            tally.apply(entry)
        for witness in self._witnesses:
            witness.check(self._chain)

    def _testify(self) -> None:
        """Bring the witness up to date: after the commit, and under the write lock, so that it never goes back."""
        with self._current(write=True) as tally:
            mark = Mark(entries=tally.length, head=tally.head)
            for witness in self._witnesses:
                if witness.read() != mark:
                    witness.write(mark)

    def _check_registered(self, place: LedgerPlace, *, write: bool) -> None:
        """A ledger that is registered is where it is registered; then the registry is a witness, too."""
        if (registered := place.registered(self.id, write=write)) is not None:
            self._witnesses.append(registered)
            self.commitments()  # which has the registry's mark checked

    def _check_terms(self, given: Mapping[str, Any]) -> None:
        for name, value in given.items():
            own = getattr(self._tally.terms, name)
            if value is not None and value != own:
                raise LedgerMismatch(
                    f"{self._chain.path} was begun with {name} = {own!r}, not {value!r}: give its own, or name "
                    "another file"
                )


class Verification(TypedDict):
    """What `verify` found; the figures are None where the ledger is not intact."""

    intact: bool
    problem: str | None
    events: int | None
    epsilon: float | None
    delta: float | None
    head: str | None


def verify(path: Location, *, head: str | None = None, witness: Location | None = None) -> Verification:
    """Check a ledger from the first byte to the last, and report instead of raising. No file is created or changed.

    Edge cases: a path with neither a ledger nor a witness raises `ConfigError`.
    """
    try:
        with Ledger.read(path, witness=witness) as ledger:
            tally = ledger.verify(head=head)
            return {
                "intact": True,
                "problem": None,
                "events": tally.charged,
                "epsilon": ledger.spent().epsilon,
                "delta": ledger.budget.delta,
                "head": tally.head,
            }
    except (LedgerError, AccountingError) as error:
        return {"intact": False, "problem": str(error), "events": None, "epsilon": None, "delta": None, "head": None}


def renew_witness(path: Location, *, head: str, witness: Location | None = None) -> None:
    """Make a new witness for a ledger that lost its own: the operator vouches that this head hash is the ledger's last.

    Edge cases: a witness that is still there is not replaced (`ConfigError`); another head than the ledger's is refused
    with `LedgerRolledBack`.
    """
    place = LedgerPlace.of(path, witness)
    if place.witness.path.exists():
        raise ConfigError(
            field="witness", value=str(place.witness.path), remedy="it is still there; only a lost one is renewed"
        )
    with ExitStack() as stack:
        chain = Chain.open(place.path, mode="rw", busy_timeout_s=30.0)
        stack.callback(chain.close)
        ledger = Ledger(chain)
        ledger._check_registered(place, write=True)
        with ledger._current(write=True) as tally:
            if tally.head != head:
                raise LedgerRolledBack(
                    f"the head of {place.path} is {tally.head}, not {head}: put the latest copy back"
                )
            place.witness.write(Mark(entries=tally.length, head=tally.head))


def _begin(chain: Chain, terms: Terms) -> None:
    chain.create()
    chain.append("terms", terms.to_json())
