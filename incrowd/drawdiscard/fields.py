"""The fields of a specification: each turns the values of a column into features in [0, 1].

Ranges, levels, words and buckets are public: they come from the specification, never from the data. docs/fields.md has
the rules. A missing value, or one of another kind, has no feature: all zeros.
"""

import math
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator
from scipy.sparse import csr_array

from incrowd._random import Floats
from incrowd.drawdiscard.texts import BLANKS, LONGEST_TEXT, UrlPart, buckets_of, ngrams, part_of, text_of, words_of
from incrowd.errors import ConfigError

STRICT = ConfigDict(strict=True, frozen=True, extra="forbid")

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
Level = Annotated[str, Field(max_length=200)]
Levels = Annotated[tuple[Level, ...], Field(min_length=1, max_length=10_000)]
Buckets = Annotated[int, Field(ge=1, le=1_000_000)]
Most = Annotated[int, Field(ge=1, le=1_000_000)]


class AnyTableField(BaseModel):
    """Turns the values of a column into features. The field reads `column`, or else the column of its own name."""

    model_config = STRICT
    column: Annotated[str, Field(min_length=1, max_length=200)] | None = None

    @property
    def width(self) -> int:
        """The number of features."""
        return self._endings if isinstance(self._endings, int) else len(self._endings)

    def columns(self, name: str) -> tuple[str, ...]:
        """The names of the features."""
        endings = self._endings
        numbered = (f"#{bucket}" for bucket in range(endings)) if isinstance(endings, int) else endings
        return tuple(f"{name}{ending}" for ending in numbered)

    def encode(self, values: Sequence[object]) -> csr_array:
        """The features, a row for each value."""
        rows = self._rows(values)
        starts = np.cumsum([0, *map(len, rows)])
        places = np.array([place for row in rows for place in row], np.int64)
        data = [value for row in rows for value in row.values()]
        return csr_array((data, places, starts), shape=(len(rows), self.width))

    def misfit(self, value: object) -> str | None:
        """The reason that a value does not fit, for the owner of the table; None for a value that fits."""
        return "is missing" if value is None else self._misfit(value)

    @abstractmethod
    def _misfit(self, value: object) -> str | None: ...

    @property
    @abstractmethod
    def _endings(self) -> Sequence[str] | int:
        """The endings of the names of the features, or the number of buckets."""

    def _rows(self, values: Sequence[object]) -> list[dict[int, float]]:
        """The features of each value that are not 0, by their places."""
        return [self._row(value) for value in values]

    def _row(self, value: object) -> dict[int, float]:
        raise NotImplementedError


class ScaledField(AnyTableField):
    """A number of a public range, mapped to [0, 1]; values beyond an end count as that end."""

    _whole: ClassVar[bool] = True

    @property
    def span(self) -> tuple[float, float]:
        """The ends of the range."""
        return 0, 1

    def _misfit(self, value: object) -> str | None:
        number, (low, high) = number_of(value), self.span
        if math.isnan(number):
            return "is no number"
        if not low <= number <= high:
            return f"lies beyond {low:g} to {high:g}"
        return "is no whole number" if self._whole and number != round(number) else None

    @property
    def _endings(self) -> Sequence[str]:
        return [""]

    def _row(self, value: object) -> dict[int, float]:
        number, (low, high) = number_of(value), map(float, self.span)
        if math.isnan(number):
            return {}
        within = min(max(number, low), high)
        scaled = ((float(round(within)) if self._whole else within) - low) / (high - low)
        return {0: scaled} if scaled else {}


class RangedField(ScaledField):
    """A number whose range the specification states."""

    low: float
    high: float

    @property
    def span(self) -> tuple[float, float]:
        """The ends of the range."""
        return self.low, self.high

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.low < self.high and math.isfinite(self.high - self.low)):
            raise ConfigError(field="high", value=self.high, remedy=f"give a number above low, which is {self.low}")
        return self


class NumberField(RangedField):
    """A number of a public range."""

    type: Literal["number"] = "number"
    low: FiniteFloat
    high: FiniteFloat
    _whole: ClassVar[bool] = False


class IntegerField(RangedField):
    """A whole number of a public range; other values count as the nearest whole number."""

    type: Literal["integer"] = "integer"
    low: int = Field(ge=-(2**53), le=2**53)
    high: int = Field(ge=-(2**53), le=2**53)


class BooleanField(ScaledField):
    """Yes or no, stored as 1 or 0."""

    type: Literal["boolean"] = "boolean"


