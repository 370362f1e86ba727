"""A CSV file as a device's table: what reads as a number is one where a specification's field wants one."""

import csv
import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from incrowd.drawdiscard.fields import BooleanField, IntegerField, NumberField
from incrowd.drawdiscard.source import Value
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import ConfigError, DataError

YES_NO = {"1": 1, "true": 1, "yes": 1, "0": 0, "false": 0, "no": 0, "1.0": 1, "0.0": 0}


def read_csv_columns(path: Path, asked: Specification, *, most: int | None = None) -> dict[str, list[Value]]:
    """The columns that a specification needs, of the first `most` rows.

    Where a field wants a number, text that reads as one is one; where one wants yes or no, ``yes``, ``true`` and
    ``1`` are 1, ``no``, ``false`` and ``0`` are 0. All other text stays text. An empty cell is missing.

    Edge cases: a file that is not there is refused by its name (`ConfigError`); one that is no UTF-8 table with a
    header, has a row of another length or lacks a column raises `DataError`.
    """
    if not path.is_file():
        raise ConfigError(field="csv", value=str(path), remedy="there is no such file")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            rows = list(islice(filter(None, reader), most))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is no CSV file in UTF-8: {error}") from error
    for name in asked.names:
        if header.count(name) != 1:
            found = "no column" if name not in header else "several columns"
            raise DataError(f"{path} has {found} {name!r}: the specification needs {', '.join(asked.names)}")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise DataError(f"{path}, row {number}: {len(row)} cells under a header of {len(header)}")
    places = {name: header.index(name) for name in asked.names}
    return {name: _values(asked, name, [row[place] for row in rows]) for name, place in places.items()}


def _values(asked: Specification, name: str, cells: Sequence[str]) -> list[Value]:
    kinds = [field for column, field in asked.used.values() if column == name]
    if any(isinstance(field, BooleanField) for field in kinds):
        return [YES_NO.get(cell.strip().lower(), cell) if cell else None for cell in cells]
    if any(isinstance(field, NumberField | IntegerField) for field in kinds):
        return [_number(cell) if cell else None for cell in cells]
    return [cell or None for cell in cells]


def _number(cell: str) -> Value:
    """A number, if it reads as one; text that is none stays, for the owner to be told."""
    try:
        return int(cell)
    except ValueError:
        pass
    try:
        number = float(cell)
    except ValueError:
        return cell
    return number if math.isfinite(number) else cell
