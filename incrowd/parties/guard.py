"""The guard of a party: its memory, its own ledger and its owner's limits, in a folder, whatever it trains."""

import hashlib
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from incrowd import _files
from incrowd.errors import ConfigError, IncrowdError, LedgerRolledBack, SpecificationRefused
from incrowd.parties.frames import DIGEST, Place, Request, chained, sealed
from incrowd.parties.policy import PartyPolicy
from incrowd.privacy.account.accounting import Relation
from incrowd.privacy.account.events import RepeatedEvent
from incrowd.privacy.content import DataIdentity
from incrowd.privacy.daily import DailyLimit
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.privacy.plan.plan import Unit

LEDGER, MEMORY = "ledger.sqlite", "answers.sqlite"
MOST_OFFERED = 2**26
"""The most bytes of accepted offers: an offer may cost so small a part of a budget that nothing else ends them."""

FAILURES = (
    *(IncrowdError, ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError, OSError),
    *(RuntimeError, TypeError, ValueError, sqlite3.Error, struct.error, zlib.error),
)
"""The errors of a handler on one question, after which it answers others."""

_TURN = "party.lock"
_UNSPENT = {"intact": True, "problem": None, "events": 0, "epsilon": 0.0, "delta": None, "head": None}
_TABLES = """
CREATE TABLE IF NOT EXISTS offers (plan TEXT PRIMARY KEY, at TEXT, server TEXT, offer TEXT);
CREATE TABLE IF NOT EXISTS questions (plan TEXT, round INTEGER, at TEXT, digest TEXT, history TEXT, answer BLOB,
                                      PRIMARY KEY (plan, round));
CREATE TABLE IF NOT EXISTS refusals (at TEXT, server TEXT, plan TEXT, round INTEGER, why TEXT);
"""
_FORGET = """
UPDATE questions SET answer = NULL WHERE answer IS NOT NULL AND (plan = :plan AND round <= :round - :each
OR rowid NOT IN (SELECT rowid FROM questions WHERE answer IS NOT NULL ORDER BY rowid DESC LIMIT :all))
"""
_REFUSALS, _LONGEST = 10_000, 500
_ANSWERS = {"each": 10, "all": 50}
"""The answers that are kept, of each plan and of all; every question is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Identity:
    """The name and key of a party, and the public key of the server that it listens to."""

    name: str
    key: Ed25519PrivateKey = field(repr=False)
    server: Ed25519PublicKey

    @property
    def server_name(self) -> str:
        """The server in a ledger's notes: a part of its key's SHA-256."""
        return hashlib.sha256(self.server.public_bytes_raw()).hexdigest()[:16]

    def sealed(self, kind: str, place: Place, head: Mapping[str, Any] | None = None) -> bytes:
        """A frame of this party's, without a body."""
        return sealed(kind, replace(place, party=self.name), dict(head or {}), b"", key=self.key)


