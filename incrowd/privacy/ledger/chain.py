"""The file of a ledger: an append-only SQLite table in which a hash binds each entry to all entries before it."""

import hashlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from incrowd import _files
from incrowd.errors import LedgerDamaged, LedgerMisplaced, LedgerRolledBack, LedgerUnwritable

APPLICATION = 0x696E6372  # "incr": tells our files from other SQLite databases
BACKUP = 0x696E6362  # "incb": a copy that is never charged
FORMAT = 2
BUSY_S = 120.0  # a writer waits so long for another, or for a backup

# The triggers stop honest mistakes; the hashes expose the others. REPLACE would delete without firing a trigger on
# DELETE, so an entry may only be inserted at the end.
SCHEMA = (
    "CREATE TABLE entries (position INTEGER PRIMARY KEY CHECK (position >= 0), kind TEXT NOT NULL, at TEXT NOT NULL, "
    "body TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TRIGGER entries_end BEFORE INSERT ON entries "
    "WHEN NEW.position IS NOT (SELECT coalesce(max(position) + 1, 0) FROM entries) "
    "BEGIN SELECT RAISE(ABORT, 'entries are only appended'); END",
    *(
        f"CREATE TRIGGER entries_no_{change.lower()} BEFORE {change} ON entries "
        "BEGIN SELECT RAISE(ABORT, 'entries are only appended'); END"
        for change in ("DELETE", "UPDATE")
    ),
)

_BUSY = "another process holds it: wait for that process or end it, then try again"
_FORBIDDEN = (
    "allow this user to write to it and its folder; after a crash in the middle of a write, open it for writing once, "
    "which takes that write back"
)
_REMEDIES = {
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_READONLY: _FORBIDDEN,
    sqlite3.SQLITE_PERM: _FORBIDDEN,
    sqlite3.SQLITE_CANTOPEN: "check that its folder exists, that this user may write to it, and the disk's free space",
    sqlite3.SQLITE_FULL: "free some space, then try again",
    sqlite3.SQLITE_IOERR: "check the disk, its free space and this process's limit on file sizes, then try again",
}
_FAILURES = (sqlite3.Error, UnicodeDecodeError, OSError)  # SQLite quotes damaged names, which are no text
_DAMAGED = "release nothing on its account and put an intact copy back, one that the witness accepts"
_NONCE = "nonce"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a ledger, written on the day `at` (UTC): a closer time would tell which clients may have trained."""

    position: int
    kind: str
    at: str
    body: str
    hash: str

    def content(self) -> dict[str, Any]:
        """The body without its random number."""
        try:
            content = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise LedgerDamaged(f"entry {self.position} of the ledger is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise LedgerDamaged(f"entry {self.position} of the ledger is not a JSON object")
        content.pop(_NONCE, None)
        return content


@dataclass(frozen=True, kw_only=True)
class Mark:
    """How many entries a ledger had, and the hash of the last of them."""

    entries: int
    head: str


def canonical(content: Mapping[str, object]) -> str:
    """The one way to write some content as JSON."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def link(previous: str, *, position: int, kind: str, at: str, body: str) -> str:
    """The hash of an entry: SHA-256 over its fields and the hash of the entry before it (empty before the first)."""
    # As a JSON list, no two different rows are written the same way.
    return hashlib.sha256(json.dumps([previous, position, kind, at, body]).encode()).hexdigest()


