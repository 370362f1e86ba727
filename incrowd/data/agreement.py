"""Whether a party's table fits what somebody wants to learn from: by what is stated of both, and by no row.

Whoever asks gets a yes or a no, free of charge, as often as he likes. So it must not depend on a single cell: a party
states what its columns hold, sees for itself that its rows are like that, and every offer is compared with the words.
"""

from dataclasses import replace
from datetime import date

from incrowd.data._cells import Reading
from incrowd.data.columns import Columns
from incrowd.data.schema import Category, Column, Date, Ignored, Number, Outside, Text, YesNo
from incrowd.errors import ConfigError

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
