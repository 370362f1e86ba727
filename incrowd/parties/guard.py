"""The guard of a party: its memory, its own ledger and its owner's limits, in a folder, whatever it trains."""

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from dp_accounting import DpEvent

from incrowd import _files
from incrowd.errors import ConfigError, IncrowdError, LedgerRolledBack, SpecificationRefused
from incrowd.parties.frames import DIGEST, Request, chained
from incrowd.parties.policy import PartyPolicy
from incrowd.privacy.account.accounting import Relation
from incrowd.privacy.content import DataIdentity
from incrowd.privacy.daily import DailyLimit
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.privacy.paid import Note
from incrowd.privacy.plan.plan import Plan, Unit

LEDGER, MEMORY = "ledger.sqlite", "answers.sqlite"
MOST_OFFERED = 2**26
"""The most bytes of accepted offers: an offer may cost so small a part of a budget that nothing else ends them."""

_TURN = "party.lock"
_UNSPENT = {"intact": True, "problem": None, "events": 0, "epsilon": 0.0, "delta": None, "head": None}
_TABLES = """
CREATE TABLE IF NOT EXISTS offers (plan TEXT PRIMARY KEY, at TEXT, server TEXT, offer TEXT);
CREATE TABLE IF NOT EXISTS questions (plan TEXT, round INTEGER, at TEXT, digest TEXT, history TEXT, answer BLOB,
                                      PRIMARY KEY (plan, round));
CREATE TABLE IF NOT EXISTS refusals (at TEXT, server TEXT, plan TEXT, round INTEGER, why TEXT);
"""
_FORGET = """
UPDATE questions SET answer = NULL WHERE answer IS NOT NULL AND rowid NOT IN
(SELECT rowid FROM questions WHERE answer IS NOT NULL ORDER BY rowid DESC LIMIT ?)
"""
_REFUSALS, _LONGEST, _ANSWERS = 10_000, 500, 50


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


@dataclass(frozen=True, kw_only=True)
class TakenUp:
    """A question that was taken up: its digest, the digest of it and all before it, and its answer, if it is kept."""

    digest: str
    history: str
    answer: bytes | None


