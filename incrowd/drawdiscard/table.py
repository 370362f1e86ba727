"""A device's own examples: one SQLite table, which knows nothing of any model."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from os import PathLike
from pathlib import Path
from threading import RLock
from typing import Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError

from incrowd._random import Stream
from incrowd.drawdiscard.fields import Name
from incrowd.errors import ConfigError, DataError

TABLE = "examples"

Kind = Literal["INTEGER", "REAL", "TEXT"]
Value = int | float | str | None
_NAME: TypeAdapter[str] = TypeAdapter(Name)


class ExampleTable:
    """The table ``examples`` of a SQLite file, with a column a field and a row an example.

    Guarantee: nothing here leaves the device; the file is readable by its owner only. Several threads and processes may
    use it.

    Edge cases: a column that is not there is refused; text that is not a name never reaches SQL.
    """

    def __init__(self, path: str | PathLike[str], *, columns: Mapping[str, Kind] | None = None) -> None:
        """Open the table, or make one with these columns where there is none."""
        location = Path(path)
        if columns is None and not location.exists():
            raise ConfigError(field="table", value=str(path), remedy="there is none yet: give its columns")
        location.touch(mode=0o600)
        self._lock = RLock()
        self._connection = sqlite3.connect(location, timeout=30.0, isolation_level=None, check_same_thread=False)
        self._connection.text_factory = _text
        try:
            if columns is not None:
                self._connection.execute(_creation(columns))
            self.columns = tuple(row[1] for row in self._connection.execute(f"PRAGMA table_info({TABLE})"))
            if not self.columns:
                raise ConfigError(field="table", value=str(path), remedy=f"it has no table {TABLE}: give its columns")
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise DataError(f"{path} cannot be used as a table of examples: {error}") from error
        except ConfigError:
            self._connection.close()
            raise

    def __enter__(self) -> "ExampleTable":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def add(self, rows: Iterable[Mapping[str, Value]]) -> None:
        """Keep examples, all or none; what a row does not mention is missing."""
        with self.exclusive():
            for row in rows:
                names = self._known(row)
                marks = ", ".join("?" for _ in names)
                statement = f"INSERT INTO {TABLE} ({_quoted(names)}) VALUES ({marks})"  # noqa: S608 - names are columns
                self._connection.execute(statement, [row[name] for name in names])

    def count(self) -> int:
        """How many examples there are. Private."""
        with self._lock, closing(self._connection.execute(f"SELECT count(*) FROM {TABLE}")) as found:  # noqa: S608 - a constant
            return int(found.fetchone()[0])

    def sample(self, names: Sequence[str], *, most: int, stream: Stream) -> dict[str, list[Value]]:
        """The values of some columns, of so many random examples at most. Private."""
        columns = _quoted(self._known(dict.fromkeys(names)))
        with self._lock:
            rowids = [row[0] for row in self._connection.execute(f"SELECT rowid FROM {TABLE}")]  # noqa: S608 - a constant
            chosen = np.argsort(stream.bits(len(rowids)), kind="stable")[:most]
            select = f"SELECT {columns} FROM {TABLE} WHERE rowid = ?"  # noqa: S608 - names are columns
            rows = [self._connection.execute(select, (rowids[place],)).fetchone() for place in chosen]
        return {name: [row[place] for row in rows if row] for place, name in enumerate(names)}

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Nobody else writes here meanwhile: no other thread, and no other process."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            end = "ROLLBACK"
            try:
                yield
                end = "COMMIT"
            finally:
                self._connection.execute(end)

    def _known(self, names: Mapping[str, object]) -> list[str]:
        for name in names:
            if name not in self.columns:
                raise ConfigError(field="column", value=name, remedy=f"the table has {', '.join(self.columns)}")
        return list(names)


def _text(content: bytes) -> str:
    """Text that an app stored in another encoding is odd, but no reason to fail: failing would tell something."""
    return content.decode(errors="replace")


def _creation(columns: Mapping[str, Kind]) -> str:
    for name, kind in columns.items():
        try:
            _NAME.validate_python(name, strict=True)
        except ValidationError as error:
            remedy = "name a column with letters, digits and _, at most 64"
            raise ConfigError(field="columns", value=name, remedy=remedy) from error
        if kind not in ("INTEGER", "REAL", "TEXT"):
            raise ConfigError(field=f"columns.{name}", value=kind, remedy="choose INTEGER, REAL or TEXT")
    if not columns:
        raise ConfigError(field="columns", value={}, remedy="give at least one")
    declared = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
    return f"CREATE TABLE IF NOT EXISTS {TABLE} ({declared})"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
