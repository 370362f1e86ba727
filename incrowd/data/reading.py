"""What a cell of a table says, before it is asked what its column means: a text, a number, or nothing."""

import csv
import gzip
import importlib
import io
import math
import re
import struct
import zlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property, lru_cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar
from uuid import UUID

import numpy as np

from incrowd.errors import ConfigError, DataError

Blanks = Literal["refuse", "strip", "keep"]

MISSING = ("", "NA", "N/A", "NaN", "null", "None")
"""The texts that say that nothing is known, whatever their case."""

_DELIMITERS = (",", ";", "\t", "|")
_ENCODINGS = ("utf-8", "latin-1", "cp1252")
_EXACT = 2**53  # whole numbers below this are what they seem to be in a float64
_HALF_STEP = 2.0**-24  # how far a normal float32 is from what it stands for, at most


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the cells of a table are written. Nothing of it is found out from the rows.

    ``thousands`` is the mark between groups of three digits; none is known unless it is stated. ``blanks`` says what
    becomes of blanks around a text or a number: they are refused, dropped ("strip") or taken as a part of it ("keep").
    ``missing_texts`` say, whatever their case, that a value is missing; so do None, NaN and NaT of other tables.

    Edge cases: marks that could be confused with each other are a `ConfigError`.
    """

    delimiter: str = ","
    decimal: str = "."
    thousands: str | None = None
    encoding: str = "utf-8"
    blanks: Blanks = "refuse"
    missing_texts: tuple[str, ...] = MISSING

    def __post_init__(self) -> None:
        for field, value, choices in (
            ("delimiter", self.delimiter, _DELIMITERS),
            ("decimal", self.decimal, (".", ",")),
            ("thousands", self.thousands, (None, ".", ",", "'", " ", "_")),
            ("encoding", self.encoding, _ENCODINGS),
            ("blanks", self.blanks, ("refuse", "strip", "keep")),
        ):
            if value not in choices:
                shown = ", ".join(repr(choice) for choice in choices if choice is not None)
                raise ConfigError(field=field, value=value, remedy=f"choose from {shown}")
        if self.thousands == self.decimal:
            remedy = "the decimal mark is the same: one of them has to be another"
            raise ConfigError(field="thousands", value=self.thousands, remedy=remedy)

    def is_missing(self, cell: Any) -> bool:
        """Whether a cell says that its value is missing."""
        if isinstance(cell, str):
            return cell.casefold() in self._missing
        if cell is None:
            return True
        try:
            return bool(cell != cell)  # NaN and NaT are not equal to themselves
        except TypeError:  # nor unequal, says pandas.NA
            return True

    def cleaned(self, cell: Any) -> Any:
        """A cell without the blanks around it. Edge cases: where they are to be refused, a `DataError`."""
        if self.blanks == "keep" or not isinstance(cell, str):
            return cell
        bare = cell.strip()
        if self.blanks == "refuse" and bare != cell:
            raise DataError('has blanks around it; drop them, or state blanks = "strip" or "keep"')
        return bare

    def number(self, cell: Any) -> int | float:
        """The number in a cell, exactly where it is a whole one.

        Edge cases: anything else, also an infinity, and a mark between digits that was not stated: `DataError`.
        """
        if isinstance(cell, str):
            return self._spelt(cell)
        if isinstance(cell, bool):
            raise DataError("is true or false, not a number; state that it is yes/no, or mend the row")
        if isinstance(cell, Integral):
            return int(cell)
        if isinstance(cell, Real | Decimal):
            number = float(cell)
            if math.isfinite(number):
                return int(cell) if isinstance(cell, Decimal) and cell == int(cell) else number
        raise DataError("is not a number; fill it in or drop the row")

    def plain(self, cell: Any) -> Any:
        """A number as every other table would spell it; anything else as it is."""
        if not isinstance(cell, str) or (self.decimal, self.thousands) == (".", None):
            return cell
        return self._plain(cell) or cell

    def _spelt(self, text: str) -> int | float:
        plain = self._plain(text)
        if plain is None:
            raise DataError(f"is not a number; {self._remedy(text)}")
        if "e" in plain or "." in plain:
            number = float(plain)
            if not math.isfinite(number):
                raise DataError("is beyond every float32; give finite numbers, or drop the row")
            return number
        return int(plain)

    def _plain(self, text: str) -> str | None:
        match = self._pattern.fullmatch(text)
        if match is None or not (match["whole"] or match["fraction"]) or len(text) > _LONGEST:
            return None
        whole, fraction, exponent = (match[name] or "" for name in ("whole", "fraction", "exponent"))
        if self.thousands is not None:
            whole = whole.replace(self.thousands, "")
        fraction = fraction if exponent else fraction.rstrip("0")  # 12.00 is a whole number
        return f"{match['sign']}{whole or '0'}{'.' if fraction else ''}{fraction}{exponent.lower()}"

    def _remedy(self, text: str) -> str:
        other = "," if self.decimal == "." else "."
        if _pattern(other, None).fullmatch(text) or _pattern(self.decimal, other).fullmatch(text):
            return f"state what the {other!r} in it is: decimal or thousands"
        if any(map(str.isalpha, text)):
            return "state what its column is (a text, levels, yes/no), or fill it in or drop the row"
        return "fill it in or drop the row"

    @cached_property
    def _missing(self) -> frozenset[str]:
        return frozenset(text.casefold() for text in self.missing_texts)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return _pattern(self.decimal, self.thousands)


_LONGEST = 400  # digits: more are nobody's measurement, and slow to read


@lru_cache
def _pattern(decimal: str, thousands: str | None) -> re.Pattern[str]:
    groups = "" if thousands is None else rf"|\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+"
    whole = rf"(?P<whole>\d+{groups})?"
    rest = rf"(?:{re.escape(decimal)}(?P<fraction>\d*))?(?P<exponent>[eE][+-]?\d{{1,4}})?"
    return re.compile(rf"(?P<sign>[+-]?){whole}{rest}", re.ASCII)


def text_of(cell: Any) -> str:
    """A cell as a text, the same in tables of every kind: 7 and 7.0 of a typed column are "7", a date is 2020-01-31.

    A text stays as it is: "007" and "7.0" are texts of their own.

    Edge cases: a number with a fraction, or a float so large that others look the same: `DataError`.
    """
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool | np.bool_):
        return "true" if cell else "false"
    if isinstance(cell, Integral):
        return str(int(cell))
    if isinstance(cell, Real | Decimal):
        number = float(cell)
        if number.is_integer() and abs(number) < _EXACT:
            return str(int(number))
        raise DataError("is a number with a fraction, or too large to be exact; give texts or whole numbers")
    if isinstance(cell, datetime):
        return (cell.date() if cell.time() == datetime.min.time() and cell.tzinfo is None else cell).isoformat()
    if isinstance(cell, date | UUID):
        return cell.isoformat() if isinstance(cell, date) else str(cell)
    raise DataError(f"is a {type(cell).__name__}; give texts or whole numbers")


def as_float32(number: float) -> float:
    """A number that float32 holds.

    Edge cases: a whole number that it would round (there are some beyond 2^24), one beyond its largest and one that
    it would lose near 0 are a `DataError`: they would be changed in silence.
    """
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


Cells = Sequence[Any]

AS_USUAL = Reading()
"""Commas between cells, points in numbers, UTF-8."""

_MARKS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
_BOM = b"\xef\xbb\xbf"


class Frame(Protocol):
    """A data frame as pandas has it."""

    @property
    def columns(self) -> Any:
        """The names of the columns."""
        ...

    def itertuples(self, *, index: bool = True, name: str | None = "Pandas") -> Any:
        """The rows."""
        ...


TableSource = Path | Frame
"""A table: a file, or a data frame."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A header and the rows under it. ``unit`` says what a place counts: lines of a CSV file, rows of other tables.

    Edge cases: a header with the same name twice is a `DataError`.
    """

    path: Path | str
    unit: str
    header: tuple[str, ...]
    rows: Iterator[tuple[int, Cells]]

    def __post_init__(self) -> None:
        twice = next((name for place, name in enumerate(self.header) if name in self.header[:place]), None)
        if twice is not None:
            raise DataError(f"{self.path} has more than one column {twice!r}: give each a name of its own")

    def place(self, number: int) -> str:
        """How an error names a row."""
        return f"{self.path}, {self.unit} {number}"

    def column(self, name: str) -> int:
        """The position of a column."""
        if name not in self.header:
            raise DataError(f"{self.path} has no column {name!r}: {self._remedy()}")
        return self.header.index(name)

    def _remedy(self) -> str:
        for mark, said in _MARKS.items():
            if len(self.header) == 1 and mark in self.header[0]:
                return f"its header is one cell with {said} in it: state delimiter = {mark!r}"
        return f"name one of {', '.join(self.header)}"


def read_rows(source: TableSource, reading: Reading = AS_USUAL) -> Rows:
    """Open a table: a data frame, or a file by its ending, .csv, .csv.gz or .parquet."""
    if not isinstance(source, Path):
        return _frame_rows(source)
    if source.name.endswith((".csv", ".csv.gz")):
        lines = _csv_lines(source, reading)
        _, header = next(lines, (0, []))
        if not header:
            raise DataError(f"{source}: is empty; give a header and rows")
        return Rows(path=source, unit="line", header=tuple(header), rows=_as_wide(lines, source, len(header)))
    if source.name.endswith(".parquet"):
        return _parquet_rows(source)
    raise DataError(f"{source}: unknown kind of table; give a file that ends in .csv, .csv.gz or .parquet")


def _frame_rows(frame: Frame) -> Rows:
    """The rows of a data frame; its index is no column."""
    if not (hasattr(frame, "columns") and hasattr(frame, "itertuples")):
        raise DataError(f"{type(frame).__name__} is no table: give a path or a pandas data frame")
    header = tuple(frame.columns)
    for name in header:
        if not isinstance(name, str):
            raise DataError(f"the data frame has a column {name!r}: give each a text as its name")
    return Rows(
        path="data frame", unit="row", header=header, rows=enumerate(frame.itertuples(index=False, name=None), start=1)
    )


def _csv_lines(path: Path, reading: Reading) -> Iterator[tuple[int, list[str]]]:
    unread: io.BytesIO | gzip.GzipFile = io.BytesIO(content(path))
    number = 0
    try:
        if path.name.endswith(".gz"):
            unread = gzip.GzipFile(fileobj=unread)
        if reading.encoding != "utf-8" and unread.read(len(_BOM)) == _BOM:
            raise DataError(f"{path}: begins with the mark of UTF-8; leave encoding = {reading.encoding!r} out")
        unread.seek(0)
        # utf-8-sig drops the byte order mark that spreadsheets put first.
        encoding = "utf-8-sig" if reading.encoding == "utf-8" else reading.encoding
        with io.TextIOWrapper(unread, encoding=encoding, newline="") as stream:
            reader = csv.reader(stream, strict=True, delimiter=reading.delimiter)
            for cells in reader:
                number = reader.line_num
                if cells:
                    yield number, cells
    except csv.Error as error:
        raise DataError(f"{path}, line {number + 1}: {error}; check the quotes") from error
    except UnicodeDecodeError as error:
        remedy = 'save the file as UTF-8, or state encoding = "latin-1"'
        if reading.encoding != "utf-8":
            remedy = "state another encoding"
        raise DataError(
            f"{path}, after line {number}: not {reading.encoding.upper()} ({error.reason}); {remedy}"
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}, after line {number}: broken or truncated gzip ({error}); get the file again"
        ) from error


def _as_wide(lines: Iterator[tuple[int, list[str]]], path: Path, width: int) -> Iterator[tuple[int, Cells]]:
    for number, cells in lines:
        if len(cells) != width:
            raise DataError(
                f"{path}, line {number}: {len(cells)} cells where the header has {width}; check commas and quotes"
            )
        yield number, cells


def _parquet_rows(path: Path) -> Rows:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(f"{path}: Parquet needs pyarrow; run pip install pyarrow, or save the table as CSV") from error
    arrow_error = importlib.import_module("pyarrow").ArrowException
    try:
        table = parquet.read_table(io.BytesIO(content(path)))
    except (OSError, arrow_error) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error}); get the file again") from error
    columns = [column.to_pylist() for column in table.columns]
    return Rows(
        path=path, unit="row", header=tuple(table.column_names), rows=enumerate(zip(*columns, strict=True), start=1)
    )


_READ: ContextVar[dict[Hashable, Any] | None] = ContextVar("what is read once", default=None)

Read = TypeVar("Read")


@contextmanager
def read_once() -> Iterator[None]:
    """Read every file, and all that is looked for as one, once meanwhile.

    Guarantee: what is learned from and what is recognised are the same bytes, whatever becomes of the file, or of a
    link on the way to it, between the two.
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
    """What `read` gives, the first time that this key is asked for."""
    seen = _READ.get()
    if seen is None:
        return read()
    if key not in seen:
        seen[key] = read()
    found: Read = seen[key]
    return found


def content(path: Path) -> bytes:
    """The bytes of a file. Edge cases: what is no regular file could be another one every time: a `DataError`."""
    return once(path, lambda: _content(path))


def _content(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: is no regular file, and would be read twice; copy it into one")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and the permissions") from error
