"""Each example, with whom it belongs to, as bytes: what a fingerprint of the data is made of."""

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from incrowd.data._rows import Cells, read_rows
from incrowd.data.clients import Clients
from incrowd.data.examples import Examples
from incrowd.data.inputs import is_single, named

_EXACT = 2.0**53  # whole numbers below this are what they seem to be
_LARGEST = float(np.finfo(np.float32).max)


def table_rows(path: Path) -> Iterator[tuple[dict[str, str], bytes]]:
    """The rows of a table, each as its texts by column and in a form that is the same whatever the table's file is
    called, however its columns and rows are ordered, and which of them a model would see.

    Whole numbers are compared as such, others as float32, in which they are learned from: 1, 1.0, 1e0 and
    1.0000000001 are the same, in CSV and in Parquet. Everything else is compared as text.
    """
    table = read_rows(path)
    order = sorted(range(len(table.header)), key=lambda column: table.header[column])
    names = _packed([table.header[column].encode() for column in order])
    for _, cells in table.rows:
        yield _texts(table.header, cells), names + _packed([_cell(cells[column]) for column in order])


def example_rows(examples: Examples, rows: NDArray[Any] | None = None) -> Iterator[bytes]:
    """Examples, all or those in some rows, with their labels."""
    inputs = sorted(named(examples.features).items())
    alone = is_single(examples.features)
    what = f"{examples.features.dtype} {examples.shape}" if alone else repr(sorted(examples.form))
    kind = f"{what} {examples.scale!r} {examples.offset!r}".encode()
    for row in range(len(examples)) if rows is None else rows:
        yield _packed([kind, *(one[row].tobytes() for _, one in inputs), examples.labels[row].tobytes()])


def owned_rows(data: Clients) -> list[list[bytes]]:
    """Of each client its examples, each with the client's name."""
    owners = data.owners or tuple(map(str, range(data.present)))
    return [
        [_packed([owner.encode(), row]) for row in example_rows(data.examples, data.client(client))]
        for client, owner in enumerate(owners)
    ]


def _texts(header: tuple[str, ...], cells: Cells) -> dict[str, str]:
    return {name: str(cell) for name, cell in zip(header, cells, strict=True)}


def _cell(cell: Any) -> bytes:
    if cell is None or cell == "":
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
