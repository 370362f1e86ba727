"""What the columns of a table mean: public knowledge, stated by who answers for the table, and never found in its rows.

| kind       | a cell is                           | becomes                                             |
| ---------- | ----------------------------------- | --------------------------------------------------- |
| `Number`   | a number; whole, if so stated       | itself, or its place in the stated range, or how    |
|            |                                     | near it is to places there                          |
| `Category` | one of the stated levels            | a 1 at its level and 0 at the others                |
| `YesNo`    | one of two words                    | 1 or 0                                              |
| `Date`     | a day, or a moment                  | its place between the two stated days               |
| `Text`     | anything                            | the numbers of its pieces (n-grams)                 |
| `Ignored`  | anything                            | nothing                                             |

What a missing value becomes is stated too (`missing`), and `indicator` adds a number that says that it was missing.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Literal

from incrowd import _validate
from incrowd.data.grams import BUCKETS, numbered
from incrowd.data.reading import Reading, as_float32, text_of
from incrowd.errors import ConfigError, DataError

Outside = Literal["refuse", "clip"]
EncodedCell = tuple[float, ...]

_WHOLE_NUMBERS = 2**24  # that many float32 tells apart
_DAY = timedelta(days=1)
_MOST_PIECES = 2**14


@dataclass(frozen=True, kw_only=True)
class Column(ABC):
    """What one column means.

    Guarantee: what a cell becomes depends on the cell and on what is stated, on no other cell and no other row.

    Edge cases: a cell that does not fit, or that is missing and nothing stands for it, is a `DataError` that says why.
    """

    indicator: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.indicator, bool):
            raise ConfigError(field="indicator", value=self.indicator, remedy="give true or false")
        if self.indicator and self.imputed() is None:
            remedy = "it marks what stands for a missing value: state missing, too, or leave it out"
            raise ConfigError(field="indicator", value=True, remedy=remedy)

    def features(self, name: str) -> tuple[str, ...]:
        """The names of the numbers that a cell of the column with this name becomes."""
        return (*self._names(name), f"{name} is missing") if self.indicator else self._names(name)

    def encoded(self, cell: Any, reading: Reading) -> EncodedCell:
        """The numbers that a cell becomes."""
        cell = reading.cleaned(cell)
        if reading.is_missing(cell) and not self._is_level(cell):
            values = self.imputed()
            if values is None:
                raise DataError("is missing; state what stands for it (missing = ...), fill it in or drop the row")
            return (*values, 1.0) if self.indicator else values
        values = self._values(cell, reading)
        return (*values, 0.0) if self.indicator else values

    @abstractmethod
    def imputed(self) -> EncodedCell | None:
        """What stands for a missing value, if anything does."""

    @abstractmethod
    def _values(self, cell: Any, reading: Reading) -> EncodedCell:
        """The numbers that a cell becomes whose value is not missing."""

    def _names(self, name: str) -> tuple[str, ...]:
        return (name,)

    def _is_level(self, cell: Any) -> bool:
        """Whether a text that usually says that a value is missing is a value here, say NA for Namibia."""
        return False


@dataclass(frozen=True, kw_only=True)
class Number(Column):
    """A number. With a `range`, low to high, it becomes its place there, from -1 to 1, or from 0 to 1 where `to` says
    so; outside of it it is refused or clipped. Without one it stays as it is. With `log` the place is that of its
    signed logarithm, sign * log(1 + size), for numbers most of which are small. With `knots` it becomes so many
    numbers, one for each of as many places evenly in the range: how near it is, from 0 to 1, so that a linear model
    learns a line with bends at these places.

    Edge cases: a `whole` number's range has at most 2^24 numbers, which a float32 tells apart; a number that is not
    scaled has to be one that float32 holds.
    """

    range: tuple[float, float] | None = None
    to: tuple[float, float] = (-1.0, 1.0)
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
        if tuple(self.to) not in ((-1, 1), (0, 1)):
            raise ConfigError(field="to", value=self.to, remedy="choose from [-1, 1] and [0, 1]")
        _check_outside(self.outside)
        if self.range is None:
            for field in ("to", "outside", "log", "knots"):
                if getattr(self, field) != getattr(Number, field):
                    remedy = "it is about a range, and none is stated: state it, or leave this out"
                    raise ConfigError(field=field, value=getattr(self, field), remedy=remedy)
        else:
            self._check_range(*self.range)
        if self.missing is not None:
            _validate.number(missing=self.missing)
            _stated("missing", self.missing, lambda: self._values(self.missing, Reading()))
        super().__post_init__()

    def imputed(self) -> EncodedCell | None:
        """See `Column.imputed`."""
        return None if self.missing is None else self._values(self.missing, Reading())

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
        if not self.log and self.knots is None:
            return (_placed(number, *self.range, to=self.to, outside=self.outside),)
        low, high = self.range
        share = _placed(number, low, high, to=(0.0, 1.0), outside=self.outside)
        if self.log:
            number = low + (high - low) * share
            share = (_log(number) - _log(low)) / (_log(high) - _log(low))
        if self.knots is None:
            return (self.to[0] + (self.to[1] - self.to[0]) * share,)
        return tuple(max(0.0, 1 - abs(share * (self.knots - 1) - knot)) for knot in range(self.knots))

    def _names(self, name: str) -> tuple[str, ...]:
        if self.knots is None or self.range is None:
            return (name,)
        low, high = map(_log, self.range) if self.log else self.range
        places = (low + (high - low) * knot / (self.knots - 1) for knot in range(self.knots))
        return tuple(f"{name} near {_unlog(place) if self.log else place:.6g}" for place in places)


@dataclass(frozen=True, kw_only=True)
class Category(Column):
    """One of the stated `levels`, in their order. With `other`, there is one more level, for all that is not stated.

    A level that is missing is one of them, or "other".

    Edge cases: without `other`, a level that was not stated is refused.
    """

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

    def imputed(self) -> EncodedCell | None:
        """See `Column.imputed`."""
        return None if self.missing is None else self._at(self.missing)

    @property
    def _all(self) -> tuple[str, ...]:
        return (*self.levels, "other") if self.other else self.levels

    def _names(self, name: str) -> tuple[str, ...]:
        return tuple(f"{name} = {level}" for level in self._all)

    def _is_level(self, cell: Any) -> bool:
        return cell in self.levels

    def _at(self, level: str) -> EncodedCell:
        return tuple(float(level == one) for one in self._all)

    def _values(self, cell: Any, reading: Reading) -> EncodedCell:
        level = text_of(cell)
        if level in self.levels:
            return self._at(level)
        if not self.other:
            stated = ", ".join(self.levels)
            raise DataError(f"is none of the stated levels, {stated}; state it, or other = true, or mend the row")
        return tuple(float(one == len(self.levels)) for one in range(len(self.levels) + 1))


@dataclass(frozen=True, kw_only=True)
class YesNo(Column):
    """One of two words, whatever its case: 1 for yes, 0 for no."""

    yes: tuple[str, ...] = ("yes", "y", "true", "t", "1")
    no: tuple[str, ...] = ("no", "n", "false", "f", "0")
    missing: bool | None = None

    def __post_init__(self) -> None:
        if not self.yes or not self.no or set(_folded(self.yes)) & set(_folded(self.no)):
            raise ConfigError(field="yes", value=self.yes, remedy="give words for yes, and others for no")
        if self.missing not in (None, True, False):
            raise ConfigError(field="missing", value=self.missing, remedy="give true or false")
        super().__post_init__()

    def imputed(self) -> EncodedCell | None:
        """See `Column.imputed`."""
        return None if self.missing is None else (float(self.missing),)

    def _is_level(self, cell: Any) -> bool:
        return isinstance(cell, str) and cell.casefold() in _folded((*self.yes, *self.no))

    def _values(self, cell: Any, reading: Reading) -> EncodedCell:
        word = text_of(cell).casefold()
        for words, value in ((self.yes, 1.0), (self.no, 0.0)):
            if word in _folded(words):
                return (value,)
        stated = f"yes ({', '.join(self.yes)}) or no ({', '.join(self.no)})"
        raise DataError(f"says neither {stated}; state its words, or mend the row")


@dataclass(frozen=True, kw_only=True)
class Date(Column):
    """A day or a moment between two stated days, both included: the place there, from -1 (as the first day begins) to
    1 (as the last one ends), or from 0 to 1.

    `format` is Python's, say "%d.%m.%Y"; without it, it is ISO's, 2020-01-31. A moment in a time zone
    is taken as UTC's.
    """

    dates: tuple[date, date]
    to: tuple[float, float] = (-1.0, 1.0)
    outside: Outside = "refuse"
    format: str | None = None
    missing: date | None = None

    def __post_init__(self) -> None:
        if tuple(self.to) not in ((-1, 1), (0, 1)):
            raise ConfigError(field="to", value=self.to, remedy="choose from [-1, 1] and [0, 1]")
        _check_outside(self.outside)
        if not self.dates[0] <= self.dates[1]:
            shown = tuple(day.isoformat() for day in self.dates)
            raise ConfigError(field="dates", value=shown, remedy="give the first and the last, in this order")
        if self.missing is not None:
            _stated("missing", self.missing.isoformat(), self.imputed)
        super().__post_init__()

    def imputed(self) -> EncodedCell | None:
        """See `Column.imputed`."""
        return None if self.missing is None else self._placed(self.missing)

    def _values(self, cell: Any, reading: Reading) -> EncodedCell:
        if isinstance(cell, str):
            return self._placed(self._parsed(cell))
        if isinstance(cell, date):
            return self._placed(cell)
        raise DataError("is no date; fill it in or drop the row")

    def _parsed(self, text: str) -> datetime:
        try:
            return datetime.fromisoformat(text) if self.format is None else datetime.strptime(text, self.format)
        except ValueError:
            wanted = "ISO's, 2020-01-31" if self.format is None else self.format
            raise DataError(f"is no date of the form {wanted}; state its format, or mend the row") from None

    def _placed(self, moment: date) -> EncodedCell:
        if not isinstance(moment, datetime):
            moment = datetime.combine(moment, time())
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
        first, last = (datetime.combine(day, time()) for day in self.dates)
        days, length = (moment - first) / _DAY, (last - first) / _DAY + 1
        days = days if days < length else math.inf  # the last day is over
        return (_placed(days, 0.0, length, to=self.to, outside=self.outside, shown=self._shown),)

    @property
    def _shown(self) -> str:
        return f"{self.dates[0].isoformat()} to {self.dates[1].isoformat()}"


@dataclass(frozen=True, kw_only=True)
class Text(Column):
    """A text: the numbers of its first `pieces` by a public hash (`incrowd.data.grams`), whatever the letters' case.

    A piece is a word, four letters of one, or a character or a pair of a script without blanks. `buckets` says how many
    features a model has of the text (`incrowd.learning.features.TextBuckets`), unless its features say so themselves.

    Edge cases: a text without a piece, such as "", becomes zeros; so does a missing one, if `missing` is "".
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

    def imputed(self) -> EncodedCell | None:
        """See `Column.imputed`."""
        return None if self.missing is None else self._values(self.missing, Reading())

    def _names(self, name: str) -> tuple[str, ...]:
        return tuple(f"{name} piece {number}" for number in range(self.pieces))

    def _values(self, cell: Any, reading: Reading) -> EncodedCell:
        return numbered(text_of(cell), self.pieces)


