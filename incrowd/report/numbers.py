"""Numbers of a page as people read them: few digits, powers of ten raised, bounds rounded up."""

import math
import re

from incrowd.privacy.statement import rounded_up

UNKNOWN = "\u2013"
"""Stands for a number that is not known."""

_SPACE = "\u00a0"  # no line breaks there
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_POWER = re.compile(r"(?<=\d)\^(-?\d+)")
_MINUS = re.compile(r"(?<!\S)-(?=\d)")


def number(value: float | None, digits: int = 3) -> str:
    """A number in so many significant digits; a dash for one that is not known."""
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
    """A whole number; a mean that is not whole keeps four digits."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value - round(value)) < 1e-9 else number(value, 4)


def percent(share: float | None, digits: int = 1) -> str:
    """A share of a hundred."""
    return UNKNOWN if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f}{_SPACE}%"


def percent_at_most(share: float) -> str:
    """A share of a hundred. Guarantee: it is rounded up, so that a bound stays a bound."""
    return f"{rounded_up(100 * share)}{_SPACE}%"


def epsilon(value: float | None) -> str:
    """An epsilon in four digits. Guarantee: it is rounded up."""
    return UNKNOWN if value is None else rounded_up(value)


def typeset(sentence: str) -> str:
    """A sentence with its powers raised and its minus signs as in print."""
    return _MINUS.sub("\u2212", _POWER.sub(lambda found: found[1].translate(_RAISED), sentence))