class CategoryField(AnyTableField):
    """One of several public levels, a feature for each (one-hot) but the `baseline`."""

    type: Literal["category"] = "category"
    levels: Levels
    baseline: Level | None = None

    @model_validator(mode="after")
    def _check(self) -> "CategoryField":
        _check_once("levels", self.levels, "give each level once")
        if self.baseline is not None and self.baseline not in self.levels:
            raise ConfigError(field="baseline", value=self.baseline, remedy="choose one of the levels")
        return self

    def _misfit(self, value: object) -> str | None:
        return None if self.knows(value) else "is none of the levels"

    def knows(self, value: object) -> bool:
        """Whether a value is a level."""
        text = text_of(value)
        return text is not None and (text in self._featured or text == self.baseline)

    def one_hot(self, values: Sequence[object]) -> Floats:
        """A row for each value, a column for each level, also the baseline's; each value is a level."""
        places: dict[str | None, int] = {level: place for place, level in enumerate(self.levels)}
        hot: Floats = np.eye(len(self.levels))[[places[text_of(value)] for value in values]]
        return hot

    @property
    def _endings(self) -> Sequence[str]:
        return [f"={level}" for level in self._featured]

    def _row(self, value: object) -> dict[int, float]:
        place = self._featured.get(text_of(value))
        return {} if place is None else {place: 1.0}

    @cached_property
    def _featured(self) -> dict[str | None, int]:
        return {level: place for place, level in enumerate(one for one in self.levels if one != self.baseline)}


class HashedField(AnyTableField):
    """Any level, without a list: its text falls into one of the buckets, and two levels may share one."""

    type: Literal["hashed"] = "hashed"
    buckets: Buckets

    def _misfit(self, value: object) -> str | None:
        return "is no text" if text_of(value) is None else None

    @property
    def _endings(self) -> int:
        return self.buckets

    def _rows(self, values: Sequence[object]) -> list[dict[int, float]]:
        texts = map(text_of, values)
        return _bucket_rows([[] if text is None else [text] for text in texts], self.buckets)


class ListField(AnyTableField):
    """Several levels at once: a list, or text that `separator` divides; a feature for each of `levels` or `buckets`.

    The first `most` different items count.
    """

    type: Literal["list"] = "list"
    levels: Levels | None = None
    buckets: Buckets | None = None
    separator: Annotated[str, Field(min_length=1, max_length=10)] = ","
    most: Most = 16

    @model_validator(mode="after")
    def _check(self) -> "ListField":
        if (self.levels is None) == (self.buckets is None):
            raise ConfigError(field="levels", value=self.levels, remedy="give either levels or a number of buckets")
        _check_once("levels", self.levels or (), "give each level once")
        return self

    def _misfit(self, value: object) -> str | None:
        if not isinstance(value, list | tuple) and text_of(value) is None:
            return "is no text and no list"
        items = self._items(value)
        if self.levels is not None and not set(items) <= set(self.levels):
            return "holds what is none of the levels"
        if len(items) > self.most:
            return f"holds more than {self.most} items, of which the first count"
        return _too_long(value)

    @property
    def _endings(self) -> Sequence[str] | int:
        return (self.buckets or 0) if self.levels is None else _of_levels(self.levels)

    def _row(self, value: object) -> dict[int, float]:
        places = [self._places[item] for item in self._items(value) if item in self._places]
        return dict.fromkeys(places[: self.most], 1.0)

    def _rows(self, values: Sequence[object]) -> list[dict[int, float]]:
        if self.buckets is None:
            return super()._rows(values)
        return _bucket_rows([self._items(value)[: self.most] for value in values], self.buckets)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {level: place for place, level in enumerate(self.levels or ())}

    def _items(self, value: object) -> list[str]:
        if isinstance(value, list | tuple):
            texts = [text_of(item) for item in value]
        else:
            texts = list((text_of(value) or "")[:LONGEST_TEXT].split(self.separator))
        stripped = [text.strip(BLANKS) for text in texts if text is not None]
        return list(dict.fromkeys(text for text in stripped if text))


class PartField(AnyTableField):
    """A field of text, or of the part of a URL, in small letters unless `lower` is false."""

    part: UrlPart = "all"
    lower: bool = True

    def _misfit(self, value: object) -> str | None:
        return "is no text" if text_of(value) is None else _too_long(value)

    def _text(self, value: object) -> str | None:
        return part_of(value, part=self.part, lower=self.lower)

    def _check_small(self, field: str, text: str) -> None:
        if self.lower and any("A" <= character <= "Z" for character in text):
            raise ConfigError(field=field, value=text[:200], remedy="write small letters, or set lower to false")


class TextField(PartField):
    """The n-grams of words or characters in a text, in buckets."""

    type: Literal["text"] = "text"
    buckets: Buckets
    units: Literal["words", "characters"] = "words"
    shortest: Annotated[int, Field(ge=1, le=20)] = 1
    longest: Annotated[int, Field(ge=1, le=20)] = 1
    most: Most = 1

    @model_validator(mode="after")
    def _check(self) -> "TextField":
        if self.longest < self.shortest:
            raise ConfigError(field="longest", value=self.longest, remedy=f"at least the shortest, {self.shortest}")
        return self

    @property
    def _endings(self) -> int:
        return self.buckets

    def _rows(self, values: Sequence[object]) -> list[dict[int, float]]:
        texts, words = [self._text(value) or "" for value in values], self.units == "words"
        units = [words_of(text) if words else text for text in texts]
        lengths, between = range(self.shortest, self.longest + 1), " " if words else ""
        return _bucket_rows([ngrams(one, lengths, between=between) for one in units], self.buckets, most=self.most)


