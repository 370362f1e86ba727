"""Encode tables, in files or in memory, as examples."""

import math
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from incrowd.data.columns import Columns
from incrowd.data.examples import Examples, Labels
from incrowd.data.reading import Reading, Rows, TableSource, as_float32, read_rows, text_of
from incrowd.data.schema import Column, EncodedCell, Text
from incrowd.errors import DataError

Encoder = Callable[[int, Any], EncodedCell]
"""A function of a row's place and a cell, which returns the cell's numbers."""

_CACHED = 10_000  # different texts of a column whose numbers are kept


def read_stated_table(source: TableSource, columns: Columns) -> tuple[Examples, NDArray[np.str_], Columns]:
    """See `read_table`; also the columns with named features."""
    table = read_rows(_source(source), columns.reading)
    if columns.schema and not columns.features:
        for name in (columns.client, columns.label, *columns.resolved(()).features):
            if name:
                table.column(name)  # a column that is missing is the likelier mistake
        for name in table.header:
            if name not in {*columns.schema, columns.client, columns.label}:
                problem = f"{table.path}: the column {name!r} is not stated, so nothing would be learnt from it"
                raise DataError(f'{problem}; state what it means in columns, or say {name} = "ignore"')
    columns = columns.resolved(table.header)
    return *_read(table, columns), columns


def read_table(source: TableSource, columns: Columns) -> tuple[Examples, NDArray[np.str_]]:
    """The examples of a table, and the client of each.

    Guarantee: an example follows from its row and the schema alone.
    """
    table = read_rows(_source(source), columns.reading)
    return _read(table, columns.resolved(table.header))


def read_features(source: TableSource, columns: Columns) -> NDArray[np.float32]:
    """The features alone, of a table that needs neither clients nor labels."""
    table = read_rows(_source(source), columns.reading)
    encoders = _encoders(table, columns.resolved(table.header))
    numbers, rows = array("f"), 0
    for place, cells in table.rows:
        rows += 1
        for at, encode in encoders:
            numbers.extend(encode(place, cells[at]))
    return _as_features(table, numbers, rows)


def row_ids(source: TableSource, columns: Columns) -> tuple[str, ...]:
    """A name for each row: its cell in a column `id` or in the client column, or its number from 1."""
    table = read_rows(_source(source), columns.reading)
    named = [name for name in table.header if name.casefold() == "id" or (name and name == columns.client)]
    free = [name for name in named if name not in columns.features]
    if not free:
        return tuple(str(number) for number, _ in enumerate(table.rows, start=1))
    at = table.column(min(free, key=lambda name: name == columns.client))
    return tuple("" if cells[at] is None else str(cells[at]) for _, cells in table.rows)


def _source(source: TableSource) -> TableSource:
    return Path(source) if isinstance(source, str) else source


def _read(table: Rows, columns: Columns) -> tuple[Examples, NDArray[np.str_]]:
    """The examples of an open table with named features, and the client of each, "" without a client column."""
    client, label = table.column(columns.client) if columns.client else None, table.column(columns.label)
    encoders = _encoders(table, columns)
    numbers, labels, clients = array("f"), array("d"), []
    for place, cells in table.rows:
        for at, encode in encoders:
            numbers.extend(encode(place, cells[at]))
        labels.append(_value(table, place, columns.label, cells[label], columns))
        clients.append("" if client is None else _value(table, place, columns.client, cells[client], columns))
    features = _as_features(table, numbers, len(clients))
    as_labels: Labels = np.array(labels, np.float32) if columns.classes is None else np.array(labels, np.int64)
    return Examples(features=features, labels=as_labels, classes=columns.number_of_classes), np.array(clients)


def _value(table: Rows, place: int, name: str | None, cell: Any, columns: Columns) -> Any:
    """The label, or the client, in a cell."""
    try:
        cleaned = columns.reading.cleaned(cell)
        return _label(cleaned, columns) if name == columns.label else _client(cleaned, columns)
    except DataError as why:
        raise _misfit(table, place, str(name), cell, why) from None


def _encoders(table: Rows, columns: Columns) -> list[tuple[int, Encoder]]:
    """The place in a row and the encoder of each feature."""
    if not columns.numbers():
        raise DataError(f"{table.path}: names no column to learn from, beside client and label; add one")
    return [
        (table.column(name), _encoder(table, name, columns.meaning(name), columns.reading)) for name in columns.features
    ]


def _encoder(table: Rows, name: str, column: Column, reading: Reading) -> Encoder:
    seen: dict[str, EncodedCell] = {}
    most = 0 if isinstance(column, Text) else _CACHED  # texts are many numbers, and mostly different

    def encode(place: int, cell: Any) -> EncodedCell:
        values = seen.get(cell) if isinstance(cell, str) else None
        if values is None:
            try:
                values = column.encoded(cell, reading)
            except DataError as why:
                raise _misfit(table, place, name, cell, why) from None
            if isinstance(cell, str) and len(seen) < most:
                seen[cell] = values
        return values

    return encode


def _as_features(table: Rows, numbers: "array[float]", rows: int) -> NDArray[np.float32]:
    if not rows:
        raise DataError(f"{table.path}: has a header and no rows; give at least one")
    return np.frombuffer(numbers, np.float32).reshape(rows, -1)


def _misfit(table: Rows, place: int, name: str, cell: Any, why: DataError) -> DataError:
    return DataError(f"{table.place(place)}: {name} = {cell!r} {why}")


def _label(cell: Any, columns: Columns) -> float:
    classes, reading = columns.classes, columns.reading
    if isinstance(classes, tuple):
        if (reading.is_missing(cell) and cell not in classes) or text_of(cell) not in classes:
            raise DataError(f"is no stated class; give one of {', '.join(classes)}")
        return classes.index(text_of(cell))
    try:
        number = reading.number(cell)
    except DataError:
        if classes is None and isinstance(cell, str) and cell.strip().isalpha():
            remedy = 'if the labels are texts, state them in order, say classes = ["no", "yes"]'
            raise DataError(f"is not a number; {remedy}") from None
        if classes is None:
            raise
        number = -1
    if classes is not None:
        if number not in range(classes):
            raise DataError(f"is no stated class; give a whole number from 0 to {classes - 1}")
        return number
    label, (low, high) = as_float32(number), columns.label_range or (-math.inf, math.inf)
    if not low <= label <= high:
        raise DataError(f"is outside of the stated range of labels, {low:g} to {high:g}")
    return label


def _client(cell: Any, columns: Columns) -> str:
    if columns.reading.is_missing(cell):
        raise DataError("says that it is missing; say whose row it is, or drop it")
    return text_of(cell)


def check_separate(
    training: NDArray[np.str_], held: NDArray[np.str_], *, column: str, test: TableSource, public: bool
) -> None:
    """Refuse a test table of clients who also train: it is neither public nor unseen."""
    both = np.intersect1d(training, held)
    if both.size:
        name = Path(test).name if isinstance(test, str | Path) else "data frame"
        who = f" ({', '.join(both[:3].tolist())}{', ...' if both.size > 3 else ''})" if public else ""
        problem = f"{name}: its column {column!r} has clients who also train{who}, so it is neither public nor unseen"
        shared = ', or say test_clients = "shared"' if public else ""
        raise DataError(f"{problem}; take them out{shared}")
