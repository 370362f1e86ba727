"""The columns of a table: their words in settings, their meaning, whether a party's table fits an offer, and settings
written from a header alone.
"""

import codecs
import csv
import dataclasses
import difflib
import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import date, datetime
from pathlib import Path
from string import Template
from typing import Any, BinaryIO

from incrowd import _validate
from incrowd.data.reading import AS_USUAL, DELIMITERS, Reading, check_header, parquet, text_of
from incrowd.data.schema import Category, Column, Date, Ignored, Number, Outside, Text, YesNo
from incrowd.errors import ConfigError, DataError

BLANK = "?"
"""The mark of a fact that the owner of a template has to state."""

TEMPLATE = Path(__file__).with_name("template.toml")
_MOST = 1 << 20  # bytes of the longest header
_LINE = re.compile(rb'(?:[^"\r\n]++|"[^"]*+")*+[\r\n]')  # a line break in quotes does not end the line
_KINDS: dict[str, type[Column]] = {
    "number": Number,
    "whole number": Number,
    "category": Category,
    "yes/no": YesNo,
    "date": Date,
    "text": Text,
    "ignore": Ignored,
}
_KIND_OF_KEY = {
    "range": "number",
    "levels": "category",
    "dates": "date",
    "yes": "yes/no",
    "no": "yes/no",
    "to": "number",
    "buckets": "text",
    "pieces": "text",
}
_KEYS = {kind: {key.name for key in fields(made)} for kind, made in _KINDS.items()}
_KEYS["whole number"] -= {"whole"}
_TYPES: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("indicator", "log", "other", "whole"), (bool, "give true or false")),
    **dict.fromkeys(("buckets", "knots", "pieces"), (int, "give a whole number")),
    **dict.fromkeys(("format", "outside"), (str, "give a text in quotes")),
}
_AS_IT_IS = Number()
_EXACT = 2**24  # a float32 holds whole numbers up to this exactly
_IN_WORDS = {
    Number: "a number",
    Category: "a category",
    YesNo: "yes or no",
    Date: "a date",
    Text: "a text",
    Ignored: "not for learning",
}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The meaning of a table's columns. All of it is public, and nothing comes from the rows.

    `client` is the column with the client's name. None makes each row a client; "" gives all rows to one client.
    `schema` has a `Column`, or its words in settings, for each column (see `column_of`). `features` are the columns to
    learn from, in order; the default is the schema's, or all others without a schema. A feature outside the schema is a
    number. `classes` is the number of classes, their labels in order, or None for regression. `label_range` is the
    range of numeric labels. `reading` is the format of the cells.
    """

    client: str | None
    label: str
    features: tuple[str, ...] = ()
    classes: int | tuple[str, ...] | None = None
    label_range: tuple[float, float] | None = None
    schema: Mapping[str, Any] = dataclasses.field(default_factory=dict)
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
            remedy = "name each column once, neither client nor label"
            raise ConfigError(field="features", value=self.features, remedy=remedy)
        for name, role in ((self.client, "client"), (self.label, "label")):
            if name and not isinstance(self.schema.get(name, Ignored()), Ignored):
                remedy = f"it is the {role}, which nothing is learned from: leave this line out"
                raise ConfigError(field=f"columns.{name}", value=type(self.schema[name]).__name__, remedy=remedy)
        for name in self.features:
            if isinstance(self.schema.get(name), Ignored):
                raise ConfigError(field=f"columns.{name}", value="ignore", remedy="features names it: leave out one")

    @property
    def number_of_classes(self) -> int | None:
        """The number of classes, None for regression."""
        return len(self.classes) if isinstance(self.classes, tuple) else self.classes

    def resolved(self, header: tuple[str, ...]) -> "Columns":
        """The same columns with `features` filled in from the schema, or from the header of the training table."""
        names = self.schema or header
        learned = (name for name in names if not isinstance(self.schema.get(name), Ignored))
        others = tuple(name for name in learned if self.schema or name not in (self.client, self.label))
        return replace(self, features=self.features or others)

    def numbers(self) -> tuple[str, ...]:
        """The names of the numbers in an encoded row, column by column."""
        return tuple(inner for name in self.features for inner in self.meaning(name).features(name))

    def meaning(self, name: str) -> Column:
        """The column of a feature."""
        column: Column = self.schema.get(name, _AS_IT_IS)
        return column


def columns_of(words: Mapping[str, Any]) -> dict[str, Column]:
    """The columns in the words of settings."""
    columns = {}
    for name, meaning in words.items():
        try:
            columns[name] = column_of(meaning)
        except ConfigError as error:
            path = f"columns.{name}.{error.field}" if error.field else f"columns.{name}"
            raise ConfigError(field=path, value=error.value, remedy=error.remedy) from error
    return columns


def column_of(words: Any) -> Column:
    """One column in the words of settings: a kind, or keys.

    age = {range = [0, 120], missing = 40}
    smoker = "yes/no"
    """
    if isinstance(words, Column):
        return words
    if words == BLANK:
        remedy = 'fill it in: say {range = [0, 120]}, {levels = [...]}, "ignore"'
        raise ConfigError(field="", value=BLANK, remedy=remedy)
    stated = {"kind": words} if isinstance(words, str) else words
    if not isinstance(stated, Mapping):
        raise ConfigError(field="", value=words, remedy="give a word, or keys such as {range = [0, 120]}")
    kind = _kind(stated)
    keys = {key: value for key, value in stated.items() if key != "kind"}
    for key, value in keys.items():
        if key not in _KEYS[kind]:
            near = difflib.get_close_matches(key, _KEYS[kind], n=1)
            known = f"a {kind} has no such key; known are {', '.join(sorted(_KEYS[kind]))}"
            raise ConfigError(field=key, value=value, remedy=f"did you mean {near[0]}?" if near else known)
    for needed, of in (("levels", "category"), ("dates", "date")):
        if kind == of and needed not in keys:
            raise ConfigError(field=needed, value=None, remedy=f"a {kind} needs them: state what everybody may know")
    made = {key: _value(kind, key, value) for key, value in keys.items()}
    return _KINDS[kind](**made, **({"whole": True} if kind == "whole number" else {}))


def _kind(stated: Mapping[str, Any]) -> str:
    if "kind" not in stated:
        kind = next((kind for key, kind in _KIND_OF_KEY.items() if key in stated), None)
        if kind is None:
            raise ConfigError(field="kind", value=None, remedy=f"say what the column is: {', '.join(_KINDS)}")
        return kind
    if stated["kind"] not in _KINDS:
        path = "" if len(stated) == 1 else "kind"
        raise ConfigError(field=path, value=stated["kind"], remedy=f"choose from {', '.join(_KINDS)}")
    return str(stated["kind"])


def _value(kind: str, key: str, value: Any) -> Any:
    """The value of one key, checked."""
    if key in _TYPES:
        return _typed(key, value, *_TYPES[key])
    if key in ("range", "to"):
        return tuple(_number(key, one) for one in _two(key, value, "give two numbers, say [0, 120]"))
    if key == "dates":
        return tuple(_day(key, day) for day in _two(key, value, 'give two days, say ["2015-01-01", "2025-12-31"]'))
    if key in ("levels", "yes", "no"):
        return tuple(_text(key, one) for one in (value if isinstance(value, list | tuple) else [value]))
    if kind == "date":
        return _day(key, value)
    if kind == "yes/no":
        return _typed(key, value, bool, "give true or false")
    return _text(key, value) if kind in ("category", "text") else _number(key, value)


def _typed(key: str, value: Any, kind: type, remedy: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(field=key, value=value, remedy=remedy)
    return value


def _two(key: str, value: Any, remedy: str) -> Any:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ConfigError(field=key, value=value, remedy=remedy)
    return value


def _number(key: str, value: Any) -> float:
    number: float = value if type(value) is float else _typed(key, value, int, "give a number")
    return number


def _text(key: str, value: Any) -> str:
    try:
        return text_of(value)
    except DataError as error:
        raise ConfigError(field=key, value=value, remedy=f"it {error}") from error


def _day(key: str, value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        raise ConfigError(field=key, value=value, remedy='give a day, say "2020-01-31"') from None


def agreed(wanted: Columns, own: Columns) -> Columns:
    """The columns with which a party reads its table for an offer.

    A server gets a yes or a no for each offer, free of charge. So the answer must not depend on a cell.

    Guarantee: the answer follows from the two schemas alone. The party reads every row that fits its schema, with the
    numbers that any other party would get.
    """
    if own.label != wanted.label:
        raise ConfigError(field="label", value=wanted.label, remedy=f"this party learns {own.label}")
    fits = type(wanted.classes) is type(own.classes)
    if isinstance(wanted.classes, tuple) and isinstance(own.classes, tuple):
        fits = set(own.classes) <= set(wanted.classes)
    elif isinstance(wanted.classes, int) and isinstance(own.classes, int):
        fits = own.classes <= wanted.classes
    if not fits:
        raise ConfigError(field="classes", value=wanted.classes, remedy=f"this party's labels are of {own.classes}")
    schema = {}
    for name in wanted.features:
        if name not in own.schema:
            raise ConfigError(field=f"columns.{name}", value=name, remedy="this party has not stated such a column")
        try:
            schema[name] = _fitted(wanted.meaning(name), own.meaning(name), own.reading)
        except ConfigError as error:
            raise ConfigError(field=f"columns.{name}.{error.field}", value=error.value, remedy=error.remedy) from error
    return replace(wanted, client="", schema=schema, reading=own.reading)


def _fitted(wanted: Column, own: Column, reading: Reading) -> Column:
    """The wanted column, for cells in the party's format."""
    if own.imputed() is not None and wanted.imputed() is None:
        raise ConfigError(field="missing", value=None, remedy="values may be missing here: say what stands for them")
    if isinstance(wanted, Number) and isinstance(own, Number):
        _check_range(wanted, wanted.range, own.range, outside=own.outside)
        exact = own.range is not None and own.outside != "clip" and max(map(abs, own.range)) <= _EXACT
        if wanted.range is None and own.range is not None and not exact:
            raise ConfigError(field="range", value=None, remedy="here it may be larger than a float32 holds: state one")
        if wanted.whole and not own.whole:
            raise ConfigError(field="whole", value=True, remedy="here it is any number")
        return wanted
    if isinstance(wanted, Date) and isinstance(own, Date):
        _check_range(wanted, wanted.dates, own.dates, outside=own.outside)
        return replace(wanted, format=own.format)
    if isinstance(wanted, Text) and isinstance(own, Text):
        for field in ("buckets", "pieces"):  # each is memory of the party's for every row
            if getattr(wanted, field) > getattr(own, field):
                remedy = f"here a text becomes {getattr(own, field)} numbers at most"
                raise ConfigError(field=field, value=getattr(wanted, field), remedy=remedy)
        return wanted
    if isinstance(wanted, YesNo) and isinstance(own, YesNo):
        return replace(wanted, yes=own.yes, no=own.no)
    if isinstance(wanted, Category) and isinstance(own, Category):
        others = [level for level in own.levels if level not in wanted.levels]
        if (others or own.other) and not wanted.other:
            remedy = f"here it may be {others or 'other'}, too: or other = true"
            raise ConfigError(field="levels", value=wanted.levels, remedy=remedy)
        if blank := [level for level in others if reading.is_missing(level)]:
            # A level of the party, but not of the offer: there its text would mark a missing value.
            raise ConfigError(field="levels", value=wanted.levels, remedy=f"here {blank} are levels: name them, too")
        return wanted
    kinds = [_IN_WORDS.get(type(one), type(one).__name__) for one in (wanted, own)]
    raise ConfigError(field="kind", value=kinds[0], remedy=f"here it is {kinds[1]}")


