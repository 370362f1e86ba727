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
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime
from typing import Any

from incrowd import _validate
from incrowd.data.reading import AS_USUAL, Reading, text_of
from incrowd.data.schema import Category, Column, Date, Ignored, Number, Outside, Text, YesNo
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


_AS_IT_IS = Number()


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What the columns of a table mean, as everybody may know it: nothing of it is taken from the rows.

    ``client`` is the column that says whose a row is; it is empty where all rows are one client's.

    ``schema`` says what a column is: a `Column`, or words as settings have them (`incrowd.data.columns`). ``features``
    names the columns to learn from, in their order; without it they are those of the schema, and without that, too, all
    others. A feature that the schema does not know is a number. ``classes`` is a number, for labels 0 .. classes - 1;
    the labels' names in order; or None, for regression. ``label_range`` is the range of labels that are numbers.
    ``reading`` says how the cells are written.
    """

    client: str
    label: str
    features: tuple[str, ...] = ()
    classes: int | tuple[str, ...] | None = None
    label_range: tuple[float, float] | None = None
    schema: Mapping[str, Any] = field(default_factory=dict)
    reading: Reading = AS_USUAL

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", columns_of(self.schema))
        if isinstance(self.classes, int):
            _validate.count(classes=self.classes)
        elif self.classes is not None and (not self.classes or len(set(self.classes)) != len(self.classes)):
            raise ConfigError(field="classes", value=self.classes, remedy="give each label's name once")
        if self.label_range is not None:
            low, high = self.label_range
            if self.classes is not None or not -math.inf < low < high < math.inf:
                remedy = "give the least and the largest label, of labels that are numbers"
                raise ConfigError(field="label_range", value=self.label_range, remedy=remedy)
        if self.client == self.label:
            raise ConfigError(field="label", value=self.label, remedy="it is the client column, too: name two columns")
        if len({self.client, self.label, *self.features}) != 2 + len(self.features):
            raise ConfigError(
                field="features", value=self.features, remedy="name each column once, neither client nor label"
            )
        for name, what in ((self.client, "client"), (self.label, "label")):
            if not isinstance(self.schema.get(name, Ignored()), Ignored):
                remedy = f"it is the {what}, which nothing is learned from: leave this line out"
                raise ConfigError(field=f"columns.{name}", value=type(self.schema[name]).__name__, remedy=remedy)
        for name in self.features:
            if isinstance(self.schema.get(name), Ignored):
                raise ConfigError(field=f"columns.{name}", value="ignore", remedy="features names it: leave out one")

    @property
    def number_of_classes(self) -> int | None:
        """The number of classes, None for regression."""
        return len(self.classes) if isinstance(self.classes, tuple) else self.classes

    def resolved(self, header: tuple[str, ...]) -> "Columns":
        """The same with ``features`` that are named: a test table's columns are those of the table to learn from."""
        stated = tuple(name for name, column in self.schema.items() if not isinstance(column, Ignored))
        known = {self.client, self.label}
        everything = tuple(name for name in header if name not in known)
        return replace(self, features=self.features or (stated if self.schema else everything))

    def numbers(self) -> tuple[str, ...]:
        """The names of the numbers that a model sees, one column after the other, once features are named."""
        return tuple(inner for name in self.features for inner in self.meaning(name).features(name))

    def meaning(self, name: str) -> Column:
        """What a feature's column means."""
        column: Column = self.schema.get(name, _AS_IT_IS)
        return column


_EXACT = 2**24  # whole numbers that float32 tells apart
_NAMES = {
    Number: "a number",
    Category: "a category",
    YesNo: "yes or no",
    Date: "a date",
    Text: "a text",
    Ignored: "not for learning",
}


def agreed(wanted: Columns, own: Columns) -> Columns:
    """How to read a party's own table so that it becomes what is wanted, the same at every party.

    Guarantee: it follows from the two statements alone. A row that is as the party states is never refused, and becomes
    the numbers that it would become at any other party: only how cells are written is the party's own.

    Edge cases: a column that the party has not, or that may hold what nobody wants, is a `ConfigError` that names it.
    """
    if own.label != wanted.label:
        raise ConfigError(field="label", value=wanted.label, remedy=f"this party learns {own.label}")
    _check_classes(wanted.classes, own.classes)
    schema = {name: _agreed(name, wanted.meaning(name), own) for name in wanted.features}
    return replace(wanted, client="", schema=schema, reading=own.reading)