class Guard:
    """The folder of a party: its memory, its ledger, and the process whose turn it is.

    Guarantee: one answer a round, and rounds in order, through all lives of the party: see `kept`. An entry of the
    memory is on disk when a call returns, in a file for this user alone. There is one ledger for all plans of all
    servers, of the policy's budget, and a day's charges cost at most what the policy allows.

    Edge cases: two processes of one party wait for each other. A clock that is put back does not bring a day back.
    """

    def __init__(
        self, folder: Path, *, identity: Identity, policy: PartyPolicy, unit: Unit, today: Callable[[], date]
    ) -> None:
        _files.folder(folder)
        self.folder = folder
        self.unit = unit
        self.identity = identity
        self.policy = policy
        self.turn = _files.Turn(folder / _TURN)
        self._today = today
        self._ledger: Ledger | None = None
        if not (folder / MEMORY).exists():
            _files.create(folder / MEMORY)
        self._memory = sqlite3.connect(folder / MEMORY, isolation_level=None, check_same_thread=False)
        self._memory.execute("PRAGMA synchronous = FULL")
        self._memory.executescript(_TABLES)

    def close(self) -> None:
        """Close the files."""
        self._memory.close()
        if self._ledger is not None:
            self._ledger.close()

    @contextmanager
    def noting(self, plan: str, number: int | None) -> Iterator[None]:
        """Note refusals of a plan's round; an offer has no round. Of an error that is not ours it notes the kind."""
        try:
            yield
        except FAILURES as error:
            why = str(error) if isinstance(error, IncrowdError) else f"it was not answered: {type(error).__name__}"
            self.note(why, plan, number)
            raise

    def note(self, why: str, plan: str, number: int | None) -> None:
        """Note, for the owner of the data, what was not done and why.

        Guarantee: all refusals together take a few megabytes at most, and their words are safe to show in a terminal.
        """
        shown, plan = ("".join(one if one.isprintable() else " " for one in text[:_LONGEST]) for text in (why, plan))
        with self._whole() as memory:
            row = (_now(), self.identity.server_name, plan, number, shown)
            memory.execute("INSERT INTO refusals VALUES (?, ?, ?, ?, ?)", row)
            old = "DELETE FROM refusals WHERE rowid NOT IN (SELECT rowid FROM refusals ORDER BY rowid DESC LIMIT ?)"
            memory.execute(old, (_REFUSALS,))

    def check_offers(self, frame: bytes) -> None:
        """Refuse (`SpecificationRefused`) an offer that there is no place for: each is kept for good."""
        if self._offered() + len(frame) > MOST_OFFERED:
            raise SpecificationRefused(f"this party keeps no more than {MOST_OFFERED} bytes of offers")

    def accept(self, plan: str, frame: bytes) -> None:
        """Remember an offer, as the server signed it."""
        row = (plan, _now(), self.identity.server_name, frame)
        self._memory.execute("INSERT OR IGNORE INTO offers VALUES (?, ?, ?, ?)", row)

    def offer(self, plan: str) -> bytes | None:
        """The offer of a plan, as it was accepted."""
        found = self._memory.execute("SELECT offer FROM offers WHERE plan = ?", (plan,)).fetchone()
        return None if found is None else bytes(found[0])

    def asked(self, plan: str, number: int) -> tuple[str, str, bytes | None] | None:
        """The digest of a round's question, the digest of it and all before it, and its answer, if it is kept."""
        words = "SELECT digest, history, answer FROM questions WHERE plan = ? AND round = ?"
        found: tuple[str, str, bytes | None] | None = self._memory.execute(words, (plan, number)).fetchone()
        return found

    def kept(self, request: Request) -> bytes | None:
        """The answer that was given to this question before; None for one that is new, or was not answered yet."""
        plan, number = request.place.plan, request.place.round
        words = "SELECT coalesce(max(round), -1) FROM questions WHERE plan = ?"
        before, last = self.asked(plan, number), int(self._memory.execute(words, (plan,)).fetchone()[0])
        if before is not None and before[0] != request.digest:
            raise SpecificationRefused(
                f"another question was asked in round {number}: the server was restarted from nothing or from an old "
                "copy, or there are two of it"
            )
        if before is not None and before[2] is not None:
            return before[2]
        if number < last:
            raise SpecificationRefused(
                f"round {number} comes after round {last}: the server was restarted from nothing or from an old copy"
            )
        self._check_history(request, last)
        return None

    def _check_history(self, request: Request, last: int) -> None:
        """Refuse a server that does not know this party's last question, and all questions before it."""
        if len(request.history) != DIGEST * request.place.round:
            raise SpecificationRefused("a question that does not say what was asked in the rounds before it")
        known = self.asked(request.place.plan, last)
        whole = request.history + bytes.fromhex(request.digest)
        if known is not None and chained(whole[: DIGEST * (last + 1)]) != known[1]:
            raise SpecificationRefused(
                f"up to round {last} the server says it asked something else than it did: it was restarted from an old "
                "copy, or there are two of it"
            )

    def take_up(self, request: Request) -> None:
        """Remember a question, before anything is done for it."""
        whole = chained(request.history + bytes.fromhex(request.digest))
        row = (request.place.plan, request.place.round, _now(), request.digest, whole)
        self._memory.execute("INSERT OR IGNORE INTO questions VALUES (?, ?, ?, ?, ?, NULL)", row)

    def keep(self, request: Request, answer: bytes) -> None:
        """Remember the answer, before it is sent; the oldest answers are forgotten."""
        place = {"plan": request.place.plan, "round": request.place.round}
        with self._whole() as memory:
            words = "UPDATE questions SET answer = :answer WHERE plan = :plan AND round = :round"
            memory.execute(words, {**place, "answer": answer})
            memory.execute(_FORGET, {**place, **_ANSWERS})

    def ledger(self, relation: Relation) -> Ledger:
        """The party's ledger, begun where there is none.

        Edge cases: one whose prices are those of another promise: `SpecificationRefused`, or, in the process that opens
        it, `LedgerMismatch`, as one that protects another unit. None is begun by a party that has accepted an offer
        before, whose ledger is lost: `LedgerRolledBack`.
        """
        if self._ledger is None:
            self._ledger = self._opened(relation)
        if self._ledger.relation != relation:
            raise SpecificationRefused(
                f"the plan is priced under {relation.name}, and this party's ledger under {self._ledger.relation.name}"
            )
        return self._ledger

    def check_ledger(self) -> None:
        """See, before any question, that a ledger which was begun is there and fits the owner's file."""
        if self._ledger is None and (self._offered() or any(self.folder.glob(f"{LEDGER}*"))):
            self._ledger = self._opened(None)

    def check_day(self, ledger: Ledger, runs: Sequence[RepeatedEvent]) -> None:
        """Refuse (`NotToday`) what the owner's limit for a day has no room for."""
        self._daily(ledger).check(runs)

    def day(self, ledger: Ledger) -> str:
        """The present day, or the latest that was charged."""
        return self._daily(ledger).day()

    def _daily(self, ledger: Ledger) -> DailyLimit:
        return DailyLimit(ledger=ledger, epsilon=self.policy.daily_epsilon, today=self._today)

    def _opened(self, relation: Relation | None) -> Ledger:
        path = self.folder / LEDGER
        if self._offered() and not path.exists():
            raise LedgerRolledBack(f"{path} is gone, and this party has accepted offers on it: put it back")
        own = DataIdentity(name=self.identity.name, unit=self.unit)
        return Ledger.open(path, budget=self.policy.budget, relation=relation, data_identity=own)

    def _offered(self) -> int:
        """The bytes of all offers that were ever accepted; 0 where none was."""
        found: int = self._memory.execute("SELECT coalesce(sum(length(offer)), 0) FROM offers").fetchone()[0]
        return found

    @contextmanager
    def _whole(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing."""
        self._memory.execute("BEGIN IMMEDIATE")
        with self._memory:
            yield self._memory


def given(file: Path, *, begun: bool = True) -> dict[str, Any]:
    """The charges of a party's ledger, a row a round, their price, and the party's refusals.

    Guarantee: it changes no file.

    Edge cases: `file` may be the party's folder. A ledger that is not intact comes with its problem and without rows.
    Without the party's memory there are no refusals. A party that has accepted no offer has no ledger, and has given
    nothing; with `begun` false, it needs no memory either.
    """
    path = file / LEDGER if file.is_dir() else file
    beside = path.with_name(MEMORY)
    asked, refused = _remembered(beside) if beside.exists() else (set(), [])
    there = any(path.parent.glob(f"{path.name}*"))  # a witness without its ledger, too
    if not there and (asked or (begun and not refused)):
        raise ConfigError(field="file", value=str(file), remedy="give the ledger of a party, or its folder")
    found: dict[str, Any] = {**(verify(path) if there else _UNSPENT), "events": [], "refused": refused}
    if there and found["intact"]:
        with Ledger.read(path) as ledger:
            found["budget"] = {"epsilon": ledger.budget.epsilon, "delta": ledger.budget.delta}
            found["promised"] = ledger.promised().epsilon
            found["events"] = [_row(each.at, each.content()) for each in ledger.entries() if each.kind == "charge"]
    for row in found["events"]:
        row["asked"] = (row["plan"], row["round"]) in asked
    return found


def _row(at: str, content: dict[str, Any]) -> dict[str, Any]:
    note = content["note"]
    note = {**note, "plan": note.get("offer") or note.get("plan")}
    return {"at": at[:19], **{name: note.get(name) for name in ("server", "plan", "what", "round", "noise_multiplier")}}


def _remembered(path: Path) -> tuple[set[tuple[str, int]], list[dict[str, Any]]]:
    """The plans and rounds of all questions that were taken up, and all refusals, in order."""
    names = ("at", "server", "plan", "round", "why")
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as memory:
        refused = memory.execute("SELECT at, server, plan, round, why FROM refusals ORDER BY rowid")
        rows = [dict(zip(names, row, strict=True)) for row in refused]
        return set(memory.execute("SELECT plan, round FROM questions")), rows


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