class WordsField(PartField):
    """The words that a text has: anywhere, at its start, at its end, or as the whole of it."""

    type: Literal["words"] = "words"
    words: Levels
    where: Literal["anywhere", "start", "end", "whole"] = "anywhere"
    any: bool = False

    @model_validator(mode="after")
    def _check(self) -> "WordsField":
        if len(set(self.words)) != len(self.words) or "" in self.words:
            raise ConfigError(field="words", value=self.words, remedy="give each word once, and no empty one")
        self._check_small("words", "".join(self.words))
        return self

    @property
    def _endings(self) -> Sequence[str]:
        return [""] if self.any else _of_levels(self.words)

    def _row(self, value: object) -> dict[int, float]:
        text = self._text(value)
        places = [] if text is None else [place for place, word in enumerate(self.words) if self._in(word, text)]
        return {(0 if self.any else place): 1.0 for place in places}

    def _in(self, word: str, text: str) -> bool:
        if self.where == "anywhere":
            return word in text
        if self.where == "whole":
            return word == text
        return text.startswith(word) if self.where == "start" else text.endswith(word)


class CountField(PartField):
    """The number of a text's characters, or only of `characters`: together, for `each`, or in their longest `run`."""

    type: Literal["count"] = "count"
    characters: Annotated[str, Field(min_length=1, max_length=1_000)] | None = None
    each: bool = False
    run: bool = False
    most: Most | None = None
    steps: Annotated[tuple[Most, ...], Field(min_length=1, max_length=1_000)] | None = None

    @model_validator(mode="after")
    def _check(self) -> "CountField":
        if (self.most is None) == (self.steps is None):
            raise ConfigError(field="most", value=self.most, remedy="give either most or steps")
        if self.steps is not None and not all(lower < upper for lower, upper in pairwise(self.steps)):
            raise ConfigError(field="steps", value=self.steps, remedy="let each be larger than the one before")
        if self.each and (self.characters is None or self.steps is not None or self.run):
            raise ConfigError(field="each", value=True, remedy="use it with characters and most, not with steps or run")
        if self.characters is not None:
            _check_once("characters", self.characters, "give each character once")
            self._check_small("characters", self.characters)
        return self

    @property
    def _endings(self) -> Sequence[str]:
        if self.each:
            return _of_levels(self.characters or "")
        return [""] if self.steps is None else [f">={step}" for step in self.steps]

    def _row(self, value: object) -> dict[int, float]:
        text, most = self._text(value) or "", self.most or 1
        if self.steps is not None:
            count = self._count(text)
            return {place: 1.0 for place, step in enumerate(self.steps) if count >= step}
        counts = [text.count(one) for one in self.characters or ""] if self.each else [self._count(text)]
        return {place: min(count, most) / most for place, count in enumerate(counts) if count}

    def _count(self, text: str) -> int:
        if self.characters is None:
            return len(text)
        if not self.run:
            return sum(map(text.count, self.characters))
        return max(map(len, self._runs.findall(text)), default=0)

    @cached_property
    def _runs(self) -> re.Pattern[str]:
        return re.compile(f"[{re.escape(self.characters or '')}]+")


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
ResponseField = NumberField | IntegerField | BooleanField | CategoryField  # the fields that a model can predict


def known(field: ResponseField, values: Sequence[object]) -> list[bool]:
    """Whether each value is a response: a number, or one of the levels."""
    if isinstance(field, CategoryField):
        return [field.knows(value) for value in values]
    return [not math.isnan(number_of(value)) for value in values]


def number_of(value: object) -> float:
    """The value as a float, NaN for no number; a whole number too large for a float keeps its sign."""
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        return float(max(-(2**1023), min(2**1023, value)))
    return math.nan


def _bucket_rows(pieces: Sequence[Sequence[str]], buckets: int, *, most: int = 1) -> list[dict[int, float]]:
    found = iter(buckets_of([piece for row in pieces for piece in row], buckets).tolist())
    counts = [Counter(next(found) for _ in row) for row in pieces]
    return [{place: min(count, most) / most for place, count in sorted(row.items())} for row in counts]


def _of_levels(levels: Sequence[str]) -> list[str]:
    return [f"={level}" for level in levels]


def _check_once(field: str, values: Sequence[str], remedy: str) -> None:
    if len(set(values)) != len(values):
        raise ConfigError(field=field, value=values, remedy=remedy)


def _too_long(value: object) -> str | None:
    long = isinstance(value, str) and len(value) > LONGEST_TEXT
    return f"is longer than {LONGEST_TEXT} characters, of which the first count" if long else None
