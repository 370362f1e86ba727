"""The memory of a user's ledgers: witness files and the registry, which notice an older copy, and the secret key."""

import json
import os
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np

from incrowd import _files
from incrowd._private import check_ours, make_ours, read_ours
from incrowd.errors import (
    ConfigError,
    LedgerDamaged,
    LedgerMismatch,
    LedgerMisplaced,
    LedgerRolledBack,
    LedgerUnwritable,
)
from incrowd.privacy.content import Content, DataIdentity, Sample
from incrowd.privacy.ledger.chain import Mark, check_own, connect, translated

Location = str | PathLike[str]

KEY, REGISTRY, LOCK = "key", "registry.sqlite", "registry.lock"
_KEY_BYTES = 32
_LISTS = {"names": "name", "fingerprints": "fingerprint", "wholes": "whole"}
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS ledgers (id TEXT PRIMARY KEY, unit TEXT NOT NULL, path TEXT NOT NULL UNIQUE, "
    "witness TEXT NOT NULL, entries INTEGER NOT NULL, head TEXT NOT NULL, division TEXT, "
    "retired INTEGER NOT NULL DEFAULT 0)",
    *(
        f"CREATE TABLE IF NOT EXISTS {table} (unit TEXT NOT NULL, {column} TEXT NOT NULL, ledger TEXT NOT NULL, "
        f"PRIMARY KEY (unit, {column}{', ledger' * (table == 'wholes')}))"
        for table, column in _LISTS.items()
    ),
    "CREATE TABLE IF NOT EXISTS released (fingerprint TEXT PRIMARY KEY, name TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS samples (owner TEXT NOT NULL, kind TEXT NOT NULL, digests BLOB NOT NULL, "
    "shared REAL NOT NULL, PRIMARY KEY (owner, kind, digests))",
)


@dataclass(frozen=True, kw_only=True)
class Registered:
    """A ledger as the registry knows it; `division` is None as long as its data are known by name alone."""

    id: str
    unit: str
    path: Path
    witness: Path
    mark: Mark
    division: str | None = None
    retired: bool = False
    names: tuple[str, ...] = ()
    fingerprints: tuple[str, ...] = ()
    wholes: tuple[str, ...] = ()


def state_folder() -> Path:
    """$INCROWD_STATE, or $XDG_STATE_HOME/incrowd, or ~/.local/state/incrowd. It need not exist."""
    if named := os.environ.get("INCROWD_STATE"):
        return Path(named).absolute()
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state").absolute() / "incrowd"


