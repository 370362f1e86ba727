"""Tables with a client column and a label column: CSV, or Parquet where pyarrow is installed."""

import math
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from incrowd import _validate
from incrowd.data._rows import Cells, Rows, read_rows
from incrowd.data.clients import Clients
from incrowd.data.dealing import by_column
from incrowd.data.examples import Examples, Labels
from incrowd.errors import ConfigError, DataError

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What the columns of a table mean.

    ``features`` names the columns to learn from, empty for all others. ``classes`` is a number, for labels 0 ..
    classes - 1; the labels' names in order; or None, for regression. It is stated, not collected from the data,
    because it is public.
    """

    client: str
    label: str
    features: tuple[str, ...] = ()
    classes: int | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.classes, int):
            _validate.count(classes=self.classes)
        elif self.classes is not None and (not self.classes or len(set(self.classes)) != len(self.classes)):
            raise ConfigError(field="classes", value=self.classes, remedy="give each label's name once")
        if len({self.client, self.label, *self.features}) != 2 + len(self.features):
            raise ConfigError(
                field="features", value=self.features, remedy="name each column once, neither client nor label"
            )

    @property
    def number_of_classes(self) -> int | None:
        """The number of classes, None for regression."""
        return len(self.classes) if isinstance(self.classes, tuple) else self.classes


def load_table(
    path: Path | str,
    *,
    columns: Columns,
    test: Path | str | None = None,
    clients: int | None = None,
    public: bool = False,
) -> Clients:
    """A federated data set with one client for each distinct value of the client column, in the order of their names.

    ``test`` is a table with the same columns that the server holds; its client column is not used. ``clients`` is the
    public number of clients, declared by whoever answers for the table.

    Edge cases: without it they are counted, which is for tables that hide nobody.
    """
    examples, names = read_table(Path(path), columns)
    held = None if test is None else read_table(Path(test), columns)[0]
    return Clients(
        examples=examples,
        partition=by_column(names),
        test=held,
        name=Path(path).name,
        declared=clients,
        public=public,
        owners=tuple(map(str, np.unique(names))),
    )


def read_table(path: Path, columns: Columns) -> tuple[Examples, NDArray[np.str_]]:
    """The examples of a table, and the client of each.

    Edge cases: a missing column, a row with more or fewer cells, an empty cell, a feature that is not a finite
    float32 number, a label that is not of ``classes``, broken quotes, another encoding than UTF-8: `DataError`, which
    names file, line and column. Blank lines are skipped.
    """
    table = read_rows(path)
    client, label = table.column(columns.client), table.column(columns.label)
    names = columns.features or tuple(name for name in table.header if name not in (columns.client, columns.label))
    positions = [table.column(name) for name in names]
    if not positions:
        raise DataError(
            f"{path}: has no columns beside {columns.client!r} and {columns.label!r} to learn from; add one"
        )
    numbers, places, labels, clients = array("f"), array("q"), array("d"), []
    for place, cells in table.rows:
        numbers.extend(_features(table, place, cells, positions))
        labels.append(_label_or_error(table, place, cells[label], columns))
        clients.append(_client(table, place, cells[client], columns.client))
        places.append(place)
    if not places:
        raise DataError(f"{path}: has a header and no rows; give at least one")
    features = np.frombuffer(numbers, np.float32).reshape(len(places), len(names))
    _check_finite(table, features, places, names)
    as_labels: Labels = np.array(labels, np.float32) if columns.classes is None else np.array(labels, np.int64)
    return Examples(features=features, labels=as_labels, classes=columns.number_of_classes), np.array(clients)


def _features(table: Rows, place: int, cells: Cells, positions: list[int]) -> list[float]:
    try:
        return [float(cells[i]) for i in positions]
    except (TypeError, ValueError):
        bad = next(i for i in positions if math.isnan(_number(cells[i])))
        raise DataError(
            f"{table.place(place)}: {table.header[bad]} = {cells[bad]!r} is not a number; fill it in or drop the row"
        ) from None


def _number(cell: Any) -> float:
    """The cell as a number, NaN if it is none."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan


def _label(cell: Any, classes: int | tuple[str, ...] | None) -> float:
    """The cell as a label, NaN if it is none."""
    if isinstance(classes, tuple):
        return classes.index(str(cell)) if str(cell) in classes else math.nan
    number = _number(cell)
    if classes is None:
        return number if abs(number) <= _LARGEST else math.nan
    return number if number.is_integer() and 0 <= number < classes else math.nan


def _label_or_error(table: Rows, place: int, cell: Any, columns: Columns) -> float:
    label = _label(cell, columns.classes)
    if math.isnan(label):
        if isinstance(columns.classes, tuple):
            expected = "one of " + ", ".join(columns.classes)
        elif columns.classes is None:
            expected = "a finite number"
        else:
            expected = f"a whole number from 0 to {columns.classes - 1}"
        raise DataError(f"{table.place(place)}: {columns.label} = {cell!r}; give {expected}")
    return label


def _client(table: Rows, place: int, cell: Any, name: str) -> str:
    if cell is None or cell == "":
        raise DataError(f"{table.place(place)}: {name} is empty; say whose row it is, or drop it")
    return str(cell)


def _check_finite(table: Rows, features: NDArray[np.float32], places: "array[int]", names: tuple[str, ...]) -> None:
    if np.isfinite(features.min()) and np.isfinite(features.max()):
        return
    row, column = np.argwhere(~np.isfinite(features))[0]
    raise DataError(
        f"{table.place(places[row])}: {names[column]} = {features[row, column]}; "
        "give finite float32 numbers, or drop the row"
    )
