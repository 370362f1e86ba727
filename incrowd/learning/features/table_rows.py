"""Rows of a table for a linear model, by what is stated of its columns alone."""

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from incrowd import _validate
from incrowd.data.columns import Columns
from incrowd.data.schema import Category, Column, Date, Number, Text, YesNo
from incrowd.errors import ConfigError
from incrowd.learning.features.feature_map import Values

_WIDE = 1000.0  # a range this wide may have a long tail: its logarithm is there, too
_MOST_BINS = 256
_LOUDER = math.sqrt(3)  # texts: they are many numbers, each of which is rarely not zero
_TINY = 1e-6
_SMALLEST, _SIDE, _A_DECADE = 1e-3, 36, 3  # sizes on either side of 0, three a decade, from a thousandth on

PLACES = 2 * _SIDE + 1
"""How many features a number without a stated range becomes."""


@dataclass(frozen=True, kw_only=True)
class TableRows:
    """A row that was encoded as `columns` state, as a vector of length one for a linear model under noise.

    - A number, or a date, becomes `bins` ramps from -1 to 1 over parts of the stated range, so that a linear model is
      piecewise linear in it; a range of at least 1,000 has ramps over its logarithm, too. A number stated with `knots`
      is these, less their mean.
    - A number without a range becomes how near it is to fixed sizes, of either sign, from a thousandth to a thousand
      million: a scale found in the rows would tell who is in them.
    - A category's levels become 1 - 1/levels and -1/levels, yes and no 1/2 and -1/2.
    - Texts, in buckets already (`TextBuckets`), are scaled by the root of three; flags of missing values stay.
    - With `raw`, encoded numbers have that share of the square of the row's length: ramps over a far wider range hardly
      differ.

    Guarantee: nothing comes from rows; a row's features depend on that row and on what is stated.

    Edge cases: numbers of one size look alike where no range is stated, say 1990 and 2020. Rows that are not as wide as
    the columns say are a `ConfigError`.
    """

    columns: Columns
    bins: int = 4
    raw: float = 0.0

    def __post_init__(self) -> None:
        _validate.count(bins=self.bins)
        _validate.non_negative(raw=self.raw)
        if self.raw >= 1:
            raise ConfigError(field="raw", value=self.raw, remedy="give a share below 1")
        if self.bins > _MOST_BINS:
            remedy = f"each is a number of every row: give at most {_MOST_BINS}"
            raise ConfigError(field="bins", value=self.bins, remedy=remedy)

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        meanings = ", ".join(f"{name!r}: {self.columns.meaning(name)!r}" for name in self.columns.features)
        return f"TableRows(bins={self.bins}, raw={self.raw}, columns={{{meanings}}})"

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        plan = self._plan
        if values.shape[1:] != (plan.width,):
            remedy = f"the columns become {plan.width} numbers, these rows have {values.shape[1:]}: give their columns"
            raise ConfigError(field="name", value="table", remedy=remedy)
        exact = values.astype(np.float64)
        ramps = np.clip(self._places(exact)[:, :, None] * self.bins - np.arange(self.bins), 0, 1) * 2 - 1
        numbers = (ramps / np.sqrt(self.bins)).reshape(len(values), -1)
        places, centres, weights = np.array(plan.others).reshape(-1, 3).T
        others = (exact[:, places.astype(int)] - centres) * weights
        seen = _unit(np.concatenate([numbers, sizes(exact[:, plan.bare]), others], axis=1))
        if self.raw:
            encoded = _unit(exact)[:, [*plan.numbers, *plan.bare]] * math.sqrt(self.raw)
            rest = np.sqrt(1 - np.square(encoded).sum(axis=1, keepdims=True))
            seen = np.concatenate([seen * rest, encoded], axis=1)
        features: Values = seen.astype(np.float32)
        return features

    def _places(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """The places of numbers in their ranges, from 0 to 1; the wide ones once more, by the logarithm."""
        least, low, high = np.array(self._plan.ranges).reshape(-1, 3).T
        linear = (rows[:, self._plan.numbers] - least) / (1 - least)
        wide = high - low >= _WIDE
        meant = low[wide] + (high - low)[wide] * linear[:, wide]
        logarithmic = (_log(meant) - _log(low[wide])) / (_log(high[wide]) - _log(low[wide]))
        return np.concatenate([linear, logarithmic], axis=1)

    @cached_property
    def _plan(self) -> "_Plan":
        plan, at = _Plan(), 0
        for name in self.columns.features:
            meaning = self.columns.meaning(name)
            width, flags = len(meaning.features(name)), 1
            if isinstance(meaning, Text):
                width += meaning.buckets - meaning.pieces
            if is_bare(meaning):
                plan.bare.append(at)
            elif isinstance(meaning, Date) or (isinstance(meaning, Number) and meaning.knots is None):
                plan.numbers.append(at)
                plan.ranges.append((meaning.to[0], *_range(meaning)))
            else:
                flags = width - meaning.indicator
                centre, weight = _centre(meaning, flags), _LOUDER if isinstance(meaning, Text) else 1.0
                plan.others += [(place, centre, weight) for place in range(at, at + flags)]
            plan.others += [(place, 0.0, 1.0) for place in range(at + flags, at + width)]
            at += width
        plan.width = at
        return plan


@dataclass
class _Plan:
    """Which of a row's numbers are what."""

    width: int = 0
    numbers: list[int] = field(default_factory=list)
    ranges: list[tuple[float, float, float]] = field(default_factory=list)
    bare: list[int] = field(default_factory=list)
    others: list[tuple[int, float, float]] = field(default_factory=list)  # each with its centre and its weight


def sizes(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """How near numbers [n, columns] are to each size [n, columns * PLACES]; a row's zeros together weigh as one."""
    decades = np.log10(np.maximum(np.abs(numbers), _SMALLEST) / _SMALLEST)
    at = np.clip(np.sign(numbers) * decades * _A_DECADE, -_SIDE, _SIDE)
    near: NDArray[np.float64] = np.maximum(0.0, 1 - np.abs(at[..., None] - np.arange(-_SIDE, _SIDE + 1)))
    near[..., _SIDE] /= np.maximum(np.linalg.norm(near[..., _SIDE], axis=1, keepdims=True), 1.0)
    return near.reshape(len(numbers), -1)


def bare(columns: Columns) -> tuple[str, ...]:
    """The features that are numbers without a stated range, once features are named."""
    return tuple(name for name in columns.features if is_bare(columns.meaning(name)))


def is_bare(meaning: Column) -> bool:
    """Whether it is a number without a stated range."""
    return isinstance(meaning, Number) and meaning.range is None


def texts_of(columns: Columns) -> tuple[bool, ...]:
    """For each column that is learned from, whether it is a text."""
    return tuple(isinstance(columns.meaning(name), Text) for name in columns.features)


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = rows / (np.linalg.norm(rows, axis=1, keepdims=True) + _TINY)
    return found


def _range(meaning: Number | Date) -> tuple[float, float]:
    """The range of the scale on which a place is; any range for a date or a logarithm."""
    stated = isinstance(meaning, Number) and not meaning.log and meaning.range
    return stated or (0.0, 1.0)


def _centre(meaning: Column, flags: int) -> float:
    """The mean over what a cell may be, each as likely."""
    if isinstance(meaning, Category | Number):  # a number with knots is near one, or between two
        return 1 / flags
    return 0.5 if isinstance(meaning, YesNo) else 0.0


def _log(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sign(numbers) * np.log1p(np.abs(numbers))