def _check_classes(wanted: int | tuple[str, ...] | None, own: int | tuple[str, ...] | None) -> None:
    fits = type(wanted) is type(own)
    if isinstance(wanted, tuple) and isinstance(own, tuple):
        fits = set(own) <= set(wanted)
    elif isinstance(wanted, int) and isinstance(own, int):
        fits = own <= wanted
    if not fits:
        raise ConfigError(field="classes", value=wanted, remedy=f"this party's labels are of {own}")


def _agreed(name: str, wanted: Column, own: Columns) -> Column:
    if name not in own.schema:
        raise ConfigError(field=f"columns.{name}", value=name, remedy="this party has not stated such a column")
    stated = own.meaning(name)
    try:
        return _fitted(wanted, stated, own.reading)
    except ConfigError as error:
        raise ConfigError(field=f"columns.{name}.{error.field}", value=error.value, remedy=error.remedy) from error


def _fitted(wanted: Column, own: Column, reading: Reading) -> Column:
    """The wanted meaning, of cells that are written in the party's own way (`reading`)."""
    if own.imputed() is not None and not isinstance(own, Ignored) and wanted.imputed() is None:
        raise ConfigError(field="missing", value=None, remedy="values may be missing here: say what stands for them")
    if isinstance(wanted, Number) and isinstance(own, Number):
        _check_range(wanted, wanted.range, own.range, outside=own.outside)
        if wanted.range is None and own.range is not None and not _is_told_apart(own):
            raise ConfigError(field="range", value=None, remedy="here it may be larger than a float32 holds: state one")
        if wanted.whole and not own.whole:
            raise ConfigError(field="whole", value=True, remedy="here it is any number")
        return wanted
    if isinstance(wanted, Date) and isinstance(own, Date):
        _check_range(wanted, wanted.dates, own.dates, outside=own.outside)
        return replace(wanted, format=own.format)
    if isinstance(wanted, Text) and isinstance(own, Text):
        for field in ("buckets", "pieces"):  # each is a number of every row, and memory of the party's
            if getattr(wanted, field) > getattr(own, field):
                remedy = f"here a text becomes {getattr(own, field)} numbers at most"
                raise ConfigError(field=field, value=getattr(wanted, field), remedy=remedy)
        return wanted
    if isinstance(wanted, YesNo) and isinstance(own, YesNo):
        return replace(wanted, yes=own.yes, no=own.no)
    if isinstance(wanted, Category) and isinstance(own, Category):
        others = [level for level in own.levels if level not in wanted.levels]
        if (others or own.other) and not wanted.other:
            shown = others or "other"
            raise ConfigError(
                field="levels", value=wanted.levels, remedy=f"here it may be {shown}, too: or other = true"
            )
        if blank := [level for level in others if reading.is_missing(level)]:
            # A level of the party's, and not of what is wanted: there its text would say that the value is missing.
            raise ConfigError(field="levels", value=wanted.levels, remedy=f"here {blank} are levels: name them, too")
        return wanted
    kinds = (_NAMES.get(type(one), type(one).__name__) for one in (wanted, own))
    raise ConfigError(field="kind", value=next(kinds), remedy=f"here it is {next(kinds)}")


def _is_told_apart(own: Number) -> bool:
    """Whether no value that is as stated is refused where there is no range: see `as_float32`."""
    return own.range is not None and own.outside != "clip" and max(map(abs, own.range)) <= _EXACT


Ends = tuple[float, float] | tuple[date, date] | None


def _check_range(wanted: Number | Date, its: Ends, own: Ends, *, outside: Outside) -> None:
    if its is None or wanted.outside == "clip":
        return
    if outside == "clip":  # then cells may be anything, whatever the range is
        remedy = 'values beyond the range are clipped here: say outside = "clip"'
        raise ConfigError(field="outside", value=wanted.outside, remedy=remedy)
    if own is None or not (its[0] <= own[0] and own[1] <= its[1]):  # type: ignore[operator]  # two of one kind
        shown = None if own is None else tuple(str(end) for end in own)
        remedy = f'here it is within {shown}: widen it, or say outside = "clip"'
        raise ConfigError(field="range", value=tuple(str(end) for end in its), remedy=remedy)
