"""Rows of a table as a linear model sees them best, from what is stated of its columns alone."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from incrowd import _validate
from incrowd.data import Category, Column, Columns, Date, Number, Text, YesNo
from incrowd.errors import ConfigError
from incrowd.learning.features.feature_map import Values
from incrowd.learning.features.sizes import sizes, sizes_or_numbers

_WIDE = 1000.0  # a range this wide may have a long tail: it is seen through a logarithm, too
_MOST_BINS = 256
_LOUDER = math.sqrt(3)  # texts: what they say is in many more numbers, each of which is rarely there
_MOSTLY = 0.9  # of a row's numbers without a range: what is beside them says nothing of their scale
_TINY = 1e-6


@dataclass(frozen=True, kw_only=True)
class TableRows:
    """A row that was encoded as `columns` state, as a vector of length one that suits a linear model under noise.

    Its texts are in buckets already (`TextBuckets`).

    - A number, or a date, becomes `bins` ramps: each rises from -1 to 1 over its part of the stated range, so that a
      linear model is piecewise linear in it. One whose range is at least 1,000 wide is seen through a logarithm that
      keeps the sign, too. Together the ramps of one scale weigh as much as one number from -1 to 1. One that was stated
      with `log` is on such a scale already, and one with `knots` becomes these, less their mean.
    - A number without a range becomes how near it is to sizes from a thousandth to a thousand million
      (`incrowd.learning.features.sizes`). Where hardly any column is anything else, a row whose numbers are on one
      scale already stays as it is.
    - A category's levels become 1 - 1/levels and -1/levels, yes and no 1/2 and -1/2.
    - Texts are made louder by the root of three, and what says that a value was missing stays as it is.
    - With `raw`, numbers are there once more as they were encoded, as loud as they are in a row of length one, times
      the root of that share. Over a range far wider than its numbers ramps hardly differ, and sizes make a column that
      is a hundred times as loud as the others as quiet as these.

    Guarantee: nothing comes from rows; a row's features depend on that row and on what is stated.

    Edge cases: numbers of one size look alike where no range is stated, say 1990 and 2020. Rows that are not as wide as
    the columns say are a `ConfigError`: the columns are those of another table.
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
        places = self._places(values[:, plan.numbers], plan)
        ramps = np.clip(places[:, :, None] * self.bins - np.arange(self.bins), 0, 1) * 2 - 1
        scaled = (ramps / np.sqrt(self.bins)).reshape(len(values), -1)
        seen = sizes_or_numbers if len(plan.unknown) >= _MOSTLY * plan.width else sizes
        features = np.concatenate(
            [scaled, seen(values[:, plan.unknown]), (values[:, plan.others] - plan.centres) * plan.weights], axis=1
        )
        lengths = np.linalg.norm(features, axis=1, keepdims=True) + _TINY
        shortened: Values = self._with_raw(features / lengths, values, plan).astype(np.float32)
        return shortened

    def _with_raw(self, seen: NDArray[np.float64], values: Values, plan: "_Arrangement") -> NDArray[np.float64]:
        """Rows of length one with their numbers as they are, and of length one again."""
        if not self.raw:
            return seen
        lengths = np.linalg.norm(values.astype(np.float64), axis=1, keepdims=True) + _TINY
        numbers = values[:, [*plan.numbers, *plan.unknown]] * (math.sqrt(self.raw) / lengths)
        rest = np.sqrt(1 - (numbers * numbers).sum(axis=1, keepdims=True))
        return np.concatenate([seen * rest, numbers], axis=1)

    def _places(self, placed: Values, plan: "_Arrangement") -> NDArray[np.float64]:
        """Where numbers are in their ranges, from 0 to 1; the wide ones once more, through the logarithm."""
        linear = (placed.astype(np.float64) - plan.least) / (1 - plan.least)
        low, high = plan.low[plan.wide], plan.high[plan.wide]
        meant = low + (high - low) * linear[:, plan.wide]
        logarithmic = (_log(meant) - _log(low)) / (_log(high) - _log(low))
        return np.concatenate([linear, logarithmic], axis=1)

    @cached_property
    def _plan(self) -> "_Arrangement":
        numbers: list[tuple[int, float, float, float]] = []
        unknown: list[int] = []
        others: list[tuple[int, float, float]] = []
        at = 0
        for name in self.columns.features:
            meaning = self.columns.meaning(name)
            width = len(meaning.features(name))
            if isinstance(meaning, Text):
                width += meaning.buckets - meaning.pieces
            flags = 1
            if is_bare(meaning):
                unknown.append(at)
            elif isinstance(meaning, Date) or (isinstance(meaning, Number) and meaning.knots is None):
                numbers.append((at, meaning.to[0], *_range(meaning)))
            else:
                flags = width - meaning.indicator
                others += [(at + inner, _centre(meaning, flags), _weight(meaning)) for inner in range(flags)]
            others += [(at + inner, 0.0, 1.0) for inner in range(flags, width)]
            at += width
        return _Arrangement.of(at, numbers, unknown, others)


def bare(columns: Columns) -> tuple[str, ...]:
    """The features that are numbers without a stated range, once features are named."""
    return tuple(name for name in columns.features if is_bare(columns.meaning(name)))


def is_bare(meaning: Column) -> bool:
    """Whether it is a number of which nobody knows how large it may be."""
    return isinstance(meaning, Number) and meaning.range is None


def texts_of(columns: Columns) -> tuple[bool, ...]:
    """Of each column that is learned from, whether it is a text."""
    return tuple(isinstance(columns.meaning(name), Text) for name in columns.features)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Arrangement:
    """Which of a row's numbers are what."""

    width: int
    numbers: NDArray[np.int64]
    least: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    wide: NDArray[np.bool_]
    unknown: NDArray[np.int64]
    others: NDArray[np.int64]
    centres: NDArray[np.float64]
    weights: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        width: int,
        numbers: list[tuple[int, float, float, float]],
        unknown: list[int],
        others: list[tuple[int, float, float]],
    ) -> "_Arrangement":
        stated = np.array(numbers, np.float64).reshape(-1, 4)
        beside = np.array(others, np.float64).reshape(-1, 3)
        return cls(
            width=width,
            numbers=stated[:, 0].astype(np.int64),
            least=stated[:, 1],
            low=stated[:, 2],
            high=stated[:, 3],
            wide=stated[:, 3] - stated[:, 2] >= _WIDE,
            unknown=np.array(unknown, np.int64),
            others=beside[:, 0].astype(np.int64),
            centres=beside[:, 1],
            weights=beside[:, 2],
        )


def _range(meaning: Number | Date) -> tuple[float, float]:
    """That of the scale on which a place is: of a date, or of a logarithm, whichever."""
    stated = isinstance(meaning, Number) and not meaning.log and meaning.range
    return stated or (0.0, 1.0)


def _centre(meaning: Column, flags: int) -> float:
    """The mean over what a cell may be, each as likely."""
    if isinstance(meaning, Category | Number):  # a number with knots is near one, or between two
        return 1 / flags
    return 0.5 if isinstance(meaning, YesNo) else 0.0


def _weight(meaning: Column) -> float:
    """By what its numbers are multiplied."""
    return _LOUDER if isinstance(meaning, Text) else 1.0


def _log(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sign(numbers) * np.log1p(np.abs(numbers))
