"""Who holds which example: index lists over shared arrays. `incrowd.data.partitioners` makes them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from incrowd.errors import ConfigError, DataError

Indices = NDArray[np.int32] | NDArray[np.int64]
Sizes = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Partition:
    """Index lists of K clients, end to end: client k holds ``indices[offsets[k]:offsets[k + 1]]``.

    Guarantee: at least one client; every client has at least one example; no index is negative.

    Edge cases: an empty client, offsets that do not start at 0, rise and end at ``len(indices)``, another dtype:
    `DataError`. Two clients may hold the same example, and one client may hold it twice.
    """

    offsets: Sizes = field(repr=False)
    indices: Indices = field(repr=False)

    def __post_init__(self) -> None:
        if self.offsets.dtype != np.int64 or self.offsets.ndim != 1 or len(self.offsets) < 2:
            raise DataError("offsets must be int64, one more than there are clients, and there must be a client")
        if self.indices.dtype not in (np.int32, np.int64) or self.indices.ndim != 1:
            raise DataError(
                f"indices are {self.indices.dtype} of shape {self.indices.shape}: give one row of int32 or int64"
            )
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.indices):
            raise DataError(f"offsets must start at 0 and end at {len(self.indices)}, the number of indices")
        sizes = self.sizes
        if sizes.min() <= 0:
            client = int(np.flatnonzero(sizes <= 0)[0])
            raise DataError(f"client {client} has no examples: leave it out, or give it at least one")
        if self.indices.min() < 0:
            place = int(np.flatnonzero(self.indices < 0)[0])
            raise DataError(
                f"client {self.holder(place)} holds the index {self.indices[place]}: give indices of at least 0"
            )

    def __repr__(self) -> str:
        return f"Partition(clients={self.clients})"

    @classmethod
    def of(cls, lists: Sequence[ArrayLike]) -> "Partition":
        """From one list of indices for each client."""
        arrays = [np.asarray(rows) for rows in lists]
        for client, rows in enumerate(arrays):
            if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
                raise DataError(f"client {client} has {rows.dtype} of shape {rows.shape}: give a list of whole numbers")
        if not arrays:
            raise DataError("there is no client: give at least one list of indices")
        sizes = np.array([len(rows) for rows in arrays], np.int64)
        return end_to_end(np.concatenate(arrays).astype(np.int64), sizes)

    @property
    def clients(self) -> int:
        """The number of clients K."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Sizes:
        """The number of examples of each client."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> NDArray[np.int64]:
        """The client of each index."""
        return np.repeat(np.arange(self.clients), self.sizes)

    @property
    def nbytes(self) -> int:
        """Memory held by the index lists."""
        return self.offsets.nbytes + self.indices.nbytes

    def client(self, k: int) -> Indices:
        """The indices of client k, a view."""
        if not 0 <= k < self.clients:
            raise ConfigError(field="client", value=k, remedy=f"give a number from 0 to {self.clients - 1}")
        return self.indices[self.offsets[k] : self.offsets[k + 1]]

    def holder(self, place: int) -> int:
        """The client whose list holds ``indices[place]``."""
        return int(np.searchsorted(self.offsets, place, side="right")) - 1


def index_type(examples: int) -> type[np.int32] | type[np.int64]:
    """Four bytes an index where they suffice: 24 MB for 10,000 clients of 600."""
    return np.int32 if examples < 2**31 else np.int64


def end_to_end(indices: NDArray[Any], sizes: Sizes) -> Partition:
    """Give the first ``sizes[0]`` indices to client 0, the next ``sizes[1]`` to client 1, and so on."""
    return Partition(offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), indices=indices)
