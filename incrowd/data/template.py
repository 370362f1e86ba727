"""Write settings for a table from its header alone; incrowd reads no row."""

import codecs
import csv
import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import BinaryIO

from incrowd.data.columns import BLANK
from incrowd.data.reading import DELIMITERS, check_header, parquet
from incrowd.errors import ConfigError, DataError

TEMPLATE = Path(__file__).with_name("template.toml")
_MOST = 1 << 20  # bytes of the longest header
_LINE = re.compile(rb'(?:[^"\r\n]++|"[^"]*+")*+[\r\n]')  # a line break in quotes does not end the line


@dataclass(frozen=True, kw_only=True)
class Header:
    """The names of a table's columns, and their format."""

    columns: tuple[str, ...]
    delimiter: str = ","
    encoding: str = "utf-8"


def read_header(path: Path) -> Header:
    """The header of a table.

    Guarantee: it does not depend on the rows.

    Edge cases: no file, another kind of file, an empty header, a duplicate name: `DataError`.
    """
    header = _stored_header(path)
    if not header.columns:
        raise DataError(f"{path}: has no header that can be read; give one, and check its quotes")
    check_header(path, header.columns)
    return header


def _stored_header(path: Path) -> Header:
    if path.name.endswith(".parquet"):
        return Header(columns=parquet(path, lambda module: tuple(module.read_schema(path).names)))
    if not path.name.endswith((".csv", ".csv.gz")):
        raise DataError(f"{path}: unknown kind of table; give a file that ends in .csv, .csv.gz or .parquet")
    line, encoding = _first_line(path), "utf-8"
    if any(byte < 32 and byte not in b"\t\r\n" for byte in line):
        raise DataError(f"{path}: is no text, so it has no header; save the table as CSV")
    try:
        text = line.decode()
    except UnicodeDecodeError:
        text, encoding = line.decode("latin-1"), "latin-1"  # which has a letter for each byte
    split = {mark: _split(text, mark) for mark in DELIMITERS}
    delimiter = max(split, key=lambda mark: len(split[mark]))
    return Header(columns=split[delimiter], delimiter=delimiter, encoding=encoding)


def _first_line(path: Path) -> bytes:
    """The bytes up to the end of the header, which may have line breaks in quotes."""
    content = b""
    try:
        with path.open("rb") as raw:
            for piece in _pieces(raw, packed=path.name.endswith(".gz")):
                content = (content + piece).removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n")  # blank lines are skipped
                if end := _LINE.match(content):
                    return content[: end.end() - 1]
                if len(content) > _MOST:
                    raise DataError(f"{path}: its first line does not end; give a table with a header")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and the permissions") from error
    except zlib.error as error:
        raise DataError(f"{path}: broken gzip ({error}); get the file again") from error
    return content


def _pieces(raw: BinaryIO, *, packed: bool) -> Iterator[bytes]:
    """The content of a file in pieces so small that a broken row cannot break the header."""
    inflate = zlib.decompressobj(wbits=31)
    for stored in iter(lambda: raw.read(64), b""):
        yield inflate.decompress(stored) if packed else stored


def _split(text: str, delimiter: str) -> tuple[str, ...]:
    try:
        return tuple(next(csv.reader([text], strict=True, delimiter=delimiter), ()))
    except csv.Error:
        return ()


def template(path: Path, header: Header, *, client: str | None = None, label: str | None = None, seen: str) -> str:
    """Settings in TOML, with a `?` for each fact to state; `seen` is the file's name in the settings.

    Edge cases: a client or a label that is no column is a `ConfigError`.
    """
    for field, name in (("client", client), ("label", label)):
        if name is not None and name not in header.columns:
            raise ConfigError(field=field, value=name, remedy=f"choose from {', '.join(header.columns)}")
    if client is not None and client == label:
        raise ConfigError(field="label", value=label, remedy="it is the client column, too: name two columns")
    written = [f"delimiter = {_quoted(header.delimiter)}\n"] if header.delimiter != "," else []
    written += [f"encoding = {_quoted(header.encoding)}\n"] if header.encoding != "utf-8" else []
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=json.dumps(path.name),
        file=_quoted(seen),
        written="".join(written),
        client=_quoted(client or BLANK),
        label=_quoted(label or BLANK),
        columns="\n".join(f'{_key(name)} = "{BLANK}"' for name in header.columns if name not in (client, label)),
    )


def relative(path: Path, *, to: Path | None) -> str:
    """The name of a file in settings in this folder; without a folder, its path as stated."""
    return str(path) if to is None else os.path.relpath(path.resolve(), to.resolve())


def _key(name: str) -> str:
    """A TOML key."""
    return name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else _quoted(name)


def _quoted(text: str) -> str:
    """A TOML string; its escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
