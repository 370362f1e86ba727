"""Features of which nearly all are zero: only the others are kept, row by row."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from incrowd._random import Floats, Integers


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Rows of so many features: those from `starts[i]` to `starts[i + 1]` of `places` and `values` are row i.

    Guarantee: a row has each place once at most.
    """

    width: int
    starts: Integers
    places: Integers
    values: Floats

    def __len__(self) -> int:
        return len(self.starts) - 1

    @classmethod
    def of(cls, rows: Sequence[dict[int, float]], width: int) -> "SparseRows":
        """Rows of values by place."""
        return cls(
            width,
            np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64),
            np.array([place for row in rows for place in row], np.int64),
            np.array([value for row in rows for value in row.values()], np.float64),
        )

    @classmethod
    def ones(cls, rows: Sequence[Sequence[int]], width: int) -> "SparseRows":
        """Rows of places that hold a 1."""
        places = np.array([place for row in rows for place in row], np.int64)
        return cls(width, np.cumsum([0, *map(len, rows)], dtype=np.int64), places, np.ones(len(places)))

    @classmethod
    def from_dense(cls, features: Floats) -> "SparseRows":
        """The same rows without their zeros."""
        rows, places = np.nonzero(features)
        starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(features)))])
        return cls(features.shape[1], starts, places, features[rows, places])

    @classmethod
    def beside(cls, blocks: Sequence["SparseRows"], *, count: int) -> "SparseRows":
        """Blocks of so many rows each, one beside the other."""
        first = np.cumsum([0, *(block.width for block in blocks)])
        rows = np.concatenate([np.empty(0, np.int64), *(block.rows for block in blocks)])
        order = np.argsort(rows, kind="stable")
        moved = [block.places + ahead for block, ahead in zip(blocks, first[:-1], strict=True)]
        return cls(
            int(first[-1]),
            np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))]),
            np.concatenate([np.empty(0, np.int64), *moved])[order],
            np.concatenate([np.empty(0), *(block.values for block in blocks)])[order],
        )

    @property
    def rows(self) -> Integers:
        """The row of each value."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def crossed(self, other: "SparseRows") -> "SparseRows":
        """Every feature times every feature of the other; its features are the ones that change first."""
        mine, theirs = np.diff(self.starts), np.diff(other.starts)
        starts = np.concatenate([[0], np.cumsum(mine * theirs)])
        rows = np.repeat(np.arange(len(self)), mine * theirs)
        within = np.arange(starts[-1]) - starts[rows]
        first = self.starts[rows] + within // theirs[rows]
        second = other.starts[rows] + within % theirs[rows]
        places = self.places[first] * other.width + other.places[second]
        return SparseRows(self.width * other.width, starts, places, self.values[first] * other.values[second])

    def chosen(self, rows: Integers) -> "SparseRows":
        """These rows, in this order."""
        lengths = np.diff(self.starts)[rows]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        taken = np.repeat(self.starts[rows] - starts[:-1], lengths) + np.arange(starts[-1])
        return SparseRows(self.width, starts, self.places[taken], self.values[taken])

    def dense(self) -> Floats:
        """The same rows with their zeros."""
        features = np.zeros((len(self), self.width))
        features[self.rows, self.places] = self.values
        return features
