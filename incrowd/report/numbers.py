"""Numbers and sentences as people read them."""

import math
import re

from markupsafe import Markup

from incrowd.privacy.statement import rounded_up

UNKNOWN = "\u2013"
"""Stands for an unknown number."""

_SPACE = "\u00a0"  # no line breaks there
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_POWER = re.compile(r"(?<=\d)\^(-?\d+)")
_MINUS = re.compile(r"(?<!\S)-(?=\d)")
_NUMERIC = re.compile(r"[-\d.,·%\s\u00a0\u202f\u2013\u207b\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")


def printable(value: object) -> object:
    """Drop unprintable characters from what is no markup; None is unknown."""
    if isinstance(value, Markup):
        return value
    shown = UNKNOWN if value is None else str(value)
    return "".join(one if one.isprintable() or one in "\n\t\u00a0\u202f" else " " for one in shown)


def is_numeric(value: object) -> bool:
    """Whether a cell of a table is aligned as a number."""
    return value is None or _NUMERIC.fullmatch(str(value)) is not None


def number(value: float | None, digits: int = 3) -> str:
    """Write a number with this many significant digits."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value and not 1e-4 <= abs(value) < 1e7:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        short = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        power = "10" + str(int(exponent)).translate(_RAISED)
        return power if short == "1" else f"{short}·{power}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    spelt = f"{value:,.{places}f}"
    return spelt.rstrip("0").rstrip(".") if "." in spelt else spelt


def count(value: float | None) -> str:
    """Write a whole number; a fractional mean keeps four digits."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value - round(value)) < 1e-9 else number(value, 4)


def percent(share: float | None, digits: int = 1) -> str:
    """Write a share in percent."""
    return UNKNOWN if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f}{_SPACE}%"


def percent_at_most(share: float) -> str:
    """Write an upper bound in percent. Guarantee: it is rounded up."""
    return f"{rounded_up(100 * share)}{_SPACE}%"


def epsilon_text(value: float | None) -> str:
    """Write an epsilon in four digits. Guarantee: it is rounded up."""
    return UNKNOWN if value is None else rounded_up(value)


def typeset(sentence: str) -> str:
    """Raise the powers of a sentence and print its minus signs."""
    return _MINUS.sub("\u2212", _POWER.sub(lambda found: found[1].translate(_RAISED), sentence))
