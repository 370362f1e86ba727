"""The fields of a device's table as a specification describes them, and how their values become numbers in [0, 1].

Ranges and levels are public: they come from the specification, never from the data.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from incrowd._random import Floats
from incrowd.errors import ConfigError

STRICT = ConfigDict(strict=True, frozen=True, extra="forbid")
LONGEST_NAME = 64
MOST_LEVELS = 10_000

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=LONGEST_NAME)]
Level = Annotated[str, Field(max_length=200)]


class Described(Protocol):
    """What a field knows about its values."""

    def columns(self, name: str) -> tuple[str, ...]:
        """The names of its features."""
        ...

    def encode(self, values: Sequence[object]) -> Floats:
        """Its features, a row a value."""
        ...


class NumberField(BaseModel):
    """A number of a public range, mapped to [0, 1].

    Edge cases: a value beyond an end of the range counts as that end; what is missing or no number counts as 0.
    """

    model_config = STRICT
    type: Literal["number"] = "number"
    low: FiniteFloat
    high: FiniteFloat

    @model_validator(mode="after")
    def _check(self) -> "NumberField":
        _check_range(self.low, self.high)
        return self

    def columns(self, name: str) -> tuple[str, ...]:
        """See `Described.columns`."""
        return (name,)

    def encode(self, values: Sequence[object]) -> Floats:
        """See `Described.encode`."""
        return _normalised(_numbers(values), self.low, self.high)


class IntegerField(BaseModel):
    """A whole number of a public range, mapped to [0, 1].

    Edge cases: as `NumberField`; a value between two whole numbers counts as the nearer one.
    """

    model_config = STRICT
    type: Literal["integer"] = "integer"
    low: int = Field(ge=-(2**53), le=2**53)
    high: int = Field(ge=-(2**53), le=2**53)

    @model_validator(mode="after")
    def _check(self) -> "IntegerField":
        _check_range(self.low, self.high)
        return self

    def columns(self, name: str) -> tuple[str, ...]:
        """See `Described.columns`."""
        return (name,)

    def encode(self, values: Sequence[object]) -> Floats:
        """See `Described.encode`."""
        return _normalised(np.rint(_numbers(values)), self.low, self.high)


class BooleanField(BaseModel):
    """Yes or no, stored as 1 or 0.

    Edge cases: a number beyond counts as the nearer one of the two; what is missing or no number counts as 0.
    """

    model_config = STRICT
    type: Literal["boolean"] = "boolean"

    def columns(self, name: str) -> tuple[str, ...]:
        """See `Described.columns`."""
        return (name,)

    def encode(self, values: Sequence[object]) -> Floats:
        """See `Described.encode`."""
        return _normalised(np.rint(_numbers(values)), 0, 1)


class CategoryField(BaseModel):
    """One of several public levels, a feature each (one-hot); `baseline` names a level that gets none.

    Edge cases: a value that is no level, or missing, counts as none of them, and so has no feature at all; whole
    numbers are compared by their digits.
    """

    model_config = STRICT
    type: Literal["category"] = "category"
    levels: tuple[Level, ...] = Field(min_length=1, max_length=MOST_LEVELS)
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

    def columns(self, name: str) -> tuple[str, ...]:
        """See `Described.columns`."""
        return tuple(f"{name}={level}" for level in self.featured)

    def encode(self, values: Sequence[object]) -> Floats:
        """See `Described.encode`."""
        return one_of(self.featured, values)


TableField = NumberField | IntegerField | BooleanField | CategoryField


def one_of(levels: Sequence[str], values: Sequence[object]) -> Floats:
    """A row a value, a column a level: 1 where they are equal."""
    places = {level: place for place, level in enumerate(levels)}
    rows = np.zeros((len(values), len(levels)))
    for row, value in zip(rows, values, strict=True):
        text = _as_level(value)
        place = None if text is None else places.get(text)
        if place is not None:
            row[place] = 1.0
    return rows


def known(field: TableField, values: Sequence[object]) -> list[bool]:
    """Which values are there and make sense: a response that does not is no response."""
    if isinstance(field, CategoryField):
        return [bool(row.any()) for row in one_of(field.levels, values)]
    return [not math.isnan(_number(value)) for value in values]


def misfits(field: TableField, values: Sequence[object]) -> list[str | None]:
    """Why each value does not count as what it is, for the owner of the table; None where it does."""
    if isinstance(field, CategoryField):
        levels = set(field.levels)
        whys = [None if _as_level(value) in levels else "is none of the levels" for value in values]
    else:
        whys = [_no_such_number(field, _number(value)) for value in values]
    return ["is missing" if value is None else why for value, why in zip(values, whys, strict=True)]


def _no_such_number(field: NumberField | IntegerField | BooleanField, number: float) -> str | None:
    low, high = (0, 1) if isinstance(field, BooleanField) else (field.low, field.high)
    if math.isnan(number):
        return "is no number"
    if not low <= number <= high:
        return f"lies beyond {low:g} to {high:g}"
    whole = isinstance(field, NumberField) or number == round(number)
    return None if whole else "is no whole number"


def _as_level(value: object) -> str | None:
    if isinstance(value, int):
        return str(value)
    return value if isinstance(value, str) else None


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