class Chain:
    """One connection to the entries of a file, or of a ledger in memory. Every access needs a `transaction`.

    `mode` is SQLite's: "ro", "rw" or "rwc" (which makes an empty file, for this user alone).

    Guarantee: when a writing transaction ends without an exception, its entries are on disk (fsync); after an exception
    all of them are, or none. One transaction at most writes at any moment, among all threads and processes, and sees
    all that was written before it. A file that was replaced under the connection is refused, as is a forked process.
    """

    def __init__(self, path: Path | None, *, mode: str = "rw") -> None:
        self.path = path
        with translated(path):
            if path is not None and mode == "rwc":
                _files.create(path)
            if path is not None:
                check_own(path, write=mode != "ro")
            self._connection = connect(path, mode=mode)
        _files.closed_with(self, self._connection)
        self._process, self._closed, self._lock = os.getpid(), False, threading.RLock()
        self._file = self._identity()

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._closed = True
            self._connection.close()

    @contextmanager
    def transaction(self, *, write: bool) -> Iterator[None]:
        """All or nothing; the entries stand still meanwhile."""
        with self._lock, translated(self.path):
            if self._closed:
                raise LedgerUnwritable(f"{self.path} was closed: open it again")
            if os.getpid() != self._process:  # SQLite's locks do not survive a fork, so two processes would write
                raise LedgerUnwritable(f"{self.path} was opened by another process: open it anew in each process")
            self._connection.execute("PRAGMA shrink_memory")  # pages that SQLite keeps may be older than the file
            self._connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                if self._identity() != self._file:
                    raise LedgerRolledBack(f"{self.path} was replaced or removed while in use: put the right file back")
                yield
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def is_new(self) -> bool:
        """Whether nothing was ever written."""
        return bool(self._one("SELECT count(*) = 0 FROM sqlite_master"))

    def begin(self, terms: Mapping[str, object]) -> None:
        """Lay out the table and write the first entry."""
        for statement in (*SCHEMA, f"PRAGMA application_id = {APPLICATION}", f"PRAGMA user_version = {FORMAT}"):
            self._connection.execute(statement)
        self.append("terms", terms)

    def append(self, kind: str, content: Mapping[str, object]) -> Entry:
        """Write one entry at the end. It is on disk when the transaction has ended, not before.

        Each holds a random number, so that two ledgers with the same charges do not pass for each other.
        """
        position: int = self._one("SELECT coalesce(max(position) + 1, 0) FROM entries")
        previous = str(self.hash_at(position - 1)) if position else ""
        at = datetime.now(UTC).date().isoformat()
        body = canonical({**content, _NONCE: secrets.token_hex(8)})
        entry_hash = link(previous, position=position, kind=kind, at=at, body=body)
        self._connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", (position, kind, at, body, entry_hash))
        return Entry(position=position, kind=kind, at=at, body=body, hash=entry_hash)

    def hash_at(self, position: int) -> object:
        """The hash at a position, or None."""
        return self._one("SELECT hash FROM entries WHERE position = ?", position)

    def entries(self, *, start: int = 0, previous: str = "") -> Iterator[Entry]:
        """The entries from a position on, each checked against the one before it; `previous` is the hash before."""
        lowest = start or -(2**63)  # the first, at any position
        rows = self._connection.execute(
            "SELECT position, kind, at, body, hash FROM entries WHERE position >= ? ORDER BY position", (lowest,)
        )
        for position, (at_position, kind, at, body, entry_hash) in enumerate(rows, start=start):
            texts = all(isinstance(value, str) for value in (kind, at, body))
            expected = link(previous, position=position, kind=kind, at=at, body=body) if texts else None
            if (at_position, entry_hash) != (position, expected):
                raise LedgerDamaged(f"entry {position} of {self.path} was changed or lost: {_DAMAGED}")
            yield Entry(position=position, kind=kind, at=at, body=body, hash=entry_hash)
            previous = entry_hash

    def check_file(self) -> None:
        """The file is a ledger of this format and SQLite finds nothing wrong with it."""
        application, version = self._one("PRAGMA application_id"), self._one("PRAGMA user_version")
        if application == BACKUP:
            raise LedgerMisplaced(f"{self.path} is a backup, and never charged: `incrowd ledger restore` puts it back")
        if application != APPLICATION:
            raise LedgerDamaged(f"{self.path} is a SQLite database, but not a ledger: give the path of a ledger")
        if version != FORMAT:
            use = "use the one that wrote it"
            raise LedgerDamaged(f"{self.path} has format {version}, this incrowd reads {FORMAT}: {use}")
        schema = {sql for (sql,) in self._connection.execute("SELECT sql FROM sqlite_master")}
        if schema != set(SCHEMA):
            raise LedgerDamaged(f"{self.path} had its tables or triggers changed: {_DAMAGED}")
        problem = self._one("PRAGMA integrity_check(1)")
        if problem != "ok":
            raise LedgerDamaged(f"{self.path} is damaged ({problem}): {_DAMAGED}")

    def _one(self, query: str, *parameters: object) -> Any:
        row = self._connection.execute(query, parameters).fetchone()
        return None if row is None else row[0]

    def _identity(self) -> tuple[int, int] | None:
        """Which file the path leads to at present."""
        try:
            status = None if self.path is None else self.path.stat()
        except OSError:
            return (0, 0)
        return None if status is None else (status.st_dev, status.st_ino)


def connect(path: Path | None, *, mode: str = "rw") -> sqlite3.Connection:
    """A connection to a database, whose commits wait for the disk; without a path, one in memory."""
    name = ":memory:" if path is None else f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(name, BUSY_S, isolation_level=None, check_same_thread=False, uri=path is not None)
    # With a rollback journal, EXTRA also syncs the folder after the journal's end, which is the commit.
    writing = () if mode == "ro" else ("journal_mode = DELETE", "synchronous = EXTRA")
    try:
        for setting in ("trusted_schema = OFF", "cell_size_check = ON", *writing):
            connection.execute(f"PRAGMA {setting}")
    except _FAILURES:
        connection.close()
        raise
    return connection


def copy(source: Path, target: Path, *, application: int) -> None:
    """Copy the entries to a file for this user alone, as they stand between two writes.

    Guarantee: the copy is on disk in full, marked as a ledger or as a backup of one; or no file is changed.
    """
    part = target.with_name(f"{target.name}.{os.getpid()}{_files.PART}")
    try:
        with translated(source):
            _files.create(part)
            with closing(connect(source, mode="ro")) as read, closing(connect(part)) as write:
                read.backup(write)
                write.execute(f"PRAGMA application_id = {application}")
            part.replace(target)
            _files.sync(target.parent)
    finally:
        part.unlink(missing_ok=True)


def check_own(path: Path, *, write: bool = True) -> None:
    """The file has one name, and, for writing, no other user can write it; a missing file passes."""
    try:
        status = path.stat()
    except OSError:
        return
    if path.is_dir():
        raise LedgerMisplaced(f"{path} is a folder: name the ledger in it, say {path / 'ledger.sqlite'}")
    if status.st_nlink > 1:
        remedy = "remove the others, or make a copy with `incrowd ledger backup`"
        raise LedgerMisplaced(f"{path} has {status.st_nlink} names (hard links) without a common journal: {remedy}")
    if write and (status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022):
        raise LedgerMisplaced(f"{path} may be written by another user: make it your own (chown), and chmod go-w {path}")


@contextmanager
def translated(path: Path | None) -> Iterator[None]:
    """Errors of SQLite and of the file system, in our words."""
    try:
        yield
    except _FAILURES as error:
        code = sqlite3.SQLITE_CANTOPEN if isinstance(error, OSError) else getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code not in _REMEDIES:
            raise LedgerDamaged(f"{path} is damaged or not a ledger ({error}): {_DAMAGED}") from error
        raise LedgerUnwritable(f"{path} cannot be used now ({error}): {_REMEDIES[code]}") from error
