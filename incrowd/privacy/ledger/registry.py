"""All ledgers that a user has, in the state folder: of which data they are, where they lie, how far they had come."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from incrowd._private import check_ours
from incrowd.privacy.content import Content, Sample
from incrowd.privacy.ledger.chain import create_own, translated
from incrowd.privacy.ledger.identity import DataIdentity
from incrowd.privacy.ledger.state import state_folder, sync
from incrowd.privacy.ledger.witness import Mark, Witness

REGISTRY, LOCK = "registry.sqlite", "registry.lock"

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS ledgers (id TEXT PRIMARY KEY, unit TEXT NOT NULL, path TEXT NOT NULL UNIQUE, "
    "witness TEXT NOT NULL, entries INTEGER NOT NULL, head TEXT NOT NULL, division TEXT, "
    "retired INTEGER NOT NULL DEFAULT 0)",
    "CREATE TABLE IF NOT EXISTS names (unit TEXT NOT NULL, name TEXT NOT NULL, ledger TEXT NOT NULL, "
    "PRIMARY KEY (unit, name))",
    "CREATE TABLE IF NOT EXISTS fingerprints (unit TEXT NOT NULL, fingerprint TEXT NOT NULL, ledger TEXT NOT NULL, "
    "PRIMARY KEY (unit, fingerprint))",
    "CREATE TABLE IF NOT EXISTS wholes (unit TEXT NOT NULL, whole TEXT NOT NULL, ledger TEXT NOT NULL, "
    "PRIMARY KEY (unit, whole, ledger))",
    "CREATE TABLE IF NOT EXISTS released (fingerprint TEXT PRIMARY KEY, name TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS samples (owner TEXT NOT NULL, kind TEXT NOT NULL, digests BLOB NOT NULL, "
    "shared REAL NOT NULL, PRIMARY KEY (owner, kind, digests))",
)
_COLUMNS = "id, unit, path, witness, entries, head, division"


@dataclass(frozen=True, kw_only=True)
class Registered:
    """What the registry knows of a ledger; the first name is the one that it was begun with.

    `division` says what makes one unit of its data, and is None as long as no data were named but by name. `wholes` are
    the fingerprints of what its data are parts of.
    """

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


class Registry:
    """The table of ledgers in a state folder.

    Guarantee: every change is made in one transaction and on disk (fsync) when it returns, among any number of threads
    and processes; files are for this user alone (0600), and refused (`ConfigError`) where others may write them.

    Edge cases: a file that is damaged raises `LedgerDamaged`. That the whole state folder was removed, or put back as
    it was earlier, cannot be told.
    """

    def __init__(self, folder: Path, *, name: str = REGISTRY) -> None:
        self.folder = folder
        self.path = folder / name

    @classmethod
    def existing(cls) -> "Registry | None":
        """The user's, if there is one: looking makes nothing."""
        registry = cls(state_folder())
        if not registry.path.exists():
            return None
        check_ours(registry.path)
        return registry

    def make(self, ledgers: Iterable[Registered]) -> None:
        """Begin the registry with these ledgers: it is there with all of them, or not at all. Only under `alone`."""
        fresh = Registry(self.folder, name=f"{REGISTRY}.new")
        fresh.path.unlink(missing_ok=True)
        create_own(fresh.path)
        fresh.complete()
        for ledger in ledgers:
            fresh.add(ledger)
        fresh.path.rename(self.path)
        sync(self.folder)

    def complete(self) -> None:
        """Make the tables that an older version did not know."""
        with self._transaction() as connection:
            for statement in _SCHEMA:
                connection.execute(statement)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others, who ask here, too, from looking for a ledger and from beginning or moving one.

        A ledger's own lock is taken after this one, never before.
        """
        import fcntl

        create_own(self.folder / LOCK)
        with (self.folder / LOCK).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def ledgers(self) -> list[Registered]:
        """All ledgers, in the order in which they were begun."""
        return self._select("1")

    def by_id(self, ledger: str) -> Registered | None:
        """The ledger of this id."""
        return _only(self._select("id = ?", ledger))

    def at(self, path: Path) -> Registered | None:
        """The ledger that belongs at this place."""
        return _only(self._select("path = ?", str(path)))

    def named(self, unit: str, name: str) -> Registered | None:
        """The ledger of the data of this name."""
        return _only(self._select("id = (SELECT ledger FROM names WHERE unit = ? AND name = ?)", unit, name))

    def of_content(self, unit: str, fingerprint: str | None) -> Registered | None:
        """The ledger of the data of this fingerprint."""
        where = "id = (SELECT ledger FROM fingerprints WHERE unit = ? AND fingerprint = ?)"
        return _only(self._select(where, unit, fingerprint))

    def parts_of(self, unit: str, whole: str | None) -> list[Registered]:
        """The ledgers of the parts into which these data were divided."""
        return self._select("id IN (SELECT ledger FROM wholes WHERE unit = ? AND whole = ?)", unit, whole)

    def of_any_unit(self, name: str, fingerprint: str | None) -> list[Registered]:
        """The ledgers of the data of this name or content, or of parts of them, whoever is protected there."""
        tables = (
            ("names", "name", name),
            ("fingerprints", "fingerprint", fingerprint),
            ("wholes", "whole", fingerprint),
        )
        where = " OR ".join(f"id IN (SELECT ledger FROM {table} WHERE {column} = ?)" for table, column, _ in tables)  # noqa: S608 - our own names
        return self._select(where, *(value for *_, value in tables))

    def released(self) -> list[tuple[str, str]]:
        """The fingerprints and the names of data that were released without privacy."""
        with self._transaction(write=False) as connection:
            return connection.execute("SELECT fingerprint, name FROM released ORDER BY rowid").fetchall()

    def release(self, name: str, content: Content) -> None:
        """Data of this content are released without privacy."""
        with self._transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO released VALUES (?, ?)", (content.whole, name))
            _keep(connection, content.whole, content)

    def samples(self) -> dict[str, list[Sample]]:
        """What is kept of the content of data, by their ledger, or by the fingerprint of those that were released."""
        with self._transaction(write=False) as connection:
            kept: dict[str, list[Sample]] = {}
            for owner, kind, digests, shared in connection.execute("SELECT owner, kind, digests, shared FROM samples"):
                sample = Sample(kind=kind, digests=np.frombuffer(digests, "<u8"), shared=shared)
                kept.setdefault(owner, []).append(sample)
            return kept

    def add(self, ledger: Registered) -> None:
        """Take a new ledger in, under its names and fingerprints."""
        with self._transaction() as connection:
            _insert(connection, ledger)
            _remember(connection, ledger, ledger.names, ledger.fingerprints, ledger.wholes)

    def remember(self, ledger: Registered, identity: DataIdentity) -> None:
        """The ledger is known under this name, and by this content, too; what makes a unit is settled once."""
        content = [] if identity.fingerprint is None else [identity.fingerprint]
        wholes = [] if identity.whole is None else [identity.whole]
        with self._transaction() as connection:
            if identity.content is not None:
                content.append(identity.content.people)
                _keep(connection, ledger.id, identity.content)
            _remember(connection, ledger, [identity.name], content, wholes)
            settled = "UPDATE ledgers SET division = ? WHERE id = ? AND division IS NULL"
            connection.execute(settled, (identity.division or None, ledger.id))

    def replace(self, old: Registered, new: Registered) -> None:
        """A fresh start: the new ledger takes all names and fingerprints over, the old one is kept as retired."""
        with self._transaction() as connection:
            _insert(connection, new)
            for table in ("names", "fingerprints", "wholes"):
                connection.execute(f"UPDATE {table} SET ledger = ? WHERE ledger = ?", (new.id, old.id))  # noqa: S608 - our own names
            connection.execute("UPDATE OR IGNORE samples SET owner = ? WHERE owner = ?", (new.id, old.id))
            connection.execute("UPDATE ledgers SET retired = 1 WHERE id = ?", (old.id,))

    def relocate(self, ledger: str, *, path: Path, witness: Path) -> None:
        """The ledger lies elsewhere from now on."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE ledgers SET path = ?, witness = ? WHERE id = ?", (str(path), str(witness), ledger)
            )

    def mark(self, ledger: str, mark: Mark) -> None:
        """The ledger has come so far."""
        with self._transaction() as connection:
            values = (mark.entries, mark.head, ledger)
            connection.execute("UPDATE ledgers SET entries = ?, head = ? WHERE id = ?", values)

    def _select(self, where: str, *values: str | None) -> list[Registered]:
        with self._transaction(write=False) as connection:
            rows = connection.execute(f"SELECT {_COLUMNS}, retired FROM ledgers WHERE {where} ORDER BY rowid", values)  # noqa: S608 - our own words
            return [_registered(connection, row) for row in rows.fetchall()]

    @contextmanager
    def _transaction(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction: none is kept, so that forks and threads share none."""
        with translated(self.path):
            uri = f"{self.path.as_uri()}?mode=rw"
            with closing(sqlite3.connect(uri, uri=True, timeout=30.0, isolation_level=None)) as connection:
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield connection
                connection.execute("COMMIT")  # on an exception, closing takes everything back


@dataclass(frozen=True)
class RegistryMark(Witness):
    """The registry as a witness: ledger and witness file that are put back, or removed, together do not deceive it."""

    registry: Registry
    ledger: str

    def __str__(self) -> str:
        return str(self.registry.path)

    def read(self) -> Mark | None:
        """See `Witness.read`."""
        known = self.registry.by_id(self.ledger)
        return None if known is None else known.mark

    def write(self, mark: Mark) -> None:
        """See `Witness.write`."""
        self.registry.mark(self.ledger, mark)


def _only(entries: Sequence[Registered]) -> Registered | None:
    return entries[0] if entries else None


def _insert(connection: sqlite3.Connection, ledger: Registered) -> None:
    where, mark = (str(ledger.path), str(ledger.witness)), ledger.mark
    row = (ledger.id, ledger.unit, *where, mark.entries, mark.head, ledger.division)
    connection.execute(f"INSERT INTO ledgers ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)  # noqa: S608 - our own names


def _remember(
    connection: sqlite3.Connection,
    ledger: Registered,
    names: Sequence[str],
    fingerprints: Sequence[str],
    wholes: Sequence[str],
) -> None:
    known = (("names", "name", names), ("fingerprints", "fingerprint", fingerprints), ("wholes", "whole", wholes))
    for table, column, values in known:
        statement = f"INSERT OR IGNORE INTO {table} (unit, {column}, ledger) VALUES (?, ?, ?)"  # noqa: S608 - our own names
        connection.executemany(statement, [(ledger.unit, value, ledger.id) for value in values])


def _keep(connection: sqlite3.Connection, owner: str, content: Content) -> None:
    rows = [(owner, each.kind, each.digests.astype("<u8").tobytes(), each.shared) for each in content.samples()]
    connection.executemany("INSERT OR IGNORE INTO samples VALUES (?, ?, ?, ?)", rows)


def _registered(
    connection: sqlite3.Connection, row: tuple[str, str, str, str, int, str, str | None, int]
) -> Registered:
    ledger, unit, path, witness, entries, head, division, retired = row
    names = connection.execute("SELECT name FROM names WHERE ledger = ? ORDER BY rowid", (ledger,))
    prints = connection.execute("SELECT fingerprint FROM fingerprints WHERE ledger = ? ORDER BY rowid", (ledger,))
    wholes = connection.execute("SELECT whole FROM wholes WHERE ledger = ? ORDER BY rowid", (ledger,))
    return Registered(
        id=ledger,
        unit=unit,
        path=Path(path),
        witness=Path(witness),
        mark=Mark(entries=entries, head=head),
        division=division,
        retired=bool(retired),
        names=tuple(name for (name,) in names),
        fingerprints=tuple(value for (value,) in prints),
        wholes=tuple(value for (value,) in wholes),
    )
