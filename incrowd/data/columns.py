"""What the columns of a table mean, as everybody may know it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from incrowd import _validate
from incrowd.data._cells import Reading
from incrowd.data._rows import AS_USUAL
from incrowd.data.schema import Column, Ignored, Number
from incrowd.data.spelling import columns_of
from incrowd.errors import ConfigError

_AS_IT_IS = Number()


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What the columns of a table mean, as everybody may know it: nothing of it is taken from the rows.

    ``client`` is the column that says whose a row is; it is empty where all rows are one client's.

    ``schema`` says what a column is: a `Column`, or words as settings have them (`incrowd.data.spelling`). ``features``
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
