"""Tables with a client column and a label column: CSV, data frames, or Parquet where pyarrow is installed."""

import math
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from incrowd._random import SeededRandomness
from incrowd.data.clients import Clients, PublicFacts, TestClients, check_names, check_stated, hold_out_clients
from incrowd.data.columns import Columns
from incrowd.data.examples import Examples, Labels
from incrowd.data.fingerprints import table_cells
from incrowd.data.partition import by_column
from incrowd.data.reading import Frame, Reading, Rows, TableSource, as_float32, read_rows, text_of
from incrowd.data.schema import Column, EncodedCell, Text
from incrowd.errors import ConfigError, DataError

Encoder = Callable[[int, Any], EncodedCell]
"""Takes a row's place and a cell, and gives the numbers that it becomes."""

_REMEMBERED = 10_000  # different texts of a column whose numbers are kept: most columns of a table have few


def load_table(
    source: Path | str | Frame,
    *,
    columns: Columns,
    test_clients: TestClients = "separate",
    holdout_clients: float | None = None,
    names: tuple[str, ...] = (),
    **stated: Unpack[PublicFacts],
) -> Clients:
    """A federated data set with one client for each distinct value of the client column, in the order of their names.

    ``name``, ``clients`` and ``public`` are as in `PublicFacts`; a file has a name already. ``test`` is a table that
    the server holds; its columns are found by name, wherever they are, and it may have others. ``names`` are those of
    the clients, where they are parties that everybody knows. With ``holdout_clients``, that share of the clients of a
    ``public`` table do not train: their examples are the test set.

    Guarantee: of a table that is not ``public``, no error shows a client's name, nor how many there are.

    Edge cases: a column that a stated schema does not know is a `DataError`. Without ``clients`` they are counted,
    which is for tables that hide nobody. A test client who also trains is a `DataError`, unless ``test_clients`` is
    "shared" and the table ``public``.
    """
    check_stated(stated)
    public, clients, test = stated.get("public", False), stated.get("clients"), stated.get("test")
    _check_holdout(holdout_clients, public=public, test=test)
    table = read_rows(_source(source), columns.reading)
    _check_all_stated(table, columns)
    columns = columns.resolved(table.header)
    examples, owners = _read(table, columns)
    held = None
    if test is not None:
        held, theirs = read_table(test, columns)
        if test_clients == "separate":
            _check_separate(owners, theirs, column=columns.client, test=table_name(test), public=public)
    present = tuple(np.unique(owners).tolist())
    if names:
        check_names(names, actual=present, public=public)
    cells = None
    if not isinstance(source, str | Path):  # taken now: a frame may be another one later
        cells = [
            table_cells(_source(each), columns.client, columns.reading) for each in (source, test) if each is not None
        ]
    data = Clients(
        examples=examples,
        partition=by_column(owners),
        test=held,
        name=stated.get("name", _name_of_file(source)),
        declared=None if holdout_clients is not None else clients,
        public=public,
        owners=present,
        names=names,
        test_clients=test_clients,
        table=columns,
        file=Path(source) if isinstance(source, str | Path) else None,
        cells=cells[0] if cells else None,
        test_cells=cells[-1] if cells and test is not None else None,
    )
    if holdout_clients is None:
        return data
    # Which ones they are depends on nothing that differs between runs, so that runs are compared on the same.
    return replace(hold_out_clients(data, share=holdout_clients, randomness=SeededRandomness(seed=0)), declared=clients)


def read_table(source: Path | str | Frame, columns: Columns) -> tuple[Examples, NDArray[np.str_]]:
    """The examples of a table, and the client of each.

    Guarantee: what an example becomes depends on its own row, and on what is stated, alone.

    Edge cases: a missing column, a name twice in the header, a row with more or fewer cells, a value that is missing
    and nothing stands for it, one that is not of the stated kind, range or levels, one that float32 would change, a
    label that is not of ``classes``, broken quotes, another encoding than the stated: `DataError`, which names file,
    line and column. Blank lines are skipped.
    """
    table = read_rows(_source(source), columns.reading)
    return _read(table, columns.resolved(table.header))


def read_features(source: Path | str | Frame, columns: Columns) -> NDArray[np.float32]:
    """The features alone, of a table that needs neither clients nor labels: what a model is to say something about."""
    table = read_rows(_source(source), columns.reading)
    encoders = _encoders(table, columns.resolved(table.header))
    numbers, rows = array("f"), 0
    for place, cells in table.rows:
        rows += 1
        for at, encode in encoders:
            numbers.extend(encode(place, cells[at]))
    return _as_features(table, numbers, rows)


def row_ids(source: Path | str | Frame, columns: Columns) -> tuple[str, ...]:
    """A name for each row: from a column `id`, or else the client column, or else the row's number from 1.

    Edge cases: a column that is learnt from names no rows.
    """
    table = read_rows(_source(source), columns.reading)
    named = [name for name in table.header if name.casefold() == "id" or (name and name == columns.client)]
    free = [name for name in named if name not in columns.features]
    if not free:
        return tuple(str(number) for number, _ in enumerate(table.rows, start=1))
    at = table.column(min(free, key=lambda name: name == columns.client))
    return tuple("" if cells[at] is None else str(cells[at]) for _, cells in table.rows)


def table_name(source: Path | str | Frame) -> str:
    """What a report calls a table."""
    return Path(source).name if isinstance(source, Path | str) else "data frame"


def _name_of_file(source: Path | str | Frame) -> str:
    return Path(source).name if isinstance(source, Path | str) else ""


def _source(source: Path | str | Frame) -> TableSource:
    return Path(source) if isinstance(source, str) else source


