"""Rows of a table file, one after the other, each with its place in the file for error messages."""

import csv
import gzip
import importlib
import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from incrowd.errors import DataError

Cells = Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A header and the rows under it. ``unit`` says what a place counts: lines of a CSV file, rows of a Parquet
    file.
    """

    path: Path
    unit: str
    header: tuple[str, ...]
    rows: Iterator[tuple[int, Cells]]

    def place(self, number: int) -> str:
        """How an error names a row."""
        return f"{self.path}, {self.unit} {number}"

    def column(self, name: str) -> int:
        """The position of a column."""
        if self.header.count(name) != 1:
            found = "more than one column" if name in self.header else "no column"
            raise DataError(f"{self.path} has {found} {name!r}: name one of {', '.join(self.header)}")
        return self.header.index(name)


_READ: ContextVar[dict[Path, bytes] | None] = ContextVar("files that are read once", default=None)


@contextmanager
def read_once() -> Iterator[None]:
    """Read every file once meanwhile.

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


def _content(path: Path) -> bytes:
    """The bytes of a file. Edge cases: what is no regular file could be another one every time: a `DataError`."""
    seen = _READ.get()
    if seen is not None and path in seen:
        return seen[path]
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: is no regular file, and would be read twice; copy it into one")
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and the permissions") from error
    if seen is not None:
        seen[path] = content
    return content


def read_rows(path: Path) -> Rows:
    """Open a table by its ending: .csv, .csv.gz or .parquet."""
    if path.name.endswith((".csv", ".csv.gz")):
        lines = _csv_lines(path)
        _, header = next(lines, (0, []))
        if not header:
            raise DataError(f"{path}: is empty; give a header and rows")
        return Rows(path=path, unit="line", header=tuple(header), rows=_as_wide(lines, path, len(header)))
    if path.name.endswith(".parquet"):
        return _parquet_rows(path)
    raise DataError(f"{path}: unknown kind of table; give a file that ends in .csv, .csv.gz or .parquet")


def _csv_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    content: io.BytesIO | gzip.GzipFile = io.BytesIO(_content(path))
    if path.name.endswith(".gz"):
        content = gzip.GzipFile(fileobj=content)
    number = 0
    try:
        # utf-8-sig drops the byte order mark that spreadsheets put first.
        with io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            for cells in reader:
                number = reader.line_num
                if cells:
                    yield number, cells
    except csv.Error as error:
        raise DataError(f"{path}, line {number + 1}: {error}; check the quotes") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, after line {number}: not UTF-8 ({error.reason}); save the file as UTF-8") from error
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
        table = parquet.read_table(io.BytesIO(_content(path)))
    except (OSError, arrow_error) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error}); get the file again") from error
    columns = [column.to_pylist() for column in table.columns]
    return Rows(
        path=path, unit="row", header=tuple(table.column_names), rows=enumerate(zip(*columns, strict=True), start=1)
    )
