"""Read tables: CSV, Parquet, or frames in memory, and the texts and numbers in their cells."""

import csv
import gzip
import importlib
import io
import math
import re
import struct
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property, lru_cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import UUID

import numpy as np

from incrowd.errors import ConfigError, DataError

Blanks = Literal["refuse", "strip", "keep"]
Cells = Sequence[Any]
TableSource = Any
"""A path, or a table in memory: a pandas or Polars frame, an Arrow table, a Hugging Face data set, rows as dicts, or a
dict of columns."""

MISSING = ("", "NA", "N/A", "NaN", "null", "None")
"""The texts that mark a missing value, in any case."""

DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
_CHOICES: dict[str, tuple[str | None, ...]] = {
    "delimiter": tuple(DELIMITERS),
    "decimal": (".", ","),
    "thousands": (None, ".", ",", "'", " ", "_"),
    "encoding": ("utf-8", "latin-1", "cp1252"),
    "blanks": ("refuse", "strip", "keep"),
}
_EXACT = 2**53  # a float64 holds whole numbers below this exactly
_HALF_STEP = 2.0**-24  # the largest relative rounding error of a normal float32
_LONGEST = 400  # digits: a longer number is slow to read
_BOM = b"\xef\xbb\xbf"

Read = TypeVar("Read")
_READ: ContextVar[dict[Hashable, Any] | None] = ContextVar("files of this run", default=None)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The format of a table's cells. You state it; incrowd never infers it from the rows.

    `thousands` is the mark between groups of three digits. `blanks` around a cell are an error ("refuse"), dropped
    ("strip") or part of the cell ("keep"). `missing_texts` mark a missing value, as None, NaN and NaT do.
    """

    delimiter: str = ","
    decimal: str = "."
    thousands: str | None = None
    encoding: str = "utf-8"
    blanks: Blanks = "refuse"
    missing_texts: tuple[str, ...] = MISSING

    def __post_init__(self) -> None:
        for field, choices in _CHOICES.items():
            if getattr(self, field) not in choices:
                remedy = f"choose from {', '.join(repr(choice) for choice in choices if choice is not None)}"
                raise ConfigError(field=field, value=getattr(self, field), remedy=remedy)
        if self.thousands == self.decimal:
            remedy = "the decimal mark is the same: choose another for one of them"
            raise ConfigError(field="thousands", value=self.thousands, remedy=remedy)

    def is_missing(self, cell: Any) -> bool:
        """Whether a cell marks a missing value."""
        if isinstance(cell, str):
            return cell.casefold() in self._missing
        try:
            return cell is None or bool(cell != cell)  # NaN and NaT differ from themselves
        except TypeError:  # pandas.NA has no truth value
            return True

    def cleaned(self, cell: Any) -> Any:
        """A cell without the blanks around it."""
        if self.blanks == "keep" or not isinstance(cell, str):
            return cell
        bare = cell.strip()
        if self.blanks == "refuse" and bare != cell:
            raise DataError('has blanks around it; drop them, or state blanks = "strip" or "keep"')
        return bare

    def number(self, cell: Any) -> int | float:
        """The number in a cell, exact if it is whole."""
        if isinstance(cell, bool):
            raise DataError("is true or false, not a number; state that it is yes/no, or mend the row")
        if isinstance(cell, Integral):
            return int(cell)
        if isinstance(cell, Real | Decimal) and math.isfinite(cell):
            return int(cell) if isinstance(cell, Decimal) and cell == int(cell) else float(cell)
        if not isinstance(cell, str):
            raise DataError("is not a number; fill it in or drop the row")
        plain = self._plain(cell)
        if plain is None:
            raise DataError(f"is not a number; {self._remedy(cell)}")
        if "e" not in plain and "." not in plain:
            return int(plain)
        if not math.isfinite(float(plain)):
            raise DataError("is beyond every float32; give finite numbers, or drop the row")
        return float(plain)

    def plain(self, cell: Any) -> Any:
        """A number with the usual marks; any other cell unchanged."""
        if not isinstance(cell, str) or (self.decimal, self.thousands) == (".", None):
            return cell
        return self._plain(cell) or cell

    def _plain(self, text: str) -> str | None:
        match = _number_pattern(self.decimal, self.thousands).fullmatch(text)
        if match is None or not (match["whole"] or match["fraction"]) or len(text) > _LONGEST:
            return None
        whole, fraction, exponent = (match[name] or "" for name in ("whole", "fraction", "exponent"))
        whole = whole.replace(self.thousands or ",", "") or "0"
        fraction = fraction if exponent else fraction.rstrip("0")  # 12.00 is a whole number
        return f"{match['sign']}{whole}{'.' if fraction else ''}{fraction}{exponent.lower()}"

    def _remedy(self, text: str) -> str:
        other = "," if self.decimal == "." else "."
        if other in text and any(
            _number_pattern(*marks).fullmatch(text) for marks in ((other, None), (self.decimal, other))
        ):
            return f"state what the {other!r} in it is: decimal or thousands"
        if any(map(str.isalpha, text)):
            return "state what its column is (a text, levels, yes/no), or fill it in or drop the row"
        return "fill it in or drop the row"

    @cached_property
    def _missing(self) -> frozenset[str]:
        return frozenset(text.casefold() for text in self.missing_texts)


AS_USUAL = Reading()
"""Commas between cells, points in numbers, UTF-8."""


@lru_cache
def _number_pattern(decimal: str, thousands: str | None) -> re.Pattern[str]:
    groups = "" if thousands is None else rf"|\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+"
    rest = rf"(?:{re.escape(decimal)}(?P<fraction>\d*))?(?P<exponent>[eE][+-]?\d{{1,4}})?"
    return re.compile(rf"(?P<sign>[+-]?)(?P<whole>\d+{groups})?{rest}", re.ASCII)


def text_of(cell: Any) -> str:
    """A cell as text, equal in tables of every kind: 7 and 7.0 become "7"; the texts "007" and "7.0" stay."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool | np.bool_):
        return "true" if cell else "false"
    if isinstance(cell, Integral):
        return str(int(cell))
    if isinstance(cell, Real | Decimal):
        if float(cell).is_integer() and abs(float(cell)) < _EXACT:
            return str(int(cell) if isinstance(cell, Decimal) else int(float(cell)))
        raise DataError("is a number with a fraction, or too large to be exact; give texts or whole numbers")
    if isinstance(cell, datetime):
        return (cell.date() if cell.time() == datetime.min.time() and cell.tzinfo is None else cell).isoformat()
    if isinstance(cell, date | UUID):
        return str(cell)
    raise DataError(f"is a {type(cell).__name__}; give texts or whole numbers")


