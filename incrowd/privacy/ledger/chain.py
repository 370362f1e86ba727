"""Entries on disk: an append-only SQLite table in which every entry is bound by its hash to all entries before it."""

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
BACKUP = 0x696E6362  # "incb": a copy that is kept, and never charged
FORMAT = 2

# The triggers stop honest mistakes; the hashes are what exposes the others. REPLACE would delete without firing a
# trigger on DELETE, so an entry may only be inserted at the end.
SCHEMA = (
    "CREATE TABLE entries (position INTEGER PRIMARY KEY CHECK (position >= 0), kind TEXT NOT NULL, at TEXT NOT NULL, "
    "body TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TRIGGER entries_end BEFORE INSERT ON entries "
    "WHEN NEW.position IS NOT (SELECT coalesce(max(position) + 1, 0) FROM entries) "
    "BEGIN SELECT RAISE(ABORT, 'entries are only appended'); END",
    "CREATE TRIGGER entries_no_delete BEFORE DELETE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are only appended'); END",
    "CREATE TRIGGER entries_no_update BEFORE UPDATE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are only appended'); END",
)

_NONCE = "nonce"

_BUSY = "another process holds it: wait for that process or end it, then try again"
_FORBIDDEN = (
    "allow this user to write to it and its folder; after a crash in the middle of a write, open it for writing once, "
    "which takes that write back"
)
_UNWRITABLE = {
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_READONLY: _FORBIDDEN,
    sqlite3.SQLITE_PERM: _FORBIDDEN,
    sqlite3.SQLITE_CANTOPEN: "check that its folder exists and that this user may write to it",
    sqlite3.SQLITE_FULL: "free some space, then try again",
    sqlite3.SQLITE_IOERR: "check the disk, its free space and this process's limit on file sizes, then try again",
}
_FAILURES = (sqlite3.Error, UnicodeDecodeError)  # the latter because SQLite quotes damaged names as they are
_DAMAGED = "release nothing on its account and put an intact copy back, one that the witness accepts"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a ledger, written on the day `at` (UTC): a closer time would tell how long a round took, and so who
    may have taken part.
    """

    position: int
    kind: str
    at: str
    body: str
    hash: str

    def content(self) -> dict[str, Any]:
        """The body, read, without its random number.

        Edge cases: a body that is not a JSON object raises `LedgerDamaged`.
        """
        try:
            content = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise LedgerDamaged(f"entry {self.position} of the ledger is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise LedgerDamaged(f"entry {self.position} of the ledger is not a JSON object")
        content.pop(_NONCE, None)
        return content


def canonical(content: Mapping[str, object]) -> str:
    """The one way to write some content as JSON."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def link(previous: str, *, position: int, kind: str, at: str, body: str) -> str:
    """The hash of an entry: SHA-256 over its fields and the hash of the entry before it (empty before the first)."""
    # As a JSON list, no two different rows are written the same way.
    return hashlib.sha256(json.dumps([previous, position, kind, at, body]).encode()).hexdigest()


