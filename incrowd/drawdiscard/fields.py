"""The fields of a device's table as a specification describes them, and how their values become numbers in [0, 1].

Ranges, levels, words and buckets are public: they come from the specification, never from the data. Numbers and
categories are here, what looks at text is in `text_fields`.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import numpy as np
from pydantic import Field, FiniteFloat, model_validator

from incrowd._random import Floats
from incrowd.drawdiscard.field_base import AnyTableField, Level, Levels, OneFeatureField
from incrowd.drawdiscard.sparse import SparseRows
from incrowd.drawdiscard.text_fields import CountField, HashedField, ListField, TextField, WordsField
from incrowd.drawdiscard.texts import text_of
from incrowd.errors import ConfigError


class NumberField(OneFeatureField):
    """A number of a public range, mapped to [0, 1].

    Edge cases: a value beyond an end of the range counts as that end; what is missing or no number counts as 0.
    """

    type: Literal["number"] = "number"
    low: FiniteFloat
    high: FiniteFloat

    @model_validator(mode="after")
    def _check(self) -> "NumberField":
        _check_range(self.low, self.high)
        return self

    def encode(self, values: Sequence[object]) -> Floats:
        """See `AnyTableField.encode`."""
        return _normalised(_numbers(values), self.low, self.high)

    def misfit(self, value: object) -> str | None:
        """See `AnyTableField.misfit`."""
        return _beyond(_number(value), self.low, self.high)


class IntegerField(OneFeatureField):
    """A whole number of a public range, mapped to [0, 1].

    Edge cases: as `NumberField`; a value between two whole numbers counts as the nearer one.
    """

    type: Literal["integer"] = "integer"
    low: int = Field(ge=-(2**53), le=2**53)
    high: int = Field(ge=-(2**53), le=2**53)

    @model_validator(mode="after")
    def _check(self) -> "IntegerField":
        _check_range(self.low, self.high)
        return self

    def encode(self, values: Sequence[object]) -> Floats:
        """See `AnyTableField.encode`."""
        return _normalised(np.rint(_numbers(values)), self.low, self.high)

    def misfit(self, value: object) -> str | None:
        """See `AnyTableField.misfit`."""
        number = _number(value)
        return _beyond(number, self.low, self.high) or _between(number)


class BooleanField(OneFeatureField):
    """Yes or no, stored as 1 or 0.

    Edge cases: a number beyond counts as the nearer one of the two; what is missing or no number counts as 0.
    """

    type: Literal["boolean"] = "boolean"

    def encode(self, values: Sequence[object]) -> Floats:
        """See `AnyTableField.encode`."""
        return _normalised(np.rint(_numbers(values)), 0, 1)

    def misfit(self, value: object) -> str | None:
        """See `AnyTableField.misfit`."""
        number = _number(value)
        return _beyond(number, 0, 1) or _between(number)


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
    def width(self) -> int:
        """See `AnyTableField.width`."""
        return len(self.levels) - (self.baseline is not None)

    def columns(self, name: str) -> tuple[str, ...]:
        """See `AnyTableField.columns`."""
        return tuple(f"{name}={level}" for level in self.featured)

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


def _beyond(number: float, low: float, high: float) -> str | None:
    if math.isnan(number):
        return "is no number"
    return None if low <= number <= high else f"lies beyond {low:g} to {high:g}"


def _between(number: float) -> str | None:
    return None if number == round(number) else "is no whole number"


def _check_range(low: float, high: float) -> None:
    if not (low < high and np.isfinite(high - low)):
        raise ConfigError(field="high", value=high, remedy=f"give a number above low, which is {low}")


def _numbers(values: Sequence[object]) -> Floats:
    """The values that are numbers; NaN for the others. Whole numbers too large for a float keep their side."""
    return np.array([_number(value) for value in values], dtype=np.float64)


def _number(value: object) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        return float(max(-(2**1023), min(2**1023, value)))
    return math.nan


def _normalised(values: Floats, low: float, high: float) -> Floats:
    scaled = (np.clip(values, low, high) - low) / (high - low)
    scaled[np.isnan(scaled)] = 0.0
    return scaled[:, None]
