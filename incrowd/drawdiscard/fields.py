"""The fields of a device's table as a specification describes them, and how their values become numbers in [0, 1].

Ranges, levels, words and buckets are public: they come from the specification, never from the data. What a text is, its
parts, words and buckets: see `texts`. What is missing, or makes no sense, counts as 0 or has no feature at all (a table
of all: docs/fields.md).
"""

import math
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
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
    """How the values of a column become features, each within [0, 1].

    `column` is the column of the table that is read, if it is not called as the field is: so several fields may look at
    one column, and columns may have any name.
    """

    model_config = STRICT
    column: Annotated[str, Field(min_length=1, max_length=200)] | None = None

    @property
    def width(self) -> int:
        """How many features it has; known without making any."""
        return self._endings if isinstance(self._endings, int) else len(self._endings)

    def columns(self, name: str) -> tuple[str, ...]:
        """The names of its features."""
        endings = self._endings
        numbered = (f"#{bucket}" for bucket in range(endings)) if isinstance(endings, int) else endings
        return tuple(f"{name}{ending}" for ending in numbered)

    def encode(self, values: Sequence[object]) -> csr_array:
        """Its features, a row a value."""
        if not isinstance(self._endings, int):
            return sparse_rows([self._row(value) for value in values], self.width)
        pieces, most = [self._pieces(value) for value in values], self._most_of_a_bucket
        found = iter(buckets_of([piece for row in pieces for piece in row], self.width).tolist())
        counts = [Counter(next(found) for _ in row) for row in pieces]
        rows = [{place: min(count, most) / most for place, count in sorted(row.items())} for row in counts]
        return sparse_rows(rows, self.width)

    def misfit(self, value: object) -> str | None:
        """Why a value does not count as what it is, for the owner of the table; None where it does."""
        return "is missing" if value is None else self._misfit(value)

    @abstractmethod
    def _misfit(self, value: object) -> str | None: ...

    @property
    @abstractmethod
    def _endings(self) -> Sequence[str] | int:
        """What follows the field's name in the names of its features; a number for so many buckets."""

    def _row(self, value: object) -> dict[int, float]:
        """The features of a value that are not 0, by their places, where there are no buckets."""
        raise NotImplementedError

    def _pieces(self, value: object) -> Sequence[str]:
        raise NotImplementedError

    @property
    def _most_of_a_bucket(self) -> int:
        return 1


class ScaledField(AnyTableField):
    """A number of a public range, mapped to [0, 1]: what lies beyond an end of it counts as that end.

    In a field of whole numbers a value between two of them counts as the nearer one.
    """

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
    """A number whose range a specification states."""

    low: float
    high: float

    @property
    def span(self) -> tuple[float, float]:
        """See `ScaledField.span`."""
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
    """A whole number of a public range."""

    type: Literal["integer"] = "integer"
    low: int = Field(ge=-(2**53), le=2**53)
    high: int = Field(ge=-(2**53), le=2**53)


class BooleanField(ScaledField):
    """Yes or no, stored as 1 or 0."""

    type: Literal["boolean"] = "boolean"


class CategoryField(AnyTableField):
    """One of several public levels, a feature each (one-hot); `baseline` names a level that gets none.

    Whole numbers are compared by their digits, 7.0 as 7.
    """

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
        return text_of(value) in self._every

    def one_hot(self, values: Sequence[object]) -> Floats:
        """A row a value, a column a level, the baseline's too: 1 where they are equal; each value is a level."""
        hot: Floats = np.eye(len(self.levels))[[self._every[text_of(value)] for value in values]]
        return hot

    @property
    def _endings(self) -> Sequence[str]:
        return [f"={level}" for level in self._featured]

    def _row(self, value: object) -> dict[int, float]:
        place = self._featured.get(text_of(value))
        return {} if place is None else {place: 1.0}

    @cached_property
    def _every(self) -> dict[str | None, int]:
        return {level: place for place, level in enumerate(self.levels)}

    @cached_property
    def _featured(self) -> dict[str | None, int]:
        return {level: place for place, level in enumerate(one for one in self.levels if one != self.baseline)}