def _read(table: Rows, columns: Columns) -> tuple[Examples, NDArray[np.str_]]:
    """The examples of an open table, and the client of each; its features are named. Without a client column they are
    all one client's, without a name.
    """
    client, label = table.column(columns.client) if columns.client else None, table.column(columns.label)
    encoders = _encoders(table, columns)
    numbers, labels, clients = array("f"), array("d"), []
    for place, cells in table.rows:
        for at, encode in encoders:
            numbers.extend(encode(place, cells[at]))
        labels.append(_label(table, place, cells[label], columns))
        clients.append("" if client is None else _client(table, place, cells[client], columns))
    features = _as_features(table, numbers, len(clients))
    as_labels: Labels = np.array(labels, np.float32) if columns.classes is None else np.array(labels, np.int64)
    return Examples(features=features, labels=as_labels, classes=columns.number_of_classes), np.array(clients)


def _encoders(table: Rows, columns: Columns) -> list[tuple[int, Encoder]]:
    """For each feature, where it is in a row, and what makes numbers of it."""
    if not columns.numbers():
        raise DataError(f"{table.path}: names no column to learn from, beside client and label; add one")
    return [
        (table.column(name), _encoder(table, name, columns.meaning(name), columns.reading)) for name in columns.features
    ]


def _encoder(table: Rows, name: str, column: Column, reading: Reading) -> Encoder:
    seen: dict[str, EncodedCell] = {}
    remembered = 0 if isinstance(column, Text) else _REMEMBERED  # texts are many numbers, and mostly different

    def encode(place: int, cell: Any) -> EncodedCell:
        values = seen.get(cell) if isinstance(cell, str) else None
        if values is None:
            try:
                values = column.encoded(cell, reading)
            except DataError as why:
                raise _misfit(table, place, name, cell, why) from None
            if isinstance(cell, str) and len(seen) < remembered:
                seen[cell] = values
        return values

    return encode


def _as_features(table: Rows, numbers: "array[float]", rows: int) -> NDArray[np.float32]:
    if not rows:
        raise DataError(f"{table.path}: has a header and no rows; give at least one")
    return np.frombuffer(numbers, np.float32).reshape(rows, -1)


def _misfit(table: Rows, place: int, name: str, cell: Any, why: DataError) -> DataError:
    return DataError(f"{table.place(place)}: {name} = {cell!r} {why}")


def _label(table: Rows, place: int, cell: Any, columns: Columns) -> float:
    try:
        return _labelled(columns.reading.cleaned(cell), columns)
    except DataError as why:
        raise _misfit(table, place, columns.label, cell, why) from None


def _labelled(cell: Any, columns: Columns) -> float:
    classes, reading = columns.classes, columns.reading
    if isinstance(classes, tuple):
        if (reading.is_missing(cell) and cell not in classes) or text_of(cell) not in classes:
            raise DataError(f"is no stated class; give one of {', '.join(classes)}")
        return classes.index(text_of(cell))
    if classes is None:
        label = as_float32(_number(reading, cell))
        low, high = columns.label_range or (-math.inf, math.inf)
        if not low <= label <= high:
            raise DataError(f"is outside of the stated range of labels, {low:g} to {high:g}")
        return label
    try:
        number = reading.number(cell)
    except DataError:
        number = -1
    if number not in range(classes):
        raise DataError(f"is no stated class; give a whole number from 0 to {classes - 1}")
    return number


def _number(reading: Reading, cell: Any) -> float:
    """A label that is a number. Edge cases: a text: `DataError`, which says that its classes may be stated."""
    try:
        return reading.number(cell)
    except DataError as error:
        if isinstance(cell, str) and cell.strip().isalpha():
            raise DataError(
                'is not a number; if the labels are texts, state them in order, say classes = ["no", "yes"]'
            ) from error
        raise


def _client(table: Rows, place: int, cell: Any, columns: Columns) -> str:
    try:
        cell = columns.reading.cleaned(cell)
        if columns.reading.is_missing(cell):
            raise DataError("says that it is missing; say whose row it is, or drop it")
        return text_of(cell)
    except DataError as why:
        raise _misfit(table, place, columns.client, cell, why) from None


def _check_all_stated(table: Rows, columns: Columns) -> None:
    """Refuse a column that would not be learnt although nobody said so."""
    if not columns.schema or columns.features:
        return
    for name in (columns.client, columns.label, *columns.resolved(()).features):
        if name:
            table.column(name)  # a column that is missing is the likelier mistake
    for name in table.header:
        if name not in {*columns.schema, columns.client, columns.label}:
            raise DataError(
                f"{table.path}: the column {name!r} is not stated, so nothing would be learnt from it; "
                f'state what it means in columns, or say {name} = "ignore"'
            )


def _check_holdout(share: float | None, *, public: bool, test: object) -> None:
    if share is None:
        return
    if not public:
        remedy = "a share of private clients tells how many there are: leave it out, or say public = true"
        raise ConfigError(field="holdout_clients", value=share, remedy=remedy)
    if test is not None:
        remedy = "there is a test table already: leave one of the two out"
        raise ConfigError(field="holdout_clients", value=share, remedy=remedy)


def _check_separate(
    training: NDArray[np.str_], held: NDArray[np.str_], *, column: str, test: str, public: bool
) -> None:
    """Refuse a test table of clients who also train: it is neither public nor unseen."""
    both = np.intersect1d(training, held)
    if both.size:
        who = f" ({', '.join(both[:3].tolist())}{', ...' if both.size > 3 else ''})" if public else ""
        raise DataError(
            f"{test}: its column {column!r} has clients who also train{who}, so it is neither public nor unseen; "
            + ('take them out, or say test_clients = "shared"' if public else "take them out")
        )
