"""How settings spell what a column means: a word, or a table of keys.

age = {range = [0, 120], missing = 40}
sex = {levels = ["f", "m"], other = true}
admitted = {dates = ["2015-01-01", "2025-12-31"]}
smoker = "yes/no"
children = "whole number"
note = "ignore"
letter = {kind = "text", buckets = 1024}
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import date, datetime
from typing import Any

from incrowd.data._cells import text_of
from incrowd.data.schema import Category, Column, Date, Ignored, Number, Text, YesNo
from incrowd.errors import ConfigError, DataError

BLANK = "?"
"""What a template has where something is to be stated."""

_KINDS: dict[str, Callable[..., Column]] = {
    "number": Number,
    "whole number": Number,
    "category": Category,
    "yes/no": YesNo,
    "date": Date,
    "text": Text,
    "ignore": Ignored,
}
_TELLING = {
    "range": "number",
    "levels": "category",
    "dates": "date",
    "yes": "yes/no",
    "no": "yes/no",
    "to": "number",
    "buckets": "text",
    "pieces": "text",
}
_FIELDS = {kind: {field.name for field in fields(made)} for kind, made in _KINDS.items()}  # type: ignore[arg-type]  # each is a dataclass
_FIELDS["whole number"] = _FIELDS["number"] - {"whole"}


def columns_of(spelled: Mapping[str, Any]) -> dict[str, Column]:
    """What columns mean, by name. Edge cases: what has no meaning is a `ConfigError` that names column and key."""
    columns = {}
    for name, meaning in spelled.items():
        try:
            columns[name] = column_of(meaning)
        except ConfigError as error:
            field = f"columns.{name}.{error.field}" if error.field else f"columns.{name}"
            raise ConfigError(field=field, value=error.value, remedy=error.remedy) from error
    return columns


def column_of(spelled: Any) -> Column:
    """What one column means."""
    if isinstance(spelled, Ignored | Number | Category | Date | Text | YesNo):
        return spelled
    if spelled == BLANK:
        remedy = 'fill it in: say {range = [0, 120]}, {levels = [...]}, "ignore"'
        raise ConfigError(field="", value=BLANK, remedy=remedy)
    given = {"kind": spelled} if isinstance(spelled, str) else spelled
    if not isinstance(given, Mapping):
        raise ConfigError(field="", value=spelled, remedy="give a word, or keys such as {range = [0, 120]}")
    kind = _kind(given)
    keys = {name: value for name, value in given.items() if name != "kind"}
    for name, value in keys.items():
        if name not in _FIELDS[kind]:
            raise ConfigError(field=name, value=value, remedy=_nearest(name, kind))
    for needed, of in (("levels", "category"), ("dates", "date")):
        if kind == of and needed not in keys:
            raise ConfigError(field=needed, value=None, remedy=f"a {kind} needs them: state what everybody may know")
    made = {name: _READ[name](name, value) for name, value in keys.items() if name != "missing"}
    if "missing" in keys:
        made["missing"] = _missing(kind, keys["missing"])
    return _KINDS[kind](**made, **({"whole": True} if kind == "whole number" else {}))


def _kind(given: Mapping[str, Any]) -> str:
    if "kind" in given:
        if given["kind"] not in _KINDS:
            field = "" if len(given) == 1 else "kind"
            raise ConfigError(field=field, value=given["kind"], remedy=f"choose from {', '.join(_KINDS)}")
        return str(given["kind"])
    for key, kind in _TELLING.items():
        if key in given:
            return kind
    raise ConfigError(field="kind", value=None, remedy=f"say what the column is: {', '.join(_KINDS)}")


def _nearest(name: str, kind: str) -> str:
    near = difflib.get_close_matches(name, _FIELDS[kind], n=1)
    known = ", ".join(sorted(_FIELDS[kind]))
    return f"did you mean {near[0]}?" if near else f"a {kind} has no such key; known are {known}"


def _missing(kind: str, value: Any) -> Any:
    if kind == "date":
        return _day("missing", value)
    if kind in ("category", "text"):
        return _text("missing", value)
    if kind == "yes/no":
        return _flag("missing", value)
    return _number("missing", value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(field=name, value=value, remedy="give a number")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(field=name, value=value, remedy="give true or false")
    return value


def _text(name: str, value: Any) -> str:
    try:
        return text_of(value)
    except DataError as error:
        raise ConfigError(field=name, value=value, remedy=f"it {error}") from error


def _word(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(field=name, value=value, remedy="give a text in quotes")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """A text or a list of them."""
    if not isinstance(value, list | tuple):
        value = [value]
    return tuple(_text(name, one) for one in value)


def _pair(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ConfigError(field=name, value=value, remedy="give two numbers, say [0, 120]")
    return _number(name, value[0]), _number(name, value[1])


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(field=name, value=value, remedy="give a whole number")
    return value


def _day(name: str, value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        raise ConfigError(field=name, value=value, remedy='give a day, say "2020-01-31"') from None


def _days(name: str, value: Any) -> tuple[date, date]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ConfigError(field=name, value=value, remedy='give two days, say ["2015-01-01", "2025-12-31"]')
    return _day(name, value[0]), _day(name, value[1])


_READ: dict[str, Callable[[str, Any], Any]] = {
    "buckets": _count,
    "dates": _days,
    "format": _word,
    "indicator": _flag,
    "knots": _count,
    "levels": _texts,
    "log": _flag,
    "no": _texts,
    "other": _flag,
    "outside": _word,
    "pieces": _count,
    "range": _pair,
    "to": _pair,
    "whole": _flag,
    "yes": _texts,
}
