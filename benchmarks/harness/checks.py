"""Checks of what is asked for. Each takes fields by name, so that the message can name them."""

import math
from collections.abc import Iterable
from numbers import Integral, Real

from incrowd import ConfigError


def count(**fields: object) -> None:
    """Each value is a whole number of at least 1."""
    _whole(1, fields)


def natural(**fields: object) -> None:
    """Each value is a whole number of at least 0."""
    _whole(0, fields)


def positive(**fields: object) -> None:
    """Each value is a finite number above 0."""
    for field, value in fields.items():
        _refuse_unless(_number(value) > 0, field, value, "give a number above 0")


def non_negative(**fields: object) -> None:
    """Each value is a finite number of at least 0."""
    for field, value in fields.items():
        _refuse_unless(_number(value) >= 0, field, value, "give a number of at least 0")


def fraction(**fields: object) -> None:
    """Each value is a number strictly between 0 and 1."""
    for field, value in fields.items():
        _refuse_unless(0 < _number(value) < 1, field, value, "give a number between 0 and 1, both excluded")


def probability(**fields: object) -> None:
    """Each value is a number above 0 and at most 1."""
    for field, value in fields.items():
        _refuse_unless(0 < _number(value) <= 1, field, value, "give a number above 0 and at most 1")


def at_most(limit: float, limit_name: str, **fields: float) -> None:
    """Each value is at most a limit that has a name of its own."""
    for field, value in fields.items():
        _refuse_unless(value <= limit, field, value, f"give at most {limit_name}, which is {limit}")


def known(names: Iterable[str], **fields: str) -> None:
    """Each value is one of these names."""
    several = list(names)
    for field, value in fields.items():
        _refuse_unless(value in several, field, value, f"give one of {', '.join(several)}")


def _whole(least: int, fields: dict[str, object]) -> None:
    for field, value in fields.items():
        other = isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least
        _refuse_unless(not other, field, value, f"give a whole number of at least {least}")


def _number(value: object) -> float:
    """The value, or what no check accepts."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    return float(value) if math.isfinite(value) else math.nan


def _refuse_unless(fine: bool, field: str, value: object, remedy: str) -> None:
    if not fine:
        raise ConfigError(field=field, value=value, remedy=remedy)