def as_float32(number: float) -> float:
    """A number that float32 holds."""
    try:
        (nearest,) = struct.unpack("<f", struct.pack("<f", number))
    except (OverflowError, struct.error):
        raise DataError("is beyond every float32; give finite numbers, or drop the row") from None
    if nearest == number:
        return float(nearest)
    if isinstance(number, int) or number.is_integer():
        raise DataError("is a whole number beyond 2^24 that float32 rounds; state a range, or leave the column out")
    if abs(nearest - number) > _HALF_STEP * abs(number):
        raise DataError("is nearer to 0 than a float32 can be; state a range, or leave the column out")
    return float(nearest)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A header and its rows. `unit` is "line" for CSV files and "row" for other tables."""

    path: Path | str
    unit: str
    header: tuple[str, ...]
    rows: Iterator[tuple[int, Cells]]

    def __post_init__(self) -> None:
        check_header(self.path, self.header)

    def place(self, number: int) -> str:
        """The name of a row in errors."""
        return f"{self.path}, {self.unit} {number}"

    def column(self, name: str) -> int:
        """The position of a column."""
        if name not in self.header:
            remedy = f"name one of {', '.join(self.header)}"
            if len(self.header) == 1 and (marks := [mark for mark in DELIMITERS if mark in self.header[0]]):
                remedy = f"its header is one cell with {DELIMITERS[marks[0]]} in it: state delimiter = {marks[0]!r}"
            raise DataError(f"{self.path} has no column {name!r}: {remedy}")
        return self.header.index(name)


def check_header(path: Path | str, header: Sequence[str]) -> None:
    """Refuse a name that two columns have."""
    twice = next((name for place, name in enumerate(header) if name in header[:place]), None)
    if twice is not None:
        raise DataError(f"{path} has more than one column {twice!r}: give each a name of its own")


def read_rows(source: TableSource, reading: Reading = AS_USUAL) -> Rows:
    """Open a table: in memory, or a file that ends in .csv, .csv.gz or .parquet."""
    if not isinstance(source, Path):
        header, cells = _columns_of(source)
        for name in header:
            if not isinstance(name, str):
                raise DataError(f"the data frame has a column {name!r}: give each a text as its name")
        return Rows(path="data frame", unit="row", header=header, rows=enumerate(cells, start=1))
    if source.name.endswith((".csv", ".csv.gz")):
        lines = _csv_lines(source, reading)
        _, first = next(lines, (0, []))
        if not first:
            raise DataError(f"{source}: is empty; give a header and rows")
        return Rows(path=source, unit="line", header=tuple(first), rows=_as_wide(lines, source, len(first)))
    if source.name.endswith(".parquet"):
        table = parquet(source, lambda module: module.read_table(io.BytesIO(content(source))))
        header, cells = _columns_of(table)
        return Rows(path=source, unit="row", header=header, rows=enumerate(cells, start=1))
    raise DataError(f"{source}: unknown kind of table; give a file that ends in .csv, .csv.gz or .parquet")


def _columns_of(table: Any) -> tuple[tuple[str, ...], Iterable[Cells]]:
    """The header and the rows of a table in memory."""
    if isinstance(table, Mapping):
        return tuple(table), zip(*table.values(), strict=True)
    if hasattr(table, "columns") and hasattr(table, "itertuples"):  # pandas
        return tuple(table.columns), table.itertuples(index=False, name=None)
    if hasattr(table, "columns") and hasattr(table, "iter_rows"):  # Polars
        return tuple(table.columns), table.iter_rows()
    if hasattr(table, "column_names") and hasattr(table, "to_pylist"):  # Arrow
        return tuple(table.column_names), zip(*(column.to_pylist() for column in table.columns), strict=True)
    if hasattr(table, "column_names"):  # Hugging Face
        return tuple(table.column_names), ([row[name] for name in table.column_names] for row in table)
    if isinstance(table, Sequence) and table and all(isinstance(row, Mapping) for row in table):
        header = tuple(table[0])
        for place, row in enumerate(table, start=1):
            if row.keys() != table[0].keys():
                raise DataError(f"row {place} has the keys {', '.join(map(str, row))}: give every row the same keys")
        return header, ([row[name] for name in header] for row in table)
    raise DataError(f"{type(table).__name__} is no table: give a path, a data frame or rows as dicts")


def _csv_lines(path: Path, reading: Reading) -> Iterator[tuple[int, list[str]]]:
    unread: io.BytesIO | gzip.GzipFile = io.BytesIO(content(path))
    number = 0
    try:
        if path.name.endswith(".gz"):
            unread = gzip.GzipFile(fileobj=unread)
        if reading.encoding != "utf-8" and unread.read(len(_BOM)) == _BOM:
            raise DataError(f"{path}: begins with the mark of UTF-8; leave encoding = {reading.encoding!r} out")
        unread.seek(0)
        encoding = "utf-8-sig" if reading.encoding == "utf-8" else reading.encoding  # spreadsheets write a mark
        with io.TextIOWrapper(unread, encoding=encoding, newline="") as stream:
            reader = csv.reader(stream, strict=True, delimiter=reading.delimiter)
            for cells in reader:
                number = reader.line_num
                if cells:
                    yield number, cells
    except csv.Error as error:
        raise DataError(f"{path}, line {number + 1}: {error}; check the quotes") from error
    except UnicodeDecodeError as error:
        other = 'save the file as UTF-8, or state encoding = "latin-1"'
        why = f"not {reading.encoding.upper()} ({error.reason})"
        remedy = other if reading.encoding == "utf-8" else "state another encoding"
        raise DataError(f"{path}, after line {number}: {why}; {remedy}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        problem = f"broken or truncated gzip ({error}); get the file again"
        raise DataError(f"{path}, after line {number}: {problem}") from error


def _as_wide(lines: Iterator[tuple[int, list[str]]], path: Path, width: int) -> Iterator[tuple[int, Cells]]:
    for number, cells in lines:
        if len(cells) != width:
            problem = f"{len(cells)} cells where the header has {width}; check commas and quotes"
            raise DataError(f"{path}, line {number}: {problem}")
        yield number, cells


def parquet(path: Path, read: Callable[[Any], Read]) -> Read:
    """Read a Parquet file with pyarrow."""
    try:
        module, arrow = importlib.import_module("pyarrow.parquet"), importlib.import_module("pyarrow")
    except ImportError as error:
        raise DataError(f"{path}: Parquet needs pyarrow; run pip install pyarrow, or save the table as CSV") from error
    try:
        return read(module)
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error}); get the file again") from error


@contextmanager
def read_once() -> Iterator[None]:
    """Read each file once inside this block.

    Guarantee: a run trains on the bytes that its ledger recognises, even if a file or a link changes between the two.
    """
    if _READ.get() is not None:
        yield
        return
    token = _READ.set({})
    try:
        yield
    finally:
        _READ.reset(token)


def once(key: Hashable, read: Callable[[], Read]) -> Read:
    """The result of `read`, kept under this key inside `read_once`."""
    seen = _READ.get()
    if seen is None:
        return read()
    if key not in seen:
        seen[key] = read()
    found: Read = seen[key]
    return found


def content(path: Path) -> bytes:
    """The bytes of a file."""
    return once(path, lambda: _bytes(path))


def _bytes(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: is no regular file, and would be read twice; copy it into one")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and the permissions") from error