@dataclass(frozen=True, kw_only=True)
class Ignored(Column):
    """A column that nothing is learned from. What is in it is not looked at."""

    def imputed(self) -> EncodedCell | None:
        """See `Column.imputed`."""
        return ()

    def encoded(self, cell: Any, reading: Reading) -> EncodedCell:
        """Nothing, whatever the cell is."""
        return ()

    def _names(self, name: str) -> tuple[str, ...]:
        return ()

    def _values(self, cell: Any, reading: Reading) -> EncodedCell:
        return ()


def _placed(
    number: float, low: float, high: float, *, to: tuple[float, float], outside: Outside, shown: str | None = None
) -> float:
    if not low <= number <= high:
        if outside == "refuse":
            stated = f"{low:g} to {high:g}" if shown is None else shown
            raise DataError(f'is outside of the stated range, {stated}; mend the row, or state outside = "clip"')
        number = min(max(number, low), high)
    share = (number - low) / (high - low)
    return to[0] + (to[1] - to[0]) * share


def _log(number: float) -> float:
    return math.copysign(math.log1p(abs(number)), number)


def _unlog(number: float) -> float:
    return math.copysign(math.expm1(abs(number)), number)


def _check_outside(outside: str) -> None:
    if outside not in ("refuse", "clip"):
        raise ConfigError(field="outside", value=outside, remedy="choose from refuse, clip")


def _stated(field: str, value: object, used: Any) -> None:
    """Refuse a stated value that no cell could have."""
    try:
        used()
    except DataError as error:
        raise ConfigError(field=field, value=value, remedy=f"it {error}") from error


def _folded(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word.casefold() for word in words)