class PartyMemory:
    """The offers that a party accepted, the questions it took up with its answers, and its refusals.

    Guarantee: an entry is on the disk when a call returns. The file is for this user alone.

    Edge cases: it keeps the last `keep` answers of each plan, and every question.
    """

    def __init__(self, connection: sqlite3.Connection, *, keep: int) -> None:
        self._keep = keep
        self._connection = connection

    @classmethod
    def open(cls, path: Path, *, keep: int = 10) -> "PartyMemory":
        """Open the file, or begin one."""
        if not path.exists():
            _files.create(path)
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(_TABLES)
        return cls(connection, keep=keep)

    @classmethod
    def read(cls, path: Path) -> "PartyMemory":
        """Open a file that is there, to look at it only."""
        return cls(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True), keep=0)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def accept(self, plan: str, *, server: str, offer: bytes) -> None:
        """Remember an offer, as the server signed it."""
        self._connection.execute("INSERT OR IGNORE INTO offers VALUES (?, ?, ?, ?)", (plan, _now(), server, offer))

    def offer(self, plan: str) -> bytes | None:
        """The offer of a plan, as it was accepted."""
        found = self._connection.execute("SELECT offer FROM offers WHERE plan = ?", (plan,)).fetchone()
        return None if found is None else bytes(found[0])

    def offered(self) -> int:
        """The bytes of all offers that were ever accepted; 0 where none was."""
        found: int = self._connection.execute("SELECT coalesce(sum(length(offer)), 0) FROM offers").fetchone()[0]
        return found

    def question(self, plan: str, number: int) -> TakenUp | None:
        """The question of a round."""
        words = "SELECT digest, history, answer FROM questions WHERE plan = ? AND round = ?"
        found = self._connection.execute(words, (plan, number)).fetchone()
        return None if found is None else TakenUp(digest=found[0], history=found[1], answer=found[2])

    def last(self, plan: str) -> int:
        """The last round that was asked for; -1 before the first."""
        words = "SELECT coalesce(max(round), -1) FROM questions WHERE plan = ?"
        found: int = self._connection.execute(words, (plan,)).fetchone()[0]
        return found

    def take_up(self, plan: str, number: int, digest: str, history: str) -> None:
        """Remember a question, before anything is done for it."""
        row = (plan, number, _now(), digest, history)
        self._connection.execute("INSERT INTO questions VALUES (?, ?, ?, ?, ?, NULL)", row)

    def keep(self, plan: str, number: int, answer: bytes) -> None:
        """Remember the answer, before it is sent."""
        with self._whole() as connection:
            connection.execute("UPDATE questions SET answer = ? WHERE plan = ? AND round = ?", (answer, plan, number))
            old = "UPDATE questions SET answer = NULL WHERE plan = ? AND round <= ? AND answer IS NOT NULL"
            connection.execute(old, (plan, number - self._keep))
            connection.execute(_FORGET, (_ANSWERS,))

    def refuse(self, why: str, *, server: str, plan: str, number: int | None) -> None:
        """Remember a refusal; `number` is the round, None for an offer.

        Guarantee: all refusals together take a few megabytes at most, and their words are safe to show in a terminal.
        """
        shown, plan = ("".join(one if one.isprintable() else " " for one in text[:_LONGEST]) for text in (why, plan))
        with self._whole() as connection:
            connection.execute("INSERT INTO refusals VALUES (?, ?, ?, ?, ?)", (_now(), server, plan, number, shown))
            old = "DELETE FROM refusals WHERE rowid NOT IN (SELECT rowid FROM refusals ORDER BY rowid DESC LIMIT ?)"
            connection.execute(old, (_REFUSALS,))

    def refusals(self) -> list[dict[str, Any]]:
        """All refusals, in order."""
        found = self._connection.execute("SELECT at, server, plan, round, why FROM refusals ORDER BY rowid")
        return [dict(zip(("at", "server", "plan", "round", "why"), row, strict=True)) for row in found]

    def asked(self) -> set[tuple[str, int]]:
        """The plans and rounds of all questions that were taken up."""
        return set(self._connection.execute("SELECT plan, round FROM questions"))

    @contextmanager
    def _whole(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing."""
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            yield self._connection


class Guard:
    """The folder of a party: its memory, its ledger, and the process whose turn it is.

    Guarantee: one answer a round, and rounds in order, through all lives of the party: see `kept`. There is one ledger
    for all plans of all servers, of the policy's budget, and a day's charges cost at most what the policy allows.

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
        self.memory = PartyMemory.open(folder / MEMORY)
        self.turn = _files.Turn(folder / _TURN)
        self._today = today
        self._ledger: Ledger | None = None

    def close(self) -> None:
        """Close the files."""
        self.memory.close()
        if self._ledger is not None:
            self._ledger.close()

    @contextmanager
    def noting(self, plan: str, number: int | None) -> Iterator[None]:
        """Note refusals of a plan's round; an offer has no round."""
        try:
            yield
        except IncrowdError as error:
            self.note(str(error), plan, number)
            raise

    def note(self, why: str, plan: str, number: int | None) -> None:
        """Note, for the owner of the data, what was not done and why."""
        self.memory.refuse(why, server=self.identity.server_name, plan=plan, number=number)

    def check_offers(self, frame: object) -> None:
        """Refuse (`SpecificationRefused`) an offer that there is no place for: each is kept for good."""
        more = len(frame) if isinstance(frame, bytes) else 0
        if self.memory.offered() + more > MOST_OFFERED:
            raise SpecificationRefused(f"this party keeps no more than {MOST_OFFERED} bytes of offers")

    def kept(self, request: Request) -> bytes | None:
        """The answer that was given to this question before; None for one that is new, or was not answered yet."""
        plan, number = request.place.plan, request.place.round
        before, last = self.memory.question(plan, number), self.memory.last(plan)
        if before is not None and before.digest != request.digest:
            raise SpecificationRefused(
                f"another question was asked in round {number}: the server was restarted from nothing or from an old "
                "copy, or there are two of it"
            )
        if before is not None and before.answer is not None:
            return before.answer
        if number < last:
            raise SpecificationRefused(
                f"round {number} comes after round {last}: the server was restarted from nothing or from an old copy"
            )
        self._check_history(request, last)
        return None

    def take_up(self, request: Request) -> None:
        """Remember a question, before anything is done for it."""
        plan, number = request.place.plan, request.place.round
        if self.memory.question(plan, number) is None:
            whole = chained(request.history + bytes.fromhex(request.digest))
            self.memory.take_up(plan, number, request.digest, whole)

    def _check_history(self, request: Request, last: int) -> None:
        """Refuse a server that does not know this party's last question, and all questions before it."""
        if len(request.history) != DIGEST * request.place.round:
            raise SpecificationRefused("a question that does not say what was asked in the rounds before it")
        known = self.memory.question(request.place.plan, last)
        whole = request.history + bytes.fromhex(request.digest)
        if known is not None and chained(whole[: DIGEST * (last + 1)]) != known.history:
            raise SpecificationRefused(
                f"up to round {last} the server says it asked something else than it did: it was restarted from an old "
                "copy, or there are two of it"
            )

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
        if self._ledger is None and (self.memory.offered() or any(self.folder.glob(f"{LEDGER}*"))):
            self._ledger = self._opened(None)

    def _opened(self, relation: Relation | None) -> Ledger:
        path = self.folder / LEDGER
        if self.memory.offered() and not path.exists():
            raise LedgerRolledBack(f"{path} is gone, and this party has accepted offers on it: put it back")
        own = DataIdentity(name=self.identity.name, unit=self.unit)
        return Ledger.open(path, budget=self.policy.budget, relation=relation, data_identity=own)

    def daily(self, ledger: Ledger) -> DailyLimit:
        """The owner's limit for a day."""
        return DailyLimit(ledger=ledger, epsilon=self.policy.daily_epsilon, today=self._today)


@dataclass(frozen=True, kw_only=True, eq=False)
class LedgerOwner:
    """The owner's limits and notes for the charges of one plan: see `incrowd.privacy.paid.Owner`.

    Guarantee: the charges of a day cost at most what the policy allows.
    """

    plan: str
    guard: Guard = field(repr=False)
    what: str = "training"

    def admit(self, ledger: Ledger, event: DpEvent) -> None:
        """See `Owner.admit`."""
        self.guard.daily(ledger).check([(event, 1)])

    def note(self, ledger: Ledger, plan: Plan, number: int) -> Note:
        """See `Owner.note`."""
        return {
            "plan": self.plan,
            "what": self.what,
            "server": self.guard.identity.server_name,
            "day": self.guard.daily(ledger).day(),
        }


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
    memory = PartyMemory.read(path)
    try:
        return memory.asked(), memory.refusals()
    finally:
        memory.close()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