@dataclass(frozen=True)
class Registry:
    """A user's state folder and the table of ledgers in it.

    Guarantee: each change is one transaction, and on disk (fsync) when it returns, among any number of threads and
    processes. The folder and its files are for this user alone, and refused (`ConfigError`) where others may write.
    A state folder that was removed or restored as a whole goes unnoticed.
    """

    folder: Path

    @classmethod
    def of_user(cls) -> Self:
        """The folder of this user (`state_folder`)."""
        return cls(state_folder())

    @property
    def path(self) -> Path:
        """The file of the table."""
        return self.folder / REGISTRY

    def key(self) -> bytes:
        """The key for fingerprints, made at its first use, which only this user can read (`ConfigError` otherwise).

        Guarantee: all processes get the same key, however many ask at once and whenever one of them is killed.
        """
        path = self.folder / KEY
        with self.locked():
            if not path.exists():
                _files.write(path, secrets.token_bytes(_KEY_BYTES))
        key = read_ours(path, secret=True)
        if len(key) != _KEY_BYTES:
            raise LedgerDamaged(f"{path} is not a key: put the right one back; without it data are known by name alone")
        return key

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from beginning and moving ledgers. A ledger's lock is taken after this one."""
        make_ours(self.folder)
        with _files.Turn(self.folder / LOCK):
            yield

    def complete(self) -> None:
        """Make the table, in full or not at all, or the parts of it that an older version did not know."""
        fresh = self.path if self.path.exists() else self.path.with_suffix(".new")
        with translated(fresh):
            _files.create(fresh)
            with closing(connect(fresh)) as connection:
                for statement in _SCHEMA:
                    connection.execute(statement)
            fresh.replace(self.path)
            _files.sync(self.folder)

    def ledgers(self) -> list[Registered]:
        """All ledgers, in the order in which they were begun."""
        if not self.path.exists():
            return []
        check_ours(self.path)
        with self._transaction() as connection:
            connection.row_factory = sqlite3.Row
            rows: dict[str, dict[str, Any]] = {}
            for row in connection.execute("SELECT * FROM ledgers ORDER BY rowid"):
                rows[row["id"]] = dict(row) | dict.fromkeys(_LISTS, ())
            for table, column in _LISTS.items():
                its = f"SELECT ledger, {column} FROM {table} WHERE ledger IN (SELECT id FROM ledgers) ORDER BY rowid"  # noqa: S608 - our own names
                for ledger, value in connection.execute(its):
                    rows[ledger][table] += (value,)
        for each in rows.values():
            each |= {"path": Path(each["path"]), "witness": Path(each["witness"]), "retired": bool(each["retired"])}
            each["mark"] = Mark(entries=each.pop("entries"), head=each.pop("head"))
        return [Registered(**each) for each in rows.values()]

    def by_id(self, ledger: str) -> Registered | None:
        """The ledger of this id."""
        return next((known for known in self.ledgers() if known.id == ledger), None)

    def at(self, path: Path) -> Registered | None:
        """The ledger that is registered at this place."""
        return next((known for known in self.ledgers() if known.path == path), None)

    def mark(self, ledger: str) -> Mark | None:
        """How far a ledger had come, or None for an unknown one."""
        with self._transaction() as connection:
            row = connection.execute("SELECT entries, head FROM ledgers WHERE id = ?", (ledger,)).fetchone()
        return None if row is None else Mark(entries=row[0], head=row[1])

    def update(self, ledger: str, mark: Mark, *, path: Path | None = None, witness: Path | None = None) -> None:
        """A ledger has come so far; with a path and a witness, it lies there from now on."""
        places = [None if place is None else str(place) for place in (path, witness)]
        with self._transaction(write=True) as connection:
            connection.execute(
                "UPDATE ledgers SET entries = ?, head = ?, path = coalesce(?, path), witness = coalesce(?, witness) "
                "WHERE id = ?",
                (mark.entries, mark.head, *places, ledger),
            )

    def add(self, ledger: str, its: DataIdentity, mark: Mark, *places: Path, replaces: str | None = None) -> None:
        """Register a ledger, with its path and witness; it takes over the data of the ledger that it replaces."""
        with self._transaction(write=True) as connection:
            row = (ledger, its.unit or "", *map(str, places), mark.entries, mark.head, its.division or None)
            connection.execute("INSERT INTO ledgers VALUES (?, ?, ?, ?, ?, ?, ?, 0)", row)
            for table in _LISTS:
                statement = f"UPDATE {table} SET ledger = ? WHERE ledger = ?"  # noqa: S608 - our own names
                connection.execute(statement, (ledger, replaces))
            connection.execute("UPDATE OR IGNORE samples SET owner = ? WHERE owner = ?", (ledger, replaces))
            connection.execute("UPDATE ledgers SET retired = 1 WHERE id = ?", (replaces,))
            _know(connection, ledger, its.unit, its)

    def remember(self, known: Registered, identity: DataIdentity) -> None:
        """The ledger is also for the data of this name and content; the division is settled once."""
        with self._transaction(write=True) as connection:
            _know(connection, known.id, known.unit, identity)
            settled = "UPDATE ledgers SET division = ? WHERE id = ? AND division IS NULL"
            connection.execute(settled, (identity.division or None, known.id))

    def released(self) -> dict[str, str]:
        """The names of data that were released without privacy, by their fingerprints."""
        with self._transaction() as connection:
            return dict(connection.execute("SELECT fingerprint, name FROM released ORDER BY rowid").fetchall())

    def note_released(self, name: str, content: Content) -> None:
        """Data of this content are released without privacy."""
        with self._transaction(write=True) as connection:
            connection.execute("INSERT OR IGNORE INTO released VALUES (?, ?)", (content.whole, name))
            _keep(connection, content.whole, content)

    def samples(self) -> dict[str, list[Sample]]:
        """Samples of the content of data, by their ledger, or by the fingerprint of those that were released."""
        kept: dict[str, list[Sample]] = {}
        with self._transaction() as connection:
            for owner, kind, digests, shared in connection.execute("SELECT owner, kind, digests, shared FROM samples"):
                sample = Sample(kind=kind, digests=np.frombuffer(digests, "<u8"), shared=shared)
                kept.setdefault(owner, []).append(sample)
        return kept

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction: none is kept, so that forks and threads share none."""
        with translated(self.path), closing(connect(self.path)) as connection:
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            yield connection
            connection.execute("COMMIT")  # on an exception, closing takes everything back


class Guard:
    """The rollback guard of the ledger at a path: all that remembers how far it had come.

    The main `witness` is the registered one, else the named one, else the file `<path>.witness`. `files` also holds
    the witnesses beside other names that lead to the ledger through symbolic links. Witness files that are restored
    together with an unregistered ledger go unnoticed, unless `verify` gets a head hash that was kept elsewhere.
    """

    def __init__(self, path: Location, witness: Location | None = None) -> None:
        self.path = Path(path).resolve()
        self.registry = Registry.of_user()
        self.known = self.registry.at(self.path)
        named = None if witness is None else Path(witness).resolve()
        if self.known is not None and named not in (None, self.known.witness):
            remedy = f"leave it out, or run `incrowd ledger move {self.path} {self.path} --witness {named}`"
            raise LedgerMismatch(f"the witness of {self.path} is {self.known.witness}, not {named}: {remedy}")
        self.witness = self.known.witness if self.known is not None else named or beside(self.path)
        around = dict.fromkeys(beside(name) for name in _names(Path(path)))
        self.files = (self.witness, *(other for other in around if other != self.witness and other.exists()))

    def check_place(self, ledger: str, *, write: bool) -> None:
        """The ledger of this id belongs at this path, and, for writing, was not closed by a fresh start."""
        its = self.registry.by_id(ledger)
        if its is None and self.known is not None:
            raise LedgerRolledBack(
                f"{self.path} is another ledger than the one that is registered there: put that back"
            )
        if its is not None and its.path != self.path:
            raise LedgerMisplaced(
                f"{self.path} is a copy of the ledger at {its.path}, which is the one that is charged: use that; if "
                f"it was moved here by hand, run `incrowd ledger move {its.path} {self.path}`"
            )
        if its is not None and its.retired and write:
            remedy = "begin a new run, which is charged to the new ledger"
            raise LedgerMisplaced(f"{self.path} was closed by a deliberate fresh start on the same data: {remedy}")

    def check(self, hashes: Sequence[str], *, moved: bool = False) -> None:
        """The ledger with the entries of these hashes still has each entry that was seen (`LedgerRolledBack`).

        It may have more, since a crash may have come between. For one that was `moved`, one memory is enough.
        """
        marks = self._marks()
        for name, mark in marks.items():
            if mark is None:
                if len(hashes) > 1 and not (moved and any(marks.values())):
                    raise LedgerRolledBack(
                        f"{self.path} has lost its witness {name}: put that file back; if it is gone for good and you "
                        "know from elsewhere that no entry is missing, make a new one with `renew_witness`"
                    )
            elif len(hashes) < mark.entries:
                raise LedgerRolledBack(
                    f"{self.path} has {len(hashes)} entries, its witness {name} saw {mark.entries}: put the latest "
                    "copy of the ledger back; a fresh start on spent data is `incrowd ledger fresh`"
                )
            elif hashes[mark.entries - 1] != mark.head:
                other = f"entry {mark.entries - 1} is another. Put the right ledger back"
                raise LedgerRolledBack(f"{self.path} is not the ledger that its witness {name} saw: {other}")

    def write(self, mark: Mark) -> None:
        """Bring all memories up to date. Only under the ledger's write lock, so that marks never go back."""
        for path in self.files:
            if read_witness(path) != mark:
                write_witness(path, mark)
        if self.known is not None and self.registry.mark(self.known.id) != mark:
            self.registry.update(self.known.id, mark)

    def check_missing(self, terms: Mapping[str, object] | None = None) -> None:
        """No memory has seen a ledger here (`LedgerRolledBack`), and none of the terms is missing (`ConfigError`)."""
        for name, mark in self._marks().items():
            if mark is not None:
                raise LedgerRolledBack(
                    f"{self.path} is gone or empty, but its witness {name} saw {mark.entries} entries: put the ledger "
                    f"back, or, if it was moved by hand, run `incrowd ledger move {self.path} NEW`. If it is lost, "
                    "`incrowd ledger fresh` starts afresh on the spent data, and the new ledger notes that for good"
                )
        for field, value in (terms or {}).items():
            if value is None:
                remedy = f"there is no ledger at {self.path} yet, and a new one needs it"
                raise ConfigError(field=field, value=None, remedy=remedy)

    def _marks(self) -> dict[str, Mark | None]:
        """The mark in each memory, by the memory's name."""
        marks = {str(path): read_witness(path) for path in self.files}
        if self.known is not None:
            marks[str(self.registry.path)] = self.registry.mark(self.known.id)
        return marks


