"""What a cell of a table says, before it is asked what its column means: a text, a number, or nothing."""

import math
import re
import struct
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property, lru_cache
from numbers import Integral, Real
from typing import Any, Literal
from uuid import UUID

import numpy as np

from incrowd.errors import ConfigError, DataError

Blanks = Literal["refuse", "strip", "keep"]

MISSING = ("", "NA", "N/A", "NaN", "null", "None")
"""The texts that say that nothing is known, whatever their case."""

_DELIMITERS = (",", ";", "\t", "|")
_ENCODINGS = ("utf-8", "latin-1", "cp1252")
_EXACT = 2**53  # whole numbers below this are what they seem to be in a float64
_HALF_STEP = 2.0**-24  # how far a normal float32 is from what it stands for, at most


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the cells of a table are written. Nothing of it is found out from the rows.

    ``thousands`` is the mark between groups of three digits; none is known unless it is stated. ``blanks`` says what
    becomes of blanks around a text or a number: they are refused, dropped ("strip") or taken as a part of it ("keep").
    ``missing_texts`` say, whatever their case, that a value is missing; so do None, NaN and NaT of other tables.

    Edge cases: marks that could be confused with each other are a `ConfigError`.
    """

    delimiter: str = ","
    decimal: str = "."
    thousands: str | None = None
    encoding: str = "utf-8"
    blanks: Blanks = "refuse"
    missing_texts: tuple[str, ...] = MISSING

    def __post_init__(self) -> None:
        for field, value, choices in (
            ("delimiter", self.delimiter, _DELIMITERS),
            ("decimal", self.decimal, (".", ",")),
            ("thousands", self.thousands, (None, ".", ",", "'", " ", "_")),
            ("encoding", self.encoding, _ENCODINGS),
            ("blanks", self.blanks, ("refuse", "strip", "keep")),
        ):
            if value not in choices:
                shown = ", ".join(repr(choice) for choice in choices if choice is not None)
                raise ConfigError(field=field, value=value, remedy=f"choose from {shown}")
        if self.thousands == self.decimal:
            remedy = "the decimal mark is the same: one of them has to be another"
            raise ConfigError(field="thousands", value=self.thousands, remedy=remedy)

    def is_missing(self, cell: Any) -> bool:
        """Whether a cell says that its value is missing."""
        if isinstance(cell, str):
            return cell.casefold() in self._missing
        if cell is None:
            return True
        try:
            return bool(cell != cell)  # NaN and NaT are not equal to themselves
        except TypeError:  # nor unequal, says pandas.NA
            return True

    def cleaned(self, cell: Any) -> Any:
        """A cell without the blanks around it. Edge cases: where they are to be refused, a `DataError`."""
        if self.blanks == "keep" or not isinstance(cell, str):
            return cell
        bare = cell.strip()
        if self.blanks == "refuse" and bare != cell:
            raise DataError('has blanks around it; drop them, or state blanks = "strip" or "keep"')
        return bare

    def number(self, cell: Any) -> int | float:
        """The number in a cell, exactly where it is a whole one.

        Edge cases: anything else, also an infinity, and a mark between digits that was not stated: `DataError`.
        """
        if isinstance(cell, str):
            return self._spelt(cell)
        if isinstance(cell, bool):
            raise DataError("is true or false, not a number; state that it is yes/no, or mend the row")
        if isinstance(cell, Integral):
            return int(cell)
        if isinstance(cell, Real | Decimal):
            number = float(cell)
            if math.isfinite(number):
                return int(cell) if isinstance(cell, Decimal) and cell == int(cell) else number
        raise DataError("is not a number; fill it in or drop the row")

    def plain(self, cell: Any) -> Any:
        """A number as every other table would spell it; anything else as it is."""
        if not isinstance(cell, str) or (self.decimal, self.thousands) == (".", None):
            return cell
        return self._plain(cell) or cell

    def _spelt(self, text: str) -> int | float:
        plain = self._plain(text)
        if plain is None:
            raise DataError(f"is not a number; {self._remedy(text)}")
        if "e" in plain or "." in plain:
            number = float(plain)
            if not math.isfinite(number):
                raise DataError("is beyond every float32; give finite numbers, or drop the row")
            return number
        return int(plain)

    def _plain(self, text: str) -> str | None:
        match = self._pattern.fullmatch(text)
        if match is None or not (match["whole"] or match["fraction"]) or len(text) > _LONGEST:
            return None
        whole, fraction, exponent = (match[name] or "" for name in ("whole", "fraction", "exponent"))
        if self.thousands is not None:
            whole = whole.replace(self.thousands, "")
        fraction = fraction if exponent else fraction.rstrip("0")  # 12.00 is a whole number
        return f"{match['sign']}{whole or '0'}{'.' if fraction else ''}{fraction}{exponent.lower()}"

    def _remedy(self, text: str) -> str:
        other = "," if self.decimal == "." else "."
        if _pattern(other, None).fullmatch(text) or _pattern(self.decimal, other).fullmatch(text):
            return f"state what the {other!r} in it is: decimal or thousands"
        if any(map(str.isalpha, text)):
            return "state what its column is (a text, levels, yes/no), or fill it in or drop the row"
        return "fill it in or drop the row"

    @cached_property
    def _missing(self) -> frozenset[str]:
        return frozenset(text.casefold() for text in self.missing_texts)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return _pattern(self.decimal, self.thousands)


_LONGEST = 400  # digits: more are nobody's measurement, and slow to read


@lru_cache
def _pattern(decimal: str, thousands: str | None) -> re.Pattern[str]:
    groups = "" if thousands is None else rf"|\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+"
    whole = rf"(?P<whole>\d+{groups})?"
    rest = rf"(?:{re.escape(decimal)}(?P<fraction>\d*))?(?P<exponent>[eE][+-]?\d{{1,4}})?"
    return re.compile(rf"(?P<sign>[+-]?){whole}{rest}", re.ASCII)


def text_of(cell: Any) -> str:
    """A cell as a text, the same in tables of every kind: 7 and 7.0 of a typed column are "7", a date is 2020-01-31.

    A text stays as it is: "007" and "7.0" are texts of their own.

    Edge cases: a number with a fraction, or a float so large that others look the same: `DataError`.
    """
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool | np.bool_):
        return "true" if cell else "false"
    if isinstance(cell, Integral):
        return str(int(cell))
    if isinstance(cell, Real | Decimal):
        number = float(cell)
        if number.is_integer() and abs(number) < _EXACT:
            return str(int(number))
        raise DataError("is a number with a fraction, or too large to be exact; give texts or whole numbers")
    if isinstance(cell, datetime):
        return (cell.date() if cell.time() == datetime.min.time() and cell.tzinfo is None else cell).isoformat()
    if isinstance(cell, date | UUID):
        return cell.isoformat() if isinstance(cell, date) else str(cell)
    raise DataError(f"is a {type(cell).__name__}; give texts or whole numbers")


def as_float32(number: float) -> float:
    """A number that float32 holds.

    Edge cases: a whole number that it would round (there are some beyond 2^24), one beyond its largest and one that
    it would lose near 0 are a `DataError`: they would be changed in silence.
    """
    try:
        (nearest,) = struct.unpack("<f", struct.pack("<f", number))
    except (OverflowError, struct.error):
        raise DataError("is beyond every float32; give finite numbers, or drop the row") from None
    if nearest == number:
        return float(nearest)
    if isinstance(number, int) or number.is_integer():
        raise DataError("is a whole number beyond 2^24 that float32 rounds; state a range, or leave the column out")
    if abs(nearest - number) > _HALF_STEP * abs(number):
        raise DataError("is nearer to 0 than a float32 can be; state a range, or leave the column out")
    return float(nearest)
