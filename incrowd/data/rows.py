"""Each example, with whom it belongs to, as bytes: what a fingerprint of the data is made of."""

import hashlib
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from incrowd.data._cells import Reading, text_of
from incrowd.data._rows import AS_USUAL, Cells, TableSource, read_rows
from incrowd.data.clients import Clients
from incrowd.data.examples import Examples
from incrowd.data.inputs import is_single, named

_EXACT = 2.0**53  # whole numbers below this are what they seem to be
_AT_ONCE = 1024  # examples
_LARGEST = float(np.finfo(np.float32).max)


def table_rows(source: TableSource, reading: Reading = AS_USUAL) -> Iterator[bytes]:
    """The rows of a table, each in a form that is the same whatever the table's file is called, however its columns
    and rows are ordered, which marks its numbers have, and which columns a model would see.

    Whole numbers are compared as such, others as float32, in which they are learned from: 1, 1.0, 1e0 and
    1.0000000001 are the same, in CSV and in Parquet. Everything else is compared as text.
    """
    table = read_rows(source, reading)
    packed = _packer(table.header, reading)
    return (packed(cells) for _, cells in table.rows)


def table_rows_by(source: TableSource, column: str, reading: Reading = AS_USUAL) -> dict[str, list[bytes]]:
    """The rows of a table as `table_rows` has them, for each name in a column, in the order of the names."""
    table = read_rows(source, reading)
    packed, at = _packer(table.header, reading), table.column(column)
    rows_of: dict[str, list[bytes]] = {}
    for _, cells in table.rows:
        rows_of.setdefault(text_of(reading.cleaned(cells[at])), []).append(packed(cells))
    return {name: rows_of[name] for name in sorted(rows_of)}


def _packer(header: tuple[str, ...], reading: Reading) -> Callable[[Cells], bytes]:
    order = sorted(range(len(header)), key=lambda column: header[column])
    names = _packed([header[column].encode() for column in order])
    return lambda cells: names + _packed([_cell(reading.plain(cells[column])) for column in order])


def example_rows(examples: Examples, rows: NDArray[Any] | None = None) -> Iterator[bytes]:
    """Examples, all or those in some rows, with their labels."""
    inputs = sorted(named(examples.features).items())
    alone = is_single(examples.features)
    what = f"{examples.features.dtype} {examples.shape}" if alone else repr(sorted(examples.form))
    kind = f"{what} {examples.scale!r} {examples.offset!r}".encode()
    for row in range(len(examples)) if rows is None else rows:
        yield _packed([kind, *(one[row].tobytes() for _, one in inputs), examples.labels[row].tobytes()])


def owner_digests(data: Clients) -> Iterator[bytes]:
    """Of each client one digest of its examples as they are meant.

    Who has which examples together is what counts: other names of clients, another order or another scale of the same
    values make no other data. An example that many clients hold is read once, and a few of them are in memory at a
    time.
    """
    each = np.empty((len(data.examples), hashlib.sha256().digest_size), np.uint8)
    known = np.zeros(len(data.examples), bool)
    for client in range(data.present):
        own = data.client(client)
        new = np.unique(own[~known[own]])
        for begin in range(0, len(new), _AT_ONCE):
            some = new[begin : begin + _AT_ONCE]
            each[some] = np.frombuffer(b"".join(_digests(data.examples, some)), np.uint8).reshape(len(some), -1)
        known[new] = True
        yield hashlib.sha256(np.sort(each[own].view(f"S{each.shape[1]}"), axis=None).tobytes()).digest()


def _digests(examples: Examples, rows: NDArray[Any]) -> Iterator[bytes]:
    own = examples.some(rows)
    meant = replace(own, features=own.values(slice(None)), scale=1.0, offset=0.0)
    return (hashlib.sha256(row).digest() for row in example_rows(meant))


def _cell(cell: Any) -> bytes:
    if AS_USUAL.is_missing(cell):  # however a file or a frame says so
        return b""
    try:
        number = math.nan if isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError):
        number = math.nan
    if number.is_integer() and abs(number) < _EXACT:
        return b"w%d" % int(number)
    if not abs(number) <= _LARGEST:  # no number, or one that nobody could learn from
        return b"t" + str(cell).encode()
    packed = struct.pack("<f", number)
    (learned,) = struct.unpack("<f", packed)
    return b"w%d" % int(learned) if learned.is_integer() and abs(learned) < _EXACT else b"n" + packed


def _packed(parts: list[bytes]) -> bytes:
    """Parts end to end, in a way that no other parts are."""
    return b"".join(struct.pack("<q", len(part)) + part for part in parts)
