"""Checks of plain values. Each takes fields by name, so that the message can name them."""

import math
from collections.abc import Callable
from contextlib import suppress
from numbers import Integral, Real

from incrowd.errors import ConfigError


def _numbers(fits: Callable[[float], bool], remedy: str) -> Callable[..., None]:
    """A check that each value is a finite real number (a bool is not one) that fits."""

    def check(**fields: object) -> None:
        for field, value in fields.items():
            if not fits(_number(field, value)):
                raise ConfigError(field=field, value=value, remedy=remedy)

    return check


def _whole_numbers(least: int) -> Callable[..., None]:
    """A check that each value is a whole number (a bool is not one) of at least so much."""

    def check(**fields: object) -> None:
        for field, value in fields.items():
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise ConfigError(field=field, value=value, remedy=f"give a whole number of at least {least}")

    return check


def _number(field: str, value: object) -> float:
    with suppress(OverflowError):  # a whole number beyond every float
        if not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(finite := float(value)):
            return finite
    raise ConfigError(field=field, value=value, remedy="give a finite number")


number = _numbers(math.isfinite, "give a finite number")
positive = _numbers(lambda value: value > 0, "give a number above 0")
non_negative = _numbers(lambda value: value >= 0, "give a number of at least 0")
below_one = _numbers(lambda value: 0 <= value < 1, "give a number of at least 0 and below 1")
fraction = _numbers(lambda value: 0 < value < 1, "give a number between 0 and 1, both excluded")
probability = _numbers(lambda value: 0 < value <= 1, "give a number above 0 and at most 1")
count, natural = _whole_numbers(1), _whole_numbers(0)


def at_most(limit: float, limit_name: str, **fields: float) -> None:
    """Each value is at most a limit that has a name of its own."""
    for field, value in fields.items():
        if value > limit:
            raise ConfigError(field=field, value=value, remedy=f"give at most {limit_name}, which is {limit}")