def read_witness(path: Path) -> Mark | None:
    """The mark in a witness file, or None without a file. Another user's file raises `LedgerMisplaced`."""
    try:
        text = path.read_text(encoding="utf-8")
        check_own(path)
        mark = Mark(**json.loads(text))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerUnwritable(f"the witness {path} cannot be read ({error}): allow this user to") from error
    except (ValueError, TypeError, RecursionError):  # a UnicodeDecodeError is a ValueError
        mark = Mark(entries=0, head="")
    if type(mark.entries) is not int or mark.entries < 1 or type(mark.head) is not str:
        raise LedgerDamaged(f"the witness {path} is damaged: put an intact copy back")
    return mark


def write_witness(path: Path, mark: Mark) -> None:
    """Replace the mark in a witness file: at any moment it holds the old one or the new one, which is then on disk."""
    try:
        _files.write(path, json.dumps(asdict(mark)) + "\n")
    except OSError as error:
        raise LedgerUnwritable(
            f"the witness {path} cannot be written ({error}): what was just charged stays charged, but nothing may be "
            "released for it; free some space or allow this user to write there"
        ) from error


def beside(path: Path) -> Path:
    """The place of a ledger's witness unless another is named."""
    return path.with_name(f"{path.name}.witness")


def _names(path: Path) -> list[Path]:
    """Each name of the file on the way through symbolic links, its own first."""
    name, names = path.absolute(), [path.resolve()]  # which refuses links that lead round in circles
    while name.is_symlink():
        name = name.parent.resolve() / name.name
        names.append(name)
        name = name.parent / name.readlink()
    return names


def _know(connection: sqlite3.Connection, ledger: str, unit: str | None, its: DataIdentity) -> None:
    people = None if its.content is None else its.content.people
    known = (("names", its.name), ("fingerprints", its.fingerprint), ("fingerprints", people), ("wholes", its.whole))
    for table, value in (*known, *(("wholes", part) for part in its.parts)):
        if value is not None:
            statement = f"INSERT OR IGNORE INTO {table} (unit, {_LISTS[table]}, ledger) VALUES (?, ?, ?)"  # noqa: S608 - our own names
            connection.execute(statement, (unit or "", value, ledger))
    if its.content is not None:
        _keep(connection, ledger, its.content)


def _keep(connection: sqlite3.Connection, owner: str, content: Content) -> None:
    for each in content.samples():
        row = (owner, each.kind, each.digests.astype("<u8").tobytes(), each.shared)
        connection.execute("INSERT OR IGNORE INTO samples VALUES (?, ?, ?, ?)", row)
