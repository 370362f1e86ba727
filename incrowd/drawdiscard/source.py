"""Reads a device's examples from a table or view of a SQLite file, rows, columns, or a data frame."""

import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import islice
from os import PathLike
from pathlib import Path
from threading import RLock
from typing import Any
from urllib.parse import quote

import numpy as np

from incrowd import _files
from incrowd._random import Stream
from incrowd.data.reading import AS_USUAL, read_rows
from incrowd.drawdiscard.fields import BooleanField, IntegerField, NumberField
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import ConfigError, DataError

Value = int | float | str | None | tuple[int | float | str | None, ...]
Columns = dict[str, list[object]]


class SqliteTable:
    """A table or view of a SQLite file, read anew each time: an app may go on filling it.

    Guarantee: it never changes the file. Each read sees one state of it; several threads and processes may read.

    Edge cases: an error names a missing file, table or column; no text but the names of columns reaches SQL. Text in
    another encoding does not fail: a failure would tell the server of it.
    """

    def __init__(self, path: str | PathLike[str], table: str) -> None:
        location = Path(path)
        if not location.is_file():
            raise ConfigError(field="data", value=str(path), remedy="there is no such file: let your app make it first")
        uri = f"file:{quote(str(location.resolve()))}?mode=ro"
        self._lock = RLock()
        self._connection = sqlite3.connect(uri, uri=True, timeout=30.0, isolation_level=None, check_same_thread=False)
        _files.closed_with(self, self._connection)
        self._connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        try:
            self.columns, self._table = self._described(table), _quoted(table)
        except sqlite3.DatabaseError as error:
            raise DataError(f"{path} cannot be read as a SQLite file: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def read(self, names: Sequence[str]) -> Columns:
        """Columns of all examples. Private."""
        with self._rows(names) as (_, rows):
            return _by_column(names, list(rows))

    def sample(self, names: Sequence[str], *, most: int, stream: Stream) -> Columns:
        """Columns of at most so many random examples. Private."""
        with self._rows(names) as (count, rows):
            chosen = dict.fromkeys(_chosen(count, most, stream))
            kept = {place: row for place, row in enumerate(rows) if place in chosen}
        return _by_column(names, [kept[place] for place in chosen])

    def _described(self, table: str) -> tuple[str, ...]:
        known = [row[0] for row in self._connection.execute("SELECT name FROM sqlite_master WHERE type != 'index'")]
        if table not in known:
            remedy = f"the file has {', '.join(known)}" if known else "the file has no table at all"
            raise ConfigError(field="table", value=table, remedy=remedy)
        return tuple(row[1] for row in self._connection.execute(f"PRAGMA table_info({_quoted(table)})"))

    @contextmanager
    def _rows(self, names: Sequence[str]) -> Iterator[tuple[int, Iterator[tuple[object, ...]]]]:
        """The number of examples and their rows, of one state of the file."""
        _check_known(names, self.columns)
        selected = ", ".join(map(_quoted, names)) or "1"
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                (count,) = self._connection.execute(f"SELECT count(*) FROM {self._table}").fetchone()  # noqa: S608 - the table's name is quoted
                with closing(self._connection.execute(f"SELECT {selected} FROM {self._table}")) as rows:  # noqa: S608 - the names are quoted
                    yield int(count), rows
            finally:
                self._connection.execute("ROLLBACK")


class InMemoryTable:
    """Examples in memory, copied at the beginning: later changes do not count."""

    def __init__(self, columns: Mapping[str, Sequence[object]], *, count: int | None = None) -> None:
        self._values = {str(name): [_plain(value, name) for value in values] for name, values in columns.items()}
        lengths = {name: len(values) for name, values in self._values.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"the columns have different lengths: {lengths}")
        self.count = max(lengths.values(), default=0) if count is None else count

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._values)

    def read(self, names: Sequence[str]) -> Columns:
        """Columns of all examples. Private."""
        _check_known(names, self.columns)
        return {name: list(self._values[name]) for name in names}

    def sample(self, names: Sequence[str], *, most: int, stream: Stream) -> Columns:
        """Columns of at most so many random examples. Private."""
        chosen = _chosen(self.count, most, stream)
        return {name: [values[place] for place in chosen] for name, values in self.read(names).items()}

    def close(self) -> None:
        """Nothing is open."""


def rows_of(data: object) -> InMemoryTable:
    """Examples in a list of dicts, a dict of columns, or a data frame (pandas, polars)."""
    if isinstance(data, Mapping):
        return InMemoryTable(data)
    if hasattr(data, "columns") and hasattr(data, "__getitem__"):
        return InMemoryTable({name: list(data[name]) for name in data.columns})
    if isinstance(data, Sequence) and all(isinstance(row, Mapping) for row in data):
        names = dict.fromkeys(name for row in data for name in row)
        return InMemoryTable({name: [row.get(name) for row in data] for name in names}, count=len(data))
    remedy = "give the path of a SQLite file, a list of dicts, a dict of columns, or a data frame"
    raise ConfigError(field="data", value=type(data).__name__, remedy=remedy)


def source_of(data: object, table: str) -> SqliteTable | InMemoryTable:
    """Examples in a SQLite file with this table, for a path, or in memory (`rows_of`)."""
    return SqliteTable(data, table) if isinstance(data, str | PathLike) else rows_of(data)


def _plain(value: Any, name: object) -> Value:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, int | str):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    if isinstance(value, list | tuple) and not any(isinstance(item, list | tuple) for item in value):
        return tuple(_plain(item, name) for item in value)  # type: ignore[misc]  # only a list becomes a tuple
    raise DataError(f"column {name!r} holds a {type(value).__name__}: give numbers, text, or lists of these")


def _chosen(count: int, most: int, stream: Stream) -> list[int]:
    chosen: list[int] = np.argsort(stream.bits(count), kind="stable")[:most].tolist()
    return chosen


def _by_column(names: Sequence[str], rows: Sequence[Sequence[object]]) -> Columns:
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _check_known(names: Sequence[str], columns: Sequence[str]) -> None:
    for name in names:
        if name not in columns:
            raise ConfigError(field="column", value=name, remedy=f"there are {', '.join(columns)}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


YES_NO = {"1": 1, "true": 1, "yes": 1, "0": 0, "false": 0, "no": 0, "1.0": 1, "0.0": 0}


def read_csv_columns(path: Path, asked: Specification, *, most: int | None = None) -> dict[str, list[Value]]:
    """The columns of a specification, from the first `most` rows of a table; an empty cell is missing."""
    if not path.is_file():
        raise ConfigError(field="csv", value=str(path), remedy="there is no such file")
    table = read_rows(path)
    places = {name: table.column(name) for name in asked.names}
    rows = [cells for _, cells in islice(table.rows, most)]
    return {name: _values(asked, name, [row[place] for row in rows]) for name, place in places.items()}


def _values(asked: Specification, name: str, cells: Sequence[Value]) -> list[Value]:
    kinds = {type(field) for column, field in asked.used.values() if column == name}

    def value(cell: Value) -> Value:
        if not isinstance(cell, str):
            return cell
        if BooleanField in kinds:
            return YES_NO.get(cell.strip().lower(), cell or None)
        if cell and kinds & {NumberField, IntegerField}:
            with suppress(DataError):
                return AS_USUAL.number(cell.strip())
        return cell or None

    return [value(cell) for cell in cells]
