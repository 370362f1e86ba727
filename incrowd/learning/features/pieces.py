"""Pieces of texts and of sequences of tokens: kept as numbers, made features where a model reads them.

A row of 16,384 features, mostly zero, takes 64 KB; the numbers of its pieces take 2 KB.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from incrowd import _validate
from incrowd.data.columns import Columns
from incrowd.data.schema import BUCKETS, Text
from incrowd.errors import ConfigError, DataError
from incrowd.learning.features.feature_map import Composed, ModuleMap, Named, Values
from incrowd.types import FeatureMap

Reads = Literal["end", "all"]

_LONGEST = 16
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST, _ONE = np.uint64(31), np.uint64(1)
_APART = 25_717  # buckets from a column's piece to the same piece of the next column


class Spread(nn.Module):
    """The layer that counts pieces [n, numbers] in buckets [n, buckets]: log(1 + count) with its sign, at length one.

    With `constant` there is one more feature, which every example has.

    Guarantee: features follow from one example alone, bit for bit: counts are multiples of a half, in any order.
    """

    def __init__(self, *, buckets: int, constant: float = 0.0) -> None:
        super().__init__()
        _validate.count(buckets=buckets)
        _validate.non_negative(constant=constant)
        if buckets > BUCKETS:
            raise ConfigError(field="buckets", value=buckets, remedy=f"each has weights: give at most {BUCKETS}")
        self.buckets, self.constant = buckets, constant

    def forward(self, numbers: Tensor) -> Tensor:
        """See the class."""
        sizes = numbers.abs().long()
        weights = numbers.sign() / (1 + (sizes > BUCKETS))
        places = (sizes - 1) % BUCKETS % self.buckets
        width = self.buckets + bool(self.constant)
        counts = numbers.new_zeros(numbers.shape[0], width).scatter_add(1, places, weights)
        counted = counts.gather(1, places)  # few logarithms: most buckets are empty
        features = functional.normalize(counts.scatter(1, places, counted.sign() * counted.abs().log1p()))
        features[:, self.buckets :] = self.constant
        return features

    @property
    def whole(self) -> FeatureMap:
        """The same as a feature map, for models that have no such layer."""
        return ModuleMap(f"Spread(buckets={self.buckets}, constant={self.constant})", self)


@dataclass(frozen=True, kw_only=True)
class TextPieces:
    """Rows that are texts alone: the same piece has another bucket in each column."""

    columns: Columns

    def __post_init__(self) -> None:
        for name in self.columns.features:
            if not isinstance(self.columns.meaning(name), Text):
                raise ConfigError(field="name", value="text", remedy=f"{name} is no text: take table, or leave it out")

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return f"TextPieces({self._widths})"

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        sizes = np.abs(values).astype(np.int64) - 1
        moved = (sizes + np.repeat(np.arange(len(self._widths)) * _APART, self._widths)) % BUCKETS + 1
        numbers: Values = (np.sign(values) * (moved + BUCKETS * (sizes >= BUCKETS))).astype(np.float32)
        return numbers

    @property
    def _widths(self) -> list[int]:
        return [len(self.columns.meaning(name).features(name)) for name in self.columns.features]


@dataclass(frozen=True, kw_only=True)
class TextBuckets:
    """Rows of a table whose texts become as many features as `buckets` of their columns; the rest stays as it is."""

    columns: Columns

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return f"TextBuckets({[repr(self.columns.meaning(name)) for name in self.columns.features]})"

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        parts, at = list[Values](), 0
        for name in self.columns.features:
            meaning = self.columns.meaning(name)
            end = at + len(meaning.features(name))
            if isinstance(meaning, Text):
                parts.append(Spread(buckets=meaning.buckets).whole(values[:, at : at + meaning.pieces]))
                at += meaning.pieces
            parts.append(values[:, at:end])
            at = end
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True, kw_only=True)
class TokenGrams(Named):
    """A sequence of tokens as the numbers of its pieces of 1 to `longest` tokens, as `incrowd.data.schema` has them.

    With `reads` "end" the pieces are those that end with the last token, the context of the next one; with "all" they
    are all pieces. Pieces with the token `padding` in them are left out.

    Guarantee: numbers follow from one sequence alone, and are the same on every machine.
    """

    longest: int = 3
    reads: Reads = "all"
    padding: int | None = None

    def __post_init__(self) -> None:
        _validate.count(longest=self.longest)
        if self.longest > _LONGEST:
            raise ConfigError(field="longest", value=self.longest, remedy=f"give at most {_LONGEST} tokens a piece")
        if self.reads not in ("end", "all"):
            raise ConfigError(field="reads", value=self.reads, remedy='choose from "end", "all"')

    def __call__(self, values: NDArray[Any]) -> Values:
        """See `FeatureMap.__call__`."""
        if values.dtype != np.int64 or values.ndim != 2:
            raise DataError(
                f"examples are {values.dtype} of the shape {values.shape[1:]}: pieces are of sequences of tokens, give "
                "int64 [examples, tokens]"
            )
        blank = np.zeros(values.shape, np.bool_) if self.padding is None else values == self.padding
        hashed, left_out, found = np.zeros(values.shape, np.uint64), np.zeros_like(blank), list[NDArray[Any]]()
        for size in range(1, min(self.longest, values.shape[1]) + 1):
            starts = values.shape[1] - size + 1
            hashed = _mixed(hashed[:, :starts] + _GOLDEN + values.astype(np.uint64)[:, size - 1 :])
            left_out = left_out[:, :starts] | blank[:, size - 1 :]
            seen = slice(starts - 1 if self.reads == "end" else 0, starts)
            signs = np.where(left_out[:, seen], 0.0, np.where(hashed[:, seen] & _ONE, 1.0, -1.0))
            found.append(signs * (1 + (hashed[:, seen] >> _ONE) % np.uint64(BUCKETS)))
        numbers: Values = np.concatenate(found, axis=1).astype(np.float32)
        return numbers


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