class Chain:
    """One connection to the entries. Every access happens inside a `transaction`.

    Guarantee: when a writing transaction has ended without an exception, its entry is on disk (fsync). At any moment,
    one transaction at most is writing, among all threads and processes; it sees all that was written before it. A
    transaction that ends in an exception has written nothing, or its entry as a whole.

    Edge cases: a file that was replaced or removed under the connection is refused with `LedgerRolledBack`, use in a
    forked process with `LedgerUnwritable`.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        self.path = path
        self._connection = connection
        _files.closed_with(self, connection)
        self._process = os.getpid()
        self._closed = False
        self._lock = threading.RLock()
        self._file = None if path is None else self._identity()

    @classmethod
    def in_memory(cls) -> "Chain":
        """Entries that nobody keeps."""
        return cls(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False), None)

    @classmethod
    def open(cls, path: Path, *, mode: str, busy_timeout_s: float) -> "Chain":
        """The entries in a file; `mode` is SQLite's: "ro", "rw" or "rwc" (which creates an empty file, for this user
        alone).

        Edge cases: a file with a second name (a hard link), whose journal nobody would find under the other one, is
        refused with `LedgerMisplaced`; so is, for writing, one that another user could write.
        """
        if mode == "rwc":
            create_own(path)
        check_own(path, write=mode != "ro")
        with translated(path):
            connection = sqlite3.connect(
                f"{path.as_uri()}?mode={mode}",
                uri=True,
                timeout=busy_timeout_s,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("PRAGMA cell_size_check = ON")
                if mode != "ro":
                    # With a rollback journal, EXTRA also syncs the folder after the journal's end, which is the commit.
                    connection.execute("PRAGMA journal_mode = DELETE")
                    connection.execute("PRAGMA synchronous = EXTRA")
                return cls(connection, path)
            except _FAILURES:
                connection.close()
                raise

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._closed = True
            self._connection.close()

    @contextmanager
    def transaction(self, *, write: bool) -> Iterator[None]:
        """All or nothing; the entries stand still meanwhile."""
        with self._lock, translated(self.path):
            self._check_usable()
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

    def create(self) -> None:
        """Lay out the empty table."""
        for statement in (*SCHEMA, f"PRAGMA application_id = {APPLICATION}", f"PRAGMA user_version = {FORMAT}"):
            self._connection.execute(statement)

    def append(self, kind: str, content: Mapping[str, object]) -> Entry:
        """Write one entry at the end. It is on disk when the transaction has ended, not before.

        Each has a random number in it, so that two ledgers in which the same was written do not pass for each other.
        """
        position = self.length()
        previous = str(self.hash_at(position - 1)) if position else ""
        at = datetime.now(UTC).date().isoformat()
        body = canonical({**content, _NONCE: secrets.token_hex(8)})
        entry_hash = link(previous, position=position, kind=kind, at=at, body=body)
        self._connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", (position, kind, at, body, entry_hash))
        return Entry(position=position, kind=kind, at=at, body=body, hash=entry_hash)

    def length(self) -> int:
        """How many entries there are."""
        length: int = self._one("SELECT coalesce(max(position) + 1, 0) FROM entries")
        return length

    def hash_at(self, position: int) -> object:
        """The hash at a position, or None."""
        return self._one("SELECT hash FROM entries WHERE position = ?", position)

    def entries(self, *, start: int, previous: str) -> Iterator[Entry]:
        """The entries from a position on, each checked against the one before it; the hash before it is given."""
        lowest = start or -(2**63)  # from the first, whatever its position
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
        application = self._one("PRAGMA application_id")
        if application == BACKUP:
            raise LedgerMisplaced(
                f"{self.path} is a backup, which nothing is charged to: `incrowd ledger restore` puts it back"
            )
        if application != APPLICATION:
            raise LedgerDamaged(f"{self.path} is a SQLite database, but not a ledger: give the path of a ledger")
        version = self._one("PRAGMA user_version")
        if version != FORMAT:
            raise LedgerDamaged(
                f"{self.path} has format {version}, this incrowd reads {FORMAT}: use the one that wrote it"
            )
        schema = {sql for (sql,) in self._connection.execute("SELECT sql FROM sqlite_master")}
        if schema != set(SCHEMA):
            raise LedgerDamaged(f"{self.path} had its tables or triggers changed: {_DAMAGED}")
        problem = self._one("PRAGMA integrity_check(1)")
        if problem != "ok":
            raise LedgerDamaged(f"{self.path} is damaged ({problem}): {_DAMAGED}")

    def _check_usable(self) -> None:
        if self._closed:
            raise LedgerUnwritable(f"{self.path} was closed: open it again")
        if os.getpid() != self._process:
            # SQLite's locks do not survive a fork, so two processes would write at once.
            raise LedgerUnwritable(f"{self.path} was opened by another process: open it anew in each process")

    def _one(self, query: str, *parameters: object) -> Any:
        row = self._connection.execute(query, parameters).fetchone()
        return None if row is None else row[0]

    def _identity(self) -> tuple[int, int] | None:
        """Which file the path leads to at present."""
        if self.path is None:
            return None
        try:
            status = self.path.stat()
        except OSError:
            return (0, 0)
        return status.st_dev, status.st_ino


def copy(source: Path, target: Path, *, application: int) -> None:
    """Copy the entries to a new file for this user alone, as they stand between two writes, marked as a ledger or as a
    backup of one; it is on disk afterwards.
    """
    create_own(target)
    with (
        translated(source),
        closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as read,
        closing(sqlite3.connect(f"{target.resolve().as_uri()}?mode=rw", uri=True, isolation_level=None)) as write,
    ):
        write.execute("PRAGMA synchronous = EXTRA")
        read.backup(write)
        write.execute(f"PRAGMA application_id = {application}")


def create_own(path: Path) -> None:
    """An empty file for this user alone, whatever the umask; one that is there is left alone."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        remedy = _UNWRITABLE[sqlite3.SQLITE_CANTOPEN]
        raise LedgerUnwritable(f"{path} cannot be made ({error.strerror}): {remedy}") from error
    os.fchmod(descriptor, 0o600)
    os.close(descriptor)


def check_own(path: Path, *, write: bool = True) -> None:
    """The file has one name, and, for writing, no other user can write it; one that is not there passes."""
    try:
        status = path.stat()
    except OSError:
        return
    if path.is_dir():
        raise LedgerMisplaced(f"{path} is a folder: name the ledger in it, say {path / 'ledger.sqlite'}")
    if status.st_nlink > 1:
        raise LedgerMisplaced(
            f"{path} has {status.st_nlink} names (hard links), which would not share one journal: remove the others, "
            "or make a copy with `incrowd ledger backup`"
        )
    if write and (status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022):
        raise LedgerMisplaced(
            f"{path} may be written by another user, so nothing it says can be relied on: make it your own "
            f"(chown), and chmod go-w {path}"
        )


@contextmanager
def translated(path: Path | None) -> Iterator[None]:
    """SQLite's errors in our words."""
    try:
        yield
    except _FAILURES as error:
        remedy = _UNWRITABLE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        if remedy is None:
            raise LedgerDamaged(f"{path} is damaged or not a ledger ({error}): {_DAMAGED}") from error
        raise LedgerUnwritable(f"{path} cannot be used now ({error}): {remedy}") from error
