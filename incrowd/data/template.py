"""Settings for a table, written from its header alone: what is to be stated is named, and no row is looked at."""

import codecs
import csv
import importlib
import io
import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from incrowd.data.columns import BLANK
from incrowd.errors import ConfigError, DataError

_DELIMITERS = (",", ";", "\t", "|")
_MOST = 1 << 20  # bytes: a longer header is none
_PIECE = 1 << 12
_LINE = re.compile(rb'(?:[^"\r\n]++|"[^"]*+")*+[\r\n]')  # a line break in quotes does not end it


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the header of a table tells: the names of its columns, and how they are written."""

    columns: tuple[str, ...]
    delimiter: str = ","
    encoding: str = "utf-8"


def read_header(path: Path) -> Header:
    """The header of a table.

    Guarantee: nothing depends on what stands after it.

    Edge cases: no file, another kind of file, an empty header, a name twice: `DataError`.
    """
    if path.name.endswith(".parquet"):
        return Header(columns=_checked(path, _parquet_names(path)))
    if not path.name.endswith((".csv", ".csv.gz")):
        raise DataError(f"{path}: unknown kind of table; give a file that ends in .csv, .csv.gz or .parquet")
    line = _first_line(path)
    if any(byte < 32 and byte not in b"\t\r\n" for byte in line):
        raise DataError(f"{path}: is no text, so it has no header; save the table as CSV")
    text, encoding = _decoded(line)
    delimiter = max(_DELIMITERS, key=lambda mark: len(_split(text, mark)))
    return Header(columns=_checked(path, _split(text, delimiter)), delimiter=delimiter, encoding=encoding)


def template(path: Path, header: Header, *, client: str | None = None, label: str | None = None, seen: str) -> str:
    """Settings in TOML, with a `?` wherever something is to be stated; `seen` is how the settings name the file.

    Edge cases: a client or a label that is no column is a `ConfigError`.
    """
    for field, name in (("client", client), ("label", label)):
        if name is not None and name not in header.columns:
            raise ConfigError(field=field, value=name, remedy=f"choose from {', '.join(header.columns)}")
    if client is not None and client == label:
        raise ConfigError(field="label", value=label, remedy="it is the client column, too: name two columns")
    written = [f"delimiter = {_quoted(header.delimiter)}"] if header.delimiter != "," else []
    written += [f"encoding = {_quoted(header.encoding)}"] if header.encoding != "utf-8" else []
    columns = [f'{_key(name)} = "{BLANK}"' for name in header.columns if name not in (client, label)]
    return _TEMPLATE.format(
        title=json.dumps(path.name),
        file=_quoted(seen),
        written="".join(f"{line}\n" for line in written),
        client=_quoted(client or BLANK),
        label=_quoted(label or BLANK),
        columns="\n".join(columns),
    )


_TEMPLATE = """\
# Settings for {title}, written from its header alone: no row was looked at.
# Fill in every ? and every number that is missing. State what everybody may know (a codebook, a form, the medical
# literature), never what you see in the rows: ranges and levels that were looked up there tell who is in them.

recipe = "tables"              # settings that suit a table; delete the line to state your own

[data]
name = "table"
file = {file}                   # seen from this file
{written}# decimal = ","                # marks in numbers, where they are not 1234.5
# thousands = "."
client = {client}                   # the column that says whose row it is; delete its line below
label = {label}                    # the column to learn; delete its line below
classes = ["{blank}"]                # the labels in order, say ["no", "yes"]; without this line they are numbers
clients = 0                    # how many clients there are at most: a public number, rounded up to two digits
# test_file = "test.csv"       # public examples of other clients, with columns of the same names

# What each column means. One of, with missing = ... where a value may be missing (indicator = true marks it):
#   {{range = [0, 120], missing = 40}}                     a number, scaled to -1 .. 1; outside = "clip" where needed
#   {{kind = "whole number", range = [0, 20]}}
#   {{levels = ["f", "m"], other = true, missing = "other"}}   one of these levels
#   {{dates = ["2015-01-01", "2025-12-31"]}}               a day between these two; format = "%d.%m.%Y"
#   "yes/no"                                             one of two words; {{yes = "ja", no = "nein"}}
#   {{kind = "text", pieces = 512}}                        its first pieces, by a public hash
#   "ignore"                                             nothing is learned from it
[data.columns]
{columns}

[privacy]
epsilon = 0.0                  # the budget: how much may be learned about any one client at most, say 3.0
delta = 0.0                    # well below 1 / clients, say 1e-5
room = 0.0                     # so much more for later runs and evaluations on the same rows
""".replace("{blank}", BLANK)


def relative(path: Path, *, to: Path | None) -> str:
    """How settings in a folder name a file; without a folder, as it was given."""
    return str(path) if to is None else os.path.relpath(path.resolve(), to.resolve())


def _first_line(path: Path) -> bytes:
    """The bytes up to the end of the header, which may have line breaks in quotes."""
    content, mark = b"", codecs.BOM_UTF8
    try:
        with path.open("rb") as raw:
            for piece in _unzipped(raw) if path.name.endswith(".gz") else iter(lambda: raw.read(_PIECE), b""):
                content = (content + piece).removeprefix(mark).lstrip(b"\r\n")  # blank lines are skipped
                end = _end_of_line(content)
                if end is not None:
                    return content[:end]
                if len(content) > _MOST:
                    raise DataError(f"{path}: its first line does not end; give a table with a header")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and the permissions") from error
    except zlib.error as error:
        raise DataError(f"{path}: broken gzip ({error}); get the file again") from error
    return content


def _unzipped(raw: io.BufferedReader) -> Iterator[bytes]:
    """What a gzip file holds, piece by piece, each no further than it is asked for."""
    inflate = zlib.decompressobj(wbits=31)
    for stored in iter(lambda: raw.read(64), b""):
        yield inflate.decompress(stored)


def _end_of_line(content: bytes) -> int | None:
    found = _LINE.match(content)
    return found and found.end() - 1


def _decoded(line: bytes) -> tuple[str, str]:
    try:
        return line.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return line.decode("latin-1"), "latin-1"  # every byte is a letter of it


def _split(text: str, delimiter: str) -> tuple[str, ...]:
    try:
        return tuple(next(csv.reader([text], strict=True, delimiter=delimiter), ()))
    except csv.Error:
        return ()


def _checked(path: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise DataError(f"{path}: has no header that can be read; give one, and check its quotes")
    for place, name in enumerate(names):
        if name in names[:place]:
            raise DataError(f"{path} has more than one column {name!r}: give each a name of its own")
    return names


def _parquet_names(path: Path) -> tuple[str, ...]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(f"{path}: Parquet needs pyarrow; run pip install pyarrow, or save the table as CSV") from error
    try:
        return tuple(parquet.read_schema(path).names)
    except (OSError, importlib.import_module("pyarrow").ArrowException) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error}); get the file again") from error


def _key(name: str) -> str:
    """A key of TOML."""
    return name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else _quoted(name)


def _quoted(text: str) -> str:
    """A text of TOML, whose escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
