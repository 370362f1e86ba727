"""Rows of a table, a file or a data frame, one after the other, each with its place for error messages."""

import csv
import gzip
import importlib
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from incrowd.data._cells import Reading
from incrowd.data._once import content
from incrowd.errors import DataError

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
