"""Checks of plain values. Each takes fields by name, so that the message can name them."""

import math
from contextlib import suppress
from numbers import Integral, Real

from incrowd.errors import ConfigError


def number(**fields: object) -> None:
    """Each value is a finite real number (a bool is not one)."""
    for field, value in fields.items():
        _number(field, value)


def positive(**fields: object) -> None:
    """Each value is a finite number above 0."""
    for field, value in fields.items():
        if not _number(field, value) > 0:
            raise ConfigError(field=field, value=value, remedy="give a number above 0")


def non_negative(**fields: object) -> None:
    """Each value is a finite number of at least 0."""
    for field, value in fields.items():
        if not _number(field, value) >= 0:
            raise ConfigError(field=field, value=value, remedy="give a number of at least 0")


def below_one(**fields: object) -> None:
    """Each value is a number of at least 0 and below 1."""
    for field, value in fields.items():
        if not 0 <= _number(field, value) < 1:
            raise ConfigError(field=field, value=value, remedy="give a number of at least 0 and below 1")


def fraction(**fields: object) -> None:
    """Each value is a number strictly between 0 and 1."""
    for field, value in fields.items():
        if not 0 < _number(field, value) < 1:
            raise ConfigError(field=field, value=value, remedy="give a number between 0 and 1, both excluded")


def probability(**fields: object) -> None:
    """Each value is a number above 0 and at most 1."""
    for field, value in fields.items():
        if not 0 < _number(field, value) <= 1:
            raise ConfigError(field=field, value=value, remedy="give a number above 0 and at most 1")


def count(**fields: object) -> None:
    """Each value is a whole number of at least 1 (a bool is not one)."""
    for field, value in fields.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ConfigError(field=field, value=value, remedy="give a whole number of at least 1")


def natural(**fields: object) -> None:
    """Each value is a whole number of at least 0 (a bool is not one)."""
    for field, value in fields.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
            raise ConfigError(field=field, value=value, remedy="give a whole number of at least 0")


def at_most(limit: float, limit_name: str, **fields: float) -> None:
    """Each value is at most a limit that has a name of its own."""
    for field, value in fields.items():
        if value > limit:
            raise ConfigError(field=field, value=value, remedy=f"give at most {limit_name}, which is {limit}")


def _number(field: str, value: object) -> float:
    if not isinstance(value, bool) and isinstance(value, Real):
        with suppress(OverflowError):  # a whole number beyond every float
            number = float(value)
            if math.isfinite(number):
                return number
    raise ConfigError(field=field, value=value, remedy="give a finite number")