class HashedField(AnyTableField):
    """A level that need not be listed: its text falls into one of so many buckets, and two levels may share one.

    Whole numbers count by their digits, 7.0 as 7; other numbers are no level.
    """

    type: Literal["hashed"] = "hashed"
    buckets: Buckets

    def _misfit(self, value: object) -> str | None:
        return "is no text" if text_of(value) is None else None

    @property
    def _endings(self) -> int:
        return self.buckets

    def _pieces(self, value: object) -> Sequence[str]:
        text = text_of(value)
        return [] if text is None else [text]


class ListField(AnyTableField):
    """Several levels at once: a list, or text that `separator` divides; a feature each of `levels`, or so many buckets.

    Of the items (levels, if they are listed) the first `most` different ones count. Blanks around an item and empty
    items do not; a whole number is a list of one; of a text the first 4,000 characters are read.
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

    def _pieces(self, value: object) -> Sequence[str]:
        return self._items(value)[: self.most]

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
    """A field that looks at text, or at a part of it as of a URL, in small letters unless `lower` is false."""

    part: UrlPart = "all"
    lower: bool = True

    def _misfit(self, value: object) -> str | None:
        return "is no text" if text_of(value) is None else _too_long(value)

    def _text(self, value: object) -> str | None:
        return part_of(value, part=self.part, lower=self.lower)

    def _check_small(self, field: str, text: str) -> None:
        """What has a capital letter is never in a text in small letters."""
        if self.lower and any("A" <= character <= "Z" for character in text):
            raise ConfigError(field=field, value=text[:200], remedy="write small letters, or set lower to false")


class TextField(PartField):
    """Text by its n-grams of words or characters, in so many buckets."""

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

    @property
    def _most_of_a_bucket(self) -> int:
        return self.most

    def _pieces(self, value: object) -> Sequence[str]:
        text, words = self._text(value) or "", self.units == "words"
        between = " " if words else ""
        return ngrams(words_of(text) if words else text, shortest=self.shortest, longest=self.longest, between=between)


class WordsField(PartField):
    """Which of these words are in a text: anywhere, at its start, at its end, or as the whole of it."""

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
    """How many characters a text has; of `characters` only these, all together or `each`, or their longest `run`.

    `each` goes with `most` and with characters only; steps rise.
    """

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
            raise ConfigError(
                field="each", value=True, remedy="it goes with characters and most, not with steps or run"
            )
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
ResponseField = NumberField | IntegerField | BooleanField | CategoryField
"""What can be predicted."""


def sparse_rows(rows: Sequence[Mapping[int, float]], width: int) -> csr_array:
    """Rows of values by place, of so many places each."""
    starts = np.cumsum([0, *map(len, rows)])
    places = np.array([place for row in rows for place in row], np.int64)
    return csr_array(([value for row in rows for value in row.values()], places, starts), shape=(len(rows), width))


def known(field: ResponseField, values: Sequence[object]) -> list[bool]:
    """Which values are there and make sense: a response that does not is no response."""
    if isinstance(field, CategoryField):
        return [field.knows(value) for value in values]
    return [not math.isnan(number_of(value)) for value in values]


def number_of(value: object) -> float:
    """A value that is a number; NaN for another. A whole number too large for a float keeps its side."""
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        return float(max(-(2**1023), min(2**1023, value)))
    return math.nan


def _of_levels(levels: Sequence[str]) -> list[str]:
    return [f"={level}" for level in levels]


def _check_once(field: str, values: Sequence[str], remedy: str) -> None:
    if len(set(values)) != len(values):
        raise ConfigError(field=field, value=values, remedy=remedy)


def _too_long(value: object) -> str | None:
    long = isinstance(value, str) and len(value) > LONGEST_TEXT
    return f"is longer than {LONGEST_TEXT} characters, of which the first count" if long else None
