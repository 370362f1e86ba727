"""The fields of a device's table as a specification describes them, and how their values become numbers in [0, 1].

Ranges, levels, words and buckets are public: they come from the specification, never from the data. Numbers and
categories are here, what looks at text is in `text_fields`.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, FiniteFloat, model_validator

from incrowd._random import Floats
from incrowd.drawdiscard.field_base import AnyTableField, Level, Levels, of_levels
from incrowd.drawdiscard.sparse import SparseRows
from incrowd.drawdiscard.text_fields import CountField, HashedField, ListField, TextField, WordsField
from incrowd.drawdiscard.texts import text_of
from incrowd.errors import ConfigError


class ScaledField(AnyTableField):
    """A number of a public range, mapped to [0, 1].

    Edge cases: a value beyond an end of the range counts as that end; what is missing or no number counts as 0. In a
    field of whole numbers a value between two of them counts as the nearer one.
    """

    _whole: ClassVar[bool] = True

    @property
    @abstractmethod
    def span(self) -> tuple[float, float]:
        """The ends of the range."""

    @property
    def endings(self) -> Sequence[str]:
        """See `AnyTableField.endings`."""
        return [""]

    def sparse(self, values: Sequence[object]) -> SparseRows:
        """See `AnyTableField.sparse`."""
        return SparseRows.from_dense(self.encode(values))

    def encode(self, values: Sequence[object]) -> Floats:
        """See `AnyTableField.encode`."""
        numbers, (low, high) = np.array([_number(value) for value in values], np.float64), self.span
        scaled: Floats = (np.clip(np.rint(numbers) if self._whole else numbers, low, high) - low) / (high - low)
        scaled[np.isnan(scaled)] = 0.0
        return scaled[:, None]

    def misfit(self, value: object) -> str | None:
        """See `AnyTableField.misfit`."""
        number, (low, high) = _number(value), self.span
        if math.isnan(number):
            return "is no number"
        if not low <= number <= high:
            return f"lies beyond {low:g} to {high:g}"
        return "is no whole number" if self._whole and number != round(number) else None


class RangedField(ScaledField):
    """A number whose range a specification states."""

    low: float
    high: float

    @property
    def span(self) -> tuple[float, float]:
        """See `ScaledField.span`."""
        return self.low, self.high

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.low < self.high and np.isfinite(self.high - self.low)):
            raise ConfigError(field="high", value=self.high, remedy=f"give a number above low, which is {self.low}")
        return self


class NumberField(RangedField):
    """A number of a public range."""

    type: Literal["number"] = "number"
    low: FiniteFloat
    high: FiniteFloat
    _whole: ClassVar[bool] = False


class IntegerField(RangedField):
    """A whole number of a public range."""

    type: Literal["integer"] = "integer"
    low: int = Field(ge=-(2**53), le=2**53)
    high: int = Field(ge=-(2**53), le=2**53)


class BooleanField(ScaledField):
    """Yes or no, stored as 1 or 0."""

    type: Literal["boolean"] = "boolean"

    @property
    def span(self) -> tuple[float, float]:
        """See `ScaledField.span`."""
        return 0, 1


class CategoryField(AnyTableField):
    """One of several public levels, a feature each (one-hot); `baseline` names a level that gets none.

    Edge cases: a value that is no level, or missing, counts as none of them, and so has no feature at all; whole
    numbers are compared by their digits, 7.0 as 7.
    """

    type: Literal["category"] = "category"
    levels: Levels
    baseline: Level | None = None

    @model_validator(mode="after")
    def _check(self) -> "CategoryField":
        if len(set(self.levels)) != len(self.levels):
            raise ConfigError(field="levels", value=self.levels, remedy="give each level once")
        if self.baseline is not None and self.baseline not in self.levels:
            raise ConfigError(field="baseline", value=self.baseline, remedy="choose one of the levels")
        return self

    @property
    def featured(self) -> tuple[str, ...]:
        """The levels that have a feature."""
        return tuple(level for level in self.levels if level != self.baseline)

    @property
    def endings(self) -> Sequence[str]:
        """See `AnyTableField.endings`."""
        return of_levels(self.featured)

    def sparse(self, values: Sequence[object]) -> SparseRows:
        """See `AnyTableField.sparse`."""
        return _levels_of(self.featured, values)

    def misfit(self, value: object) -> str | None:
        """See `AnyTableField.misfit`."""
        return None if text_of(value) in self._known else "is none of the levels"

    def known(self, values: Sequence[object]) -> list[bool]:
        """Which values are levels."""
        return [text_of(value) in self._known for value in values]

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.levels)


TableField = (
    NumberField
    | IntegerField
    | BooleanField
    | CategoryField
    | HashedField
    | ListField
    | TextField
    | WordsField
    | CountField
)
ResponseField = NumberField | IntegerField | BooleanField | CategoryField
"""What can be predicted."""


def spelled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as a specification has them, from the words for columns of tables (`incrowd.data.columns.column_of`).

    Edge cases: a column that devices have no field for is a `ConfigError`; an ignored one is left out.
    """
    from incrowd.data.columns import columns_of
    from incrowd.data.schema import Category, Column, Ignored, Number, Text, YesNo

    found = dict(fields)
    for name, words in fields.items():
        if not isinstance(words, str | Mapping | Column) or (isinstance(words, Mapping) and "type" in words):
            continue
        column = columns_of({name: words})[name]
        if isinstance(column, Ignored):
            del found[name]
        elif isinstance(column, Number) and column.range is not None:
            kind = int if column.whole else float
            low, high = map(kind, column.range)
            found[name] = {"type": "integer" if column.whole else "number", "low": low, "high": high}
        elif isinstance(column, Category):
            found[name] = {"type": "category", "levels": list(column.levels)}
        elif isinstance(column, YesNo):
            found[name] = {"type": "boolean"}
        elif isinstance(column, Text):
            found[name] = {"type": "text", "buckets": column.buckets}
        else:
            remedy = "devices have numbers with a range, levels, yes/no and text: state one of these"
            raise ConfigError(field=f"fields.{name}", value=words, remedy=remedy)
    return found


def one_of(levels: Sequence[str], values: Sequence[object]) -> Floats:
    """A row a value, a column a level: 1 where they are equal."""
    return _levels_of(levels, values).dense()


def known(field: TableField, values: Sequence[object]) -> list[bool]:
    """Which values are there and make sense: a response that does not is no response."""
    if isinstance(field, CategoryField):
        return field.known(values)
    return [not math.isnan(_number(value)) for value in values]


def misfits(field: TableField, values: Sequence[object]) -> list[str | None]:
    """Why each value does not count as what it is, for the owner of the table; None where it does."""
    return ["is missing" if value is None else field.misfit(value) for value in values]


def _levels_of(levels: Sequence[str], values: Sequence[object]) -> SparseRows:
    places = {level: place for place, level in enumerate(levels)}
    found = [places.get(text) if (text := text_of(value)) is not None else None for value in values]
    return SparseRows.ones([[] if place is None else [place] for place in found], len(levels))


def _number(value: object) -> float:
    """A value that is a number; NaN for another. A whole number too large for a float keeps its side."""
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        return float(max(-(2**1023), min(2**1023, value)))
    return math.nan
