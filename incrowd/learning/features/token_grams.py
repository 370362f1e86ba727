"""Pieces of a sequence of tokens (n-grams), in buckets: what a linear model reads of whole numbers."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from incrowd import _validate
from incrowd.errors import ConfigError, DataError
from incrowd.learning.features.feature_map import Composed, FeatureMap, Values

Reads = Literal["end", "all"]

_MOST_BUCKETS = 1 << 16
_LONGEST = 16
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST, _ONE = np.uint64(31), np.uint64(1)


@dataclass(frozen=True, kw_only=True)
class TokenGrams:
    """A sequence of tokens as its pieces of 1 to `longest` tokens, counted in `buckets`, at length one.

    With `reads` "end" the pieces are those that end with the last token: what stands before the token that follows.
    With "all" they are all, wherever they stand: what a sequence is about; counts become square roots. Pieces with
    the token `padding` in them are left out. Which bucket a piece falls into, and with which sign, follows from the
    piece alone, so that nobody's vocabulary has to be known.

    Guarantee: features follow from one sequence alone, and are the same on every machine.

    Edge cases: a sequence without a piece gives zeros; examples that are no whole numbers, or no sequences, are a
    `DataError`.
    """

    buckets: int = 1024
    longest: int = 3
    reads: Reads = "all"
    padding: int | None = None

    def __post_init__(self) -> None:
        _validate.count(buckets=self.buckets, longest=self.longest)
        if self.buckets > _MOST_BUCKETS:
            remedy = f"each is a number of every example: give at most {_MOST_BUCKETS}"
            raise ConfigError(field="buckets", value=self.buckets, remedy=remedy)
        if self.longest > _LONGEST:
            raise ConfigError(field="longest", value=self.longest, remedy=f"give at most {_LONGEST} tokens a piece")
        if self.reads not in ("end", "all"):
            raise ConfigError(field="reads", value=self.reads, remedy='choose from "end", "all"')

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return repr(self)

    def __call__(self, values: NDArray[Any]) -> Values:
        """See `FeatureMap.__call__`."""
        if values.dtype != np.int64 or values.ndim != 2:
            raise DataError(
                f"examples are {values.dtype} of the shape {values.shape[1:]}: pieces are of sequences of tokens, give "
                "int64 [examples, tokens]"
            )
        counts = np.zeros((len(values), self.buckets))
        pieces, left_out = values.astype(np.uint64), self._padding(values)
        hashed = np.zeros_like(pieces)
        for size in range(1, min(self.longest, values.shape[1]) + 1):
            starts = values.shape[1] - size + 1
            hashed = _mixed(hashed[:, :starts] + _GOLDEN + pieces[:, size - 1 :])
            left_out = left_out[:, :starts] | self._padding(values)[:, size - 1 :]
            seen = slice(starts - 1 if self.reads == "end" else 0, starts)
            self._count(counts, hashed[:, seen], left_out[:, seen])
        roots = np.sign(counts) * np.sqrt(np.abs(counts))
        lengths = np.sqrt(np.abs(counts).sum(axis=1, keepdims=True))
        scaled: Values = np.divide(roots, lengths, out=roots, where=lengths > 0).astype(np.float32)
        return scaled

    def _padding(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        if self.padding is None:
            return np.zeros(values.shape, np.bool_)
        return np.asarray(values == self.padding)

    def _count(self, counts: NDArray[np.float64], hashed: NDArray[np.uint64], left_out: NDArray[np.bool_]) -> None:
        """Each piece in its bucket, with its sign: what falls together cancels rather than adds up."""
        signs = np.where(left_out, 0.0, np.where(hashed & _ONE, 1.0, -1.0))
        places = ((hashed >> _ONE) % np.uint64(self.buckets)).astype(np.intp)
        np.add.at(counts, (np.arange(len(counts))[:, None], places), signs)


def takes_tokens(feature_map: FeatureMap) -> bool:
    """Whether the examples of a map are whole numbers."""
    if isinstance(feature_map, Composed):
        return takes_tokens(feature_map.stages[0])
    return isinstance(feature_map, TokenGrams)


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of a number in every bit of another (splitmix64)."""
    for shift, factor in _MIX:
        numbers = (numbers ^ (numbers >> shift)) * factor
    return numbers ^ (numbers >> _LAST)
