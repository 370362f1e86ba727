"""The settings of a run and the releases of its rounds, in an open SQLite file."""

import errno
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from incrowd import _files
from incrowd.errors import DataError

_ROUNDS = (
    "CREATE TABLE rounds (round INTEGER PRIMARY KEY, epsilon REAL NOT NULL, seconds REAL{needed}, clients_per_second "
    "REAL{needed}, clip_norm REAL, noise_std REAL, accuracy REAL, loss REAL, lost INTEGER NOT NULL, "
    "simulation TEXT{more})"
)
_KEPT = "round, epsilon, seconds, clients_per_second, clip_norm, noise_std, accuracy, loss, lost, simulation, silos"

MIGRATIONS: list[tuple[str, ...]] = [
    (
        "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        _ROUNDS.format(needed=" NOT NULL", more=""),
    ),
    ("ALTER TABLE rounds ADD COLUMN silos TEXT",),
    (  # times are for simulations only, and SQLite cannot take NOT NULL away from a column
        "ALTER TABLE rounds RENAME TO rounds_before",
        _ROUNDS.format(needed="", more=", silos TEXT"),
        f"INSERT INTO rounds SELECT {_KEPT} FROM rounds_before",  # noqa: S608 - our own names
        "DROP TABLE rounds_before",
    ),
]
"""The statements that make each version of the schema out of the one before it. Never changed, only added to."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One round as it is remembered. Public, but for what only a simulation has.

    `epsilon` is what all rounds up to this one cost together. `accuracy` and `loss` are measured on the test set that
    the server holds, in the rounds that are reported. `lost` marks a round that a crash cut off after it had been paid
    for: nothing of it was used. `simulation` holds what only a simulation may look at, and is None otherwise; so are
    `seconds` and `clients_per_second`, because how long a round took tells who took part. `silos` says how each silo
    stands, in a run of silos.
    """

    round: int
    epsilon: float
    seconds: float | None = None
    clients_per_second: float | None = None
    clip_norm: float | None = None
    noise_std: float | None = None
    accuracy: float | None = None
    loss: float | None = None
    lost: bool = False
    simulation: Mapping[str, object] | None = None
    silos: Sequence[Mapping[str, object]] | None = None

    def measured(self, *, accuracy: float | None, loss: float | None) -> "Record":
        """The same round, with how good its weights are."""
        return replace(self, accuracy=accuracy, loss=loss)

    def to_json(self) -> dict[str, object]:
        """The record as plain JSON data."""
        return asdict(self)


class Database:
    """The settings and the rounds of one run.

    Guarantee: the schema is created or brought up to date in one transaction, and so is every write; a round that is
    added again replaces itself.

    Edge cases: a file that is no such database, or is of a newer version, is a `DataError`; a disk that cannot be
    written is an `OSError`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._said():
            _files.create(path)
            # The collector closes it in whatever thread it runs.
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            _files.closed_with(self, self._connection)
            self._connection.row_factory = sqlite3.Row
            self._migrate()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the run."""
        rows = self._connection.execute("SELECT name, value FROM settings").fetchall()
        return {row["name"]: json.loads(row["value"]) for row in rows}

    def write_settings(self, settings: Mapping[str, object]) -> None:
        """Put all settings down, at once."""
        rows = [(name, json.dumps(value, allow_nan=False)) for name, value in settings.items()]
        with self._said():
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", rows)
            self._connection.execute("COMMIT")

    def add(self, record: Record) -> None:
        """Remember a round."""
        row = record.to_json()
        for name in _NESTED:
            row[name] = None if row[name] is None else json.dumps(row[name])
        with self._said():
            self._connection.execute(_INSERT, row)

    def rounds(self) -> list[Record]:
        """All rounds, in order."""
        with self._said():
            return [_record(row) for row in self._connection.execute("SELECT * FROM rounds ORDER BY round")]

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Say of what SQLite refuses which file it is."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF in _OF_THE_DISK:
                raise OSError(errno.EIO, str(error), str(self.path)) from error
            raise DataError(f"{self.path} is not the database of a run: {error}") from error

    def _migrate(self) -> None:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            (version,) = cursor.execute("PRAGMA user_version").fetchone()
            tables = cursor.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if version == 0 and tables:
                raise DataError(f"{self.path} is another program's database, not that of a run: name the run's folder")
            if version > len(MIGRATIONS):
                raise DataError(f"{self.path} is of version {version}: this incrowd knows {len(MIGRATIONS)}; update it")
            for statement in (one for change in MIGRATIONS[version:] for one in change):
                cursor.execute(statement)
            if version < len(MIGRATIONS):  # a reader changes nothing
                cursor.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            cursor.execute("COMMIT")


_NESTED = ("simulation", "silos")
_OF_THE_DISK = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)
_COLUMNS = [field.name for field in fields(Record)]
_INSERT = f"INSERT OR REPLACE INTO rounds ({', '.join(_COLUMNS)}) VALUES ({', '.join(':' + name for name in _COLUMNS)})"  # noqa: S608 - our own names


def _record(row: sqlite3.Row) -> Record:
    fields = dict(row) | {"lost": bool(row["lost"])}
    for name in _NESTED:
        fields[name] = None if fields[name] is None else json.loads(fields[name])
    return Record(**fields)
