"""A table in a file as a device's table: cells become numbers where a field of the specification is one."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from incrowd.data.reading import AS_USUAL, read_rows
from incrowd.drawdiscard.fields import BooleanField, IntegerField, NumberField
from incrowd.drawdiscard.source import Value
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import ConfigError, DataError

YES_NO = {"1": 1, "true": 1, "yes": 1, "0": 0, "false": 0, "no": 0, "1.0": 1, "0.0": 0}


def read_csv_columns(path: Path, asked: Specification, *, most: int | None = None) -> dict[str, list[Value]]:
    """The columns that a specification needs, of the first `most` rows; an empty cell is missing.

    Edge cases: a missing file is a `ConfigError`, and a table that cannot be read or lacks a column a `DataError`. A
    cell that does not fit its field stays text.
    """
    if not path.is_file():
        raise ConfigError(field="csv", value=str(path), remedy="there is no such file")
    table = read_rows(path)
    places = {name: table.column(name) for name in asked.names}
    rows = [cells for _, cells in islice(table.rows, most)]
    return {name: _values(asked, name, [row[place] for row in rows]) for name, place in places.items()}


def _values(asked: Specification, name: str, cells: Sequence[Value]) -> list[Value]:
    kinds = [field for column, field in asked.used.values() if column == name]
    known = [cell if cell not in ("", None) else None for cell in cells]
    if any(isinstance(field, BooleanField) for field in kinds):
        return [YES_NO.get(cell.strip().lower(), cell) if isinstance(cell, str) else cell for cell in known]
    if any(isinstance(field, NumberField | IntegerField) for field in kinds):
        return [_number(cell) if isinstance(cell, str) else cell for cell in known]
    return known


def _number(cell: str) -> Value:
    try:
        return AS_USUAL.number(cell.strip())
    except DataError:
        return cell
