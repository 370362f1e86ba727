"""The schema of a table: kinds of columns, stated by the owner of the table and never inferred from its rows.

`missing` replaces a missing value, and `indicator` adds a number that marks it.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Any, Literal

import numpy as np

from incrowd import _validate
from incrowd.data.reading import AS_USUAL, Reading, as_float32, text_of
from incrowd.errors import ConfigError, DataError

Outside = Literal["refuse", "clip"]
EncodedCell = tuple[float, ...]
Pair = tuple[float, float]

_WHOLE_NUMBERS = 2**24  # a float32 holds whole numbers up to this exactly
_DAY = timedelta(days=1)
_MOST_PIECES = 2**14
BUCKETS = 1 << 16
"""The most buckets that a piece's number tells apart."""

_WORD = re.compile(r"[\w']+|[^\w\s]+")  # or marks, such as !? and ://
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")  # kana and Han
_LETTERS = 4
_REMEMBERED = 1 << 18  # pieces: most of a language's short ones


@dataclass(frozen=True, kw_only=True)
class Column(ABC):
    """The meaning of one column.

    Guarantee: the numbers of a cell follow from this cell and the schema alone.
    """

    indicator: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.indicator, bool):
            raise ConfigError(field="indicator", value=self.indicator, remedy="give true or false")
        try:
            replacement = self.imputed()
        except DataError as error:
            missing = getattr(self, "missing", None)
            shown = missing.isoformat() if isinstance(missing, date) else missing
            raise ConfigError(field="missing", value=shown, remedy=f"it {error}") from error
        if self.indicator and replacement is None:
            remedy = "it marks what stands for a missing value: state missing, too, or leave it out"
            raise ConfigError(field="indicator", value=True, remedy=remedy)

    def features(self, name: str) -> tuple[str, ...]:
        """The names of a cell's numbers, in a column of this name."""
        return (*self._names(name), f"{name} is missing") if self.indicator else self._names(name)

    def encoded(self, cell: Any, reading: Reading) -> EncodedCell:
        """The numbers of a cell."""
        cell = reading.cleaned(cell)
        missing = reading.is_missing(cell) and not self._is_level(cell)
        values = self.imputed() if missing else self._values(cell, reading)
        if values is None:
            raise DataError("is missing; state what stands for it (missing = ...), fill it in or drop the row")
        return (*values, float(missing)) if self.indicator else values

    def imputed(self) -> EncodedCell | None:
        """The numbers that replace a missing value; None if nothing does."""
        missing = getattr(self, "missing", None)
        return None if missing is None else self._values(missing, AS_USUAL)

    @abstractmethod
    def _values(self, cell: Any, reading: Reading) -> EncodedCell:
        """The numbers of a cell that is not missing."""

    def _names(self, name: str) -> tuple[str, ...]:
        return (name,)

    def _is_level(self, cell: Any) -> bool:
        """Whether a text such as NA is a value here, say Namibia."""
        return False


@dataclass(frozen=True, kw_only=True)
class Number(Column):
    """A number. With a `range` it becomes its place there, from -1 to 1, or from 0 to 1 with `to`.

    `log` takes the place of the signed logarithm, sign * log(1 + size). `knots` makes one number for each of as many
    evenly spaced places: the nearness to this place, from 0 to 1. A linear model then learns a line with bends.
    """

    range: Pair | None = None
    to: Pair = (-1.0, 1.0)
    whole: bool = False
    log: bool = False
    knots: int | None = None
    outside: Outside = "refuse"
    missing: float | None = None

    def __post_init__(self) -> None:
        if self.knots is not None:
            _validate.count(knots=self.knots)
            if self.knots < 2 or tuple(self.to) != (-1, 1):
                remedy = "give at least 2, and leave out `to`: how near a place is goes from 0 to 1"
                raise ConfigError(field="knots", value=self.knots, remedy=remedy)
        _check_scale(self.to, self.outside)
        if self.range is None:
            for field in ("to", "outside", "log", "knots"):
                if getattr(self, field) != getattr(Number, field):
                    remedy = "it is about a range, and none is stated: state it, or leave this out"
                    raise ConfigError(field=field, value=getattr(self, field), remedy=remedy)
        else:
            self._check_range(*self.range)
        if self.missing is not None:
            _validate.number(missing=self.missing)
        super().__post_init__()

    def _check_range(self, low: float, high: float) -> None:
        for end in (low, high):
            _validate.number(range=end)
        if not low < high:
            raise ConfigError(field="range", value=self.range, remedy="give the lowest and the highest, in this order")
        if self.whole and high - low > _WHOLE_NUMBERS:
            remedy = "more than 2^24 whole numbers, which a float32 cannot tell apart: narrow it, or take whole out"
            raise ConfigError(field="range", value=self.range, remedy=remedy)

    def _values(self, cell: Any, reading: Reading) -> EncodedCell:
        number = reading.number(cell)
        if self.whole and number != int(number):
            raise DataError("is not a whole number, and was stated to be one")
        if self.range is None:
            return (as_float32(number),)
        low, high = self.range
        share = _share(number, low, high, outside=self.outside, shown=f"{low:g} to {high:g}")
        if self.log:
            number = low + (high - low) * share
            share = (_log(number) - _log(low)) / (_log(high) - _log(low))
        if self.knots is None:
            return (_placed(share, self.to),)
        return tuple(max(0.0, 1 - abs(share * (self.knots - 1) - knot)) for knot in range(self.knots))

    def _names(self, name: str) -> tuple[str, ...]:
        if self.knots is None or self.range is None:
            return (name,)
        low, high = map(_log, self.range) if self.log else self.range
        places = (low + (high - low) * knot / (self.knots - 1) for knot in range(self.knots))
        return tuple(f"{name} near {_unlog(place) if self.log else place:.6g}" for place in places)