def _check_range(wanted: Number | Date, its: Any, own: Any, *, outside: Outside) -> None:
    if its is None or wanted.outside == "clip":
        return
    if outside == "clip":  # cells may then be anything
        remedy = 'values beyond the range are clipped here: say outside = "clip"'
        raise ConfigError(field="outside", value=wanted.outside, remedy=remedy)
    if own is None or not (its[0] <= own[0] and own[1] <= its[1]):
        here = "has no range" if own is None else f"is within {tuple(str(end) for end in own)}"
        remedy = f'here it {here}: widen it, or say outside = "clip"'
        raise ConfigError(field="range", value=tuple(str(end) for end in its), remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class Header:
    """The names of a table's columns, and their format."""

    columns: tuple[str, ...]
    delimiter: str = ","
    encoding: str = "utf-8"


def read_header(path: Path) -> Header:
    """The header of a table. Guarantee: it does not depend on the rows."""
    header = _stored_header(path)
    if not header.columns:
        raise DataError(f"{path}: has no header that can be read; give one, and check its quotes")
    check_header(path, header.columns)
    return header


def _stored_header(path: Path) -> Header:
    if path.name.endswith(".parquet"):
        return Header(columns=parquet(path, lambda module: tuple(module.read_schema(path).names)))
    if not path.name.endswith((".csv", ".csv.gz")):
        raise DataError(f"{path}: unknown kind of table; give a file that ends in .csv, .csv.gz or .parquet")
    line, encoding = _first_line(path), "utf-8"
    if any(byte < 32 and byte not in b"\t\r\n" for byte in line):
        raise DataError(f"{path}: is no text, so it has no header; save the table as CSV")
    try:
        text = line.decode()
    except UnicodeDecodeError:
        text, encoding = line.decode("latin-1"), "latin-1"  # which has a letter for each byte
    split = {mark: _split(text, mark) for mark in DELIMITERS}
    delimiter = max(split, key=lambda mark: len(split[mark]))
    return Header(columns=split[delimiter], delimiter=delimiter, encoding=encoding)


def _first_line(path: Path) -> bytes:
    """The bytes up to the end of the header, which may have line breaks in quotes."""
    content = b""
    try:
        with path.open("rb") as raw:
            for piece in _pieces(raw, packed=path.name.endswith(".gz")):
                content = (content + piece).removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n")  # blank lines are skipped
                if end := _LINE.match(content):
                    return content[: end.end() - 1]
                if len(content) > _MOST:
                    raise DataError(f"{path}: its first line does not end; give a table with a header")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and the permissions") from error
    except zlib.error as error:
        raise DataError(f"{path}: broken gzip ({error}); get the file again") from error
    return content


def _pieces(raw: BinaryIO, *, packed: bool) -> Iterator[bytes]:
    """The content of a file in pieces so small that a broken row cannot break the header."""
    inflate = zlib.decompressobj(wbits=31)
    for stored in iter(lambda: raw.read(64), b""):
        yield inflate.decompress(stored) if packed else stored


def _split(text: str, delimiter: str) -> tuple[str, ...]:
    try:
        return tuple(next(csv.reader([text], strict=True, delimiter=delimiter), ()))
    except csv.Error:
        return ()


def template(path: Path, header: Header, *, client: str | None = None, label: str | None = None, seen: str) -> str:
    """Settings in TOML, with a `?` for each fact to state; `seen` is the file's name in the settings."""
    for field, name in (("client", client), ("label", label)):
        if name is not None and name not in header.columns:
            raise ConfigError(field=field, value=name, remedy=f"choose from {', '.join(header.columns)}")
    if client is not None and client == label:
        raise ConfigError(field="label", value=label, remedy="it is the client column, too: name two columns")
    written = [f"delimiter = {_quoted(header.delimiter)}\n"] if header.delimiter != "," else []
    written += [f"encoding = {_quoted(header.encoding)}\n"] if header.encoding != "utf-8" else []
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=json.dumps(path.name),
        file=_quoted(seen),
        written="".join(written),
        client=_quoted(client or BLANK),
        label=_quoted(label or BLANK),
        columns="\n".join(f'{_key(name)} = "{BLANK}"' for name in header.columns if name not in (client, label)),
    )


def relative(path: Path, *, to: Path | None) -> str:
    """The name of a file in settings in this folder; without a folder, its path as stated."""
    return str(path) if to is None else os.path.relpath(path.resolve(), to.resolve())


def _key(name: str) -> str:
    """A TOML key."""
    return name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else _quoted(name)


def _quoted(text: str) -> str:
    """A TOML string; its escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
