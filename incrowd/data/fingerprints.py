"""Keyed digests of rows, by which a ledger recognises data."""

import hashlib
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from incrowd.data.examples import Examples, named
from incrowd.data.reading import AS_USUAL, Reading, TableSource, read_rows, text_of
from incrowd.privacy.content import Content, Digests, Rows, digests, fingerprint

_EXACT = 2.0**53  # a float64 holds whole numbers below this exactly
_AT_ONCE = 1024  # rows

Bits = NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """The cells of a table, 64 bits each, [rows, columns], and the owner of each row.

    Equal cells have equal bits in files and frames of every format. Whole numbers are compared exactly and others as
    float32, so 1, 1.0, 1e0 and 1.0000000001 are equal. All other cells are compared as text.
    """

    header: tuple[str, ...]
    values: Bits
    owners: NDArray[np.str_]


@dataclass(frozen=True, kw_only=True, eq=False)
class RowDigests:
    """Keyed digests of rows, and the number of each row's owner.

    `exact` covers the whole row. `cells` covers the cells without the owner's, in any order and under any names.
    `features` covers the features in their order. If the owner is `named` in the row, `exact` does not add it.
    """

    exact: Digests
    cells: Digests
    features: Digests
    owners: NDArray[np.int64]
    named: bool = False

    def fingerprint(self, key: bytes) -> str:
        """See `incrowd.privacy.content.fingerprint`."""
        return fingerprint(self.exact, np.zeros_like(self.owners) if self.named else self.owners, key=key)

    def content(self, key: bytes) -> Content:
        """The marks that recognise these rows; their digests have the same key."""
        kinds = {"cells": self.cells, "features": self.features}
        return Content(
            whole=self.fingerprint(key),
            people=fingerprint(self.features, self.owners, key=key),
            kinds={kind: Rows.of(rows, self.owners) for kind, rows in kinds.items()},
        )

    def by_owner(self) -> "list[RowDigests]":
        """The digests of each owner, in order."""
        order = np.argsort(self.owners, kind="stable")
        ends = np.flatnonzero(np.diff(self.owners[order])) + 1
        return [self.some(rows) for rows in np.split(order, ends)]

    def some(self, rows: NDArray[np.integer[Any]], owners: NDArray[np.int64] | None = None) -> "RowDigests":
        """Some of the rows, with these owners if they are stated."""
        parts = {name: getattr(self, name)[rows] for name in ("exact", "cells", "features")}
        return replace(self, **parts, owners=self.owners[rows] if owners is None else owners)


def table_cells(source: TableSource, client: str | None, reading: Reading = AS_USUAL) -> Cells:
    """The cells of a table, with owners from its column `client`. None makes each row an owner; "" makes them one."""
    table = read_rows(source, reading)
    at = table.column(client) if client else None
    owners: list[str] = []
    blocks = [np.empty((0, len(table.header)), np.uint64)]
    while rows := [cells for _, cells in islice(table.rows, _AT_ONCE)]:
        columns = list(zip(*rows, strict=True))
        alone = [f"{len(owners) + row:019}" if client is None else "" for row in range(len(rows))]
        owners += alone if at is None else [text_of(reading.cleaned(cell)) for cell in columns[at]]
        blocks.append(np.column_stack([_bits_of(column, reading) for column in columns]))
    return Cells(header=table.header, values=np.concatenate(blocks), owners=np.array(owners, np.str_))


def digests_of_cells(cells: Cells, features: Sequence[str], client: str | None, *, key: bytes) -> RowDigests:
    """The digests of a table's rows with these features."""
    header, values = cells.header, cells.values
    order = sorted(range(len(header)), key=lambda column: header[column])
    names = digests([repr([header[column] for column in order]).encode()], key=key)
    others = [place for place, name in enumerate(header) if name != client]
    learned = [header.index(name) for name in features]
    return RowDigests(
        exact=_digests(np.column_stack([np.repeat(names, len(values)), values[:, order]]), key),
        cells=_digests(np.sort(values[:, others], axis=1), key),
        features=_digests(values[:, learned], key),
        owners=np.unique(cells.owners, return_inverse=True)[1],
        named=client != "",
    )


def digests_of_examples(examples: Examples, *, key: bytes) -> RowDigests:
    """The digests of examples as a model reads them, each with an owner of its own."""
    names = digests([repr(sorted(named(examples.features))).encode()], key=key)
    labels = _as_bits(examples.labels.reshape(len(examples), -1))
    cells, features = [], []
    for begin in range(0, len(examples), _AT_ONCE):
        some = slice(begin, begin + _AT_ONCE)
        inputs = sorted(named(examples.values(some)).items())
        block = np.hstack([_as_bits(one.reshape(len(one), -1)) for _, one in inputs])
        features.append(_digests(block, key))
        cells.append(_digests(np.sort(np.hstack([block, labels[some]]), axis=1), key))
    learned = np.concatenate(features)
    return RowDigests(
        exact=_digests(np.column_stack([np.repeat(names, len(labels)), learned, labels]), key),
        cells=np.concatenate(cells),
        features=learned,
        owners=np.arange(len(examples)),
    )


def _digests(values: Bits, key: bytes) -> Digests:
    rows, width = values.tobytes(), values.shape[1] * values.itemsize
    return digests((rows[begin : begin + width] for begin in range(0, len(rows), width)), key=key)


def _bits_of(cells: Sequence[Any], reading: Reading) -> Bits:
    """The bits of a column's cells, in one step if all are numbers."""
    plain = [reading.plain(cell) for cell in cells]
    if not {bool, np.bool_} & set(map(type, plain)):
        with suppress(TypeError, ValueError, OverflowError):
            return _as_bits(np.array([float(cell) for cell in plain]))
    seen: dict[Any, int] = {}
    return np.array([_bits_of_one(cell, seen) for cell in plain], np.uint64)


def _bits_of_one(cell: Any, seen: dict[Any, int]) -> int:
    kept = (type(cell), cell)
    if kept not in seen:
        number = math.nan
        text = not AS_USUAL.is_missing(cell)  # in files and frames alike
        if text and not isinstance(cell, bool | np.bool_):
            with suppress(TypeError, ValueError, OverflowError):
                number, text = float(cell), False
        digest = hashlib.blake2b(str(cell).encode(), digest_size=8).digest()
        seen[kept] = int.from_bytes(digest) if text else int(_as_bits(np.array([number]))[0])
    return seen[kept]


def _as_bits(numbers: NDArray[Any]) -> Bits:
    """Numbers in 64 bits, equal where a model sees equal numbers."""
    exact = numbers.astype(np.float64)
    with np.errstate(over="ignore"):
        seen = exact.astype(np.float32).astype(np.float64)
    whole = (np.abs(exact) < _EXACT) & (exact == np.rint(exact))
    seen[whole] = exact[whole]
    seen[np.isnan(seen)] = math.nan
    return (seen + 0.0).view(np.uint64)  # 0 and -0 are equal