@dataclass(frozen=True, kw_only=True)
class Category(Column):
    """One of the stated `levels`, in their order. With `other` there is one more level for unknown values."""

    levels: tuple[str, ...]
    other: bool = False
    missing: str | None = None

    def __post_init__(self) -> None:
        if not self.levels or len(set(self.levels)) != len(self.levels):
            raise ConfigError(field="levels", value=self.levels, remedy="give each level once, and at least one")
        if self.other and "other" in self.levels:
            remedy = '"other" is one of the levels: leave one of the two out'
            raise ConfigError(field="other", value=True, remedy=remedy)
        if self.missing is not None and self.missing not in self._all:
            remedy = f"it is none of the levels: choose from {', '.join(self._all)}"
            raise ConfigError(field="missing", value=self.missing, remedy=remedy)
        super().__post_init__()

    @property
    def _all(self) -> tuple[str, ...]:
        return (*self.levels, "other") if self.other else self.levels

    def _names(self, name: str) -> tuple[str, ...]:
        return tuple(f"{name} = {level}" for level in self._all)

    def _is_level(self, cell: Any) -> bool:
        return cell in self.levels

    def _values(self, cell: Any, reading: Reading) -> EncodedCell:
        level = text_of(cell)
        if level not in self.levels:
            if not self.other:
                stated = ", ".join(self.levels)
                raise DataError(f"is none of the stated levels, {stated}; state it, or other = true, or mend the row")
            level = "other"
        return tuple(float(level == one) for one in self._all)


@dataclass(frozen=True, kw_only=True)
class YesNo(Column):
    """One of two words in any case: 1 for yes, 0 for no."""

    yes: tuple[str, ...] = ("yes", "y", "true", "t", "1")
    no: tuple[str, ...] = ("no", "n", "false", "f", "0")
    missing: bool | None = None

    def __post_init__(self) -> None:
        if not self.yes or not self.no or set(_folded(self.yes)) & set(_folded(self.no)):
            raise ConfigError(field="yes", value=self.yes, remedy="give words for yes, and others for no")
        super().__post_init__()

    def _is_level(self, cell: Any) -> bool:
        return isinstance(cell, str) and cell.casefold() in _folded(self.yes + self.no)

    def _values(self, cell: Any, reading: Reading) -> EncodedCell:
        if isinstance(cell, bool | np.bool_):
            return (float(cell),)
        word = text_of(cell).casefold()
        for words, value in ((self.yes, 1.0), (self.no, 0.0)):
            if word in _folded(words):
                return (value,)
        stated = f"yes ({', '.join(self.yes)}) or no ({', '.join(self.no)})"
        raise DataError(f"says neither {stated}; state its words, or mend the row")


@dataclass(frozen=True, kw_only=True)
class Date(Column):
    """A day or a moment between two days, both included: its place there, from -1 to 1, or from 0 to 1 with `to`.

    `format` is Python's, say "%d.%m.%Y"; the default is ISO's, 2020-01-31. Moments in a time zone become UTC.
    """

    dates: tuple[date, date]
    to: Pair = (-1.0, 1.0)
    outside: Outside = "refuse"
    format: str | None = None
    missing: date | None = None

    def __post_init__(self) -> None:
        _check_scale(self.to, self.outside)
        if not self.dates[0] <= self.dates[1]:
            shown = tuple(day.isoformat() for day in self.dates)
            raise ConfigError(field="dates", value=shown, remedy="give the first and the last, in this order")
        super().__post_init__()

    def _values(self, cell: Any, reading: Reading) -> EncodedCell:
        moment = self._parsed(cell) if isinstance(cell, str) else cell
        if not isinstance(moment, date):
            raise DataError("is no date; fill it in or drop the row")
        if not isinstance(moment, datetime):
            moment = datetime.combine(moment, time())
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
        first, last = (datetime.combine(day, time()) for day in self.dates)
        days, length = (moment - first) / _DAY, (last - first) / _DAY + 1
        days = days if days < length else math.inf  # the last day is over
        shown = f"{self.dates[0].isoformat()} to {self.dates[1].isoformat()}"
        return (_placed(_share(days, 0.0, length, outside=self.outside, shown=shown), self.to),)

    def _parsed(self, text: str) -> datetime:
        try:
            return datetime.fromisoformat(text) if self.format is None else datetime.strptime(text, self.format)
        except ValueError:
            wanted = "ISO's, 2020-01-31" if self.format is None else self.format
            raise DataError(f"is no date of the form {wanted}; state its format, or mend the row") from None


@dataclass(frozen=True, kw_only=True)
class Text(Column):
    """A text: the numbers of its first `pieces` by a public hash (`incrowd.data.schema`), in any case.

    A model has `buckets` features of the text (`incrowd.learning.features.TextBuckets`), unless its features state
    another number.
    """

    buckets: int = 1024
    pieces: int = 512
    missing: str | None = None

    def __post_init__(self) -> None:
        _validate.count(buckets=self.buckets, pieces=self.pieces)
        for field, most in (("buckets", BUCKETS), ("pieces", _MOST_PIECES)):
            if getattr(self, field) > most:
                remedy = f"each is a number of every row: give at most {most}"
                raise ConfigError(field=field, value=getattr(self, field), remedy=remedy)
        super().__post_init__()

    def _names(self, name: str) -> tuple[str, ...]:
        return tuple(f"{name} piece {number}" for number in range(self.pieces))

    def _values(self, cell: Any, reading: Reading) -> EncodedCell:
        return numbered(text_of(cell), self.pieces)


@dataclass(frozen=True, kw_only=True)
class Ignored(Column):
    """A column that no model learns from. incrowd does not read its cells."""

    def encoded(self, cell: Any, reading: Reading) -> EncodedCell:
        """No number, for any cell."""
        return ()

    def _names(self, name: str) -> tuple[str, ...]:
        return ()

    def _values(self, cell: Any, reading: Reading) -> EncodedCell:
        return ()


def _share(number: float, low: float, high: float, *, outside: Outside, shown: str) -> float:
    """The place of a number between two ends, from 0 to 1."""
    if not low <= number <= high and outside == "refuse":
        raise DataError(f'is outside of the stated range, {shown}; mend the row, or state outside = "clip"')
    return (min(max(number, low), high) - low) / (high - low)


def _placed(share: float, to: Pair) -> float:
    return to[0] + (to[1] - to[0]) * share


def _log(number: float) -> float:
    return math.copysign(math.log1p(abs(number)), number)


def _unlog(number: float) -> float:
    return math.copysign(math.expm1(abs(number)), number)


def _check_scale(to: Pair, outside: str) -> None:
    if tuple(to) not in ((-1, 1), (0, 1)):
        raise ConfigError(field="to", value=to, remedy="choose from [-1, 1] and [0, 1]")
    if outside not in ("refuse", "clip"):
        raise ConfigError(field="outside", value=outside, remedy="choose from refuse, clip")


def _folded(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word.casefold() for word in words)


def numbered(text: str, most: int) -> tuple[float, ...]:
    """The numbers of a text's first pieces (n-grams), at most so many; zeros where it has fewer.

    A number is 1 + the piece's bucket, times its sign. A single character counts half: its number is `BUCKETS` higher.
    Bucket and sign follow from BLAKE2 of the piece alone: there is no vocabulary, which would tell whose words are in
    it. Opposite signs let pieces in one bucket cancel rather than add up (Weinberger et al. 2009).

    Guarantee: the numbers follow from the text alone, and are the same on every machine.
    """
    found = tuple(islice(_numbers(text.casefold()), most))
    return found + (0.0,) * (most - len(found))


def _numbers(text: str) -> Iterator[float]:
    for word in _WORD.findall(text):
        if _UNSPACED.search(word):  # no blanks between words: each character, and each pair
            yield from (_number(letter, BUCKETS) for letter in word)
            yield from (_number(word[at : at + 2]) for at in range(len(word) - 1))
        else:
            yield _number(f"\0{word}")  # not the same piece as these letters within a word
            edged = f"<{word}>"
            yield from (_number(edged[at : at + _LETTERS]) for at in range(len(edged) - _LETTERS + 1))


@lru_cache(maxsize=_REMEMBERED)
def _number(piece: str, more: int = 0) -> float:
    hashed = int.from_bytes(blake2b(piece.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
    size = float(1 + (hashed >> 1) % BUCKETS + more)
    return size if hashed & 1 else -size
