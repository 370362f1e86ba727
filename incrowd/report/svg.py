"""Markup, element by element: whatever a text or an attribute holds, it stays text."""

import html
import math
from collections.abc import Iterable
from typing import NewType

Markup = NewType("Markup", str)
"""Finished markup. Everything else is text, and is escaped where it enters."""

NOTHING = Markup("")


def text(value: object) -> Markup:
    """A value as text. Guarantee: no part of it is markup; characters that no page may hold are left out."""
    shown = "".join(one if one.isprintable() or one in "\n\t" else " " for one in str(value))
    return Markup(html.escape(shown, quote=True))


def joined(parts: Iterable[Markup]) -> Markup:
    """Parts one after the other."""
    return Markup("".join(parts))


def tag(name: str, *content: Markup | str, **attributes: object) -> Markup:
    """An element; content that is no `Markup` has been through `text` or is escaped here by its caller.

    An attribute that is None is left out, one that is True has no value; `class_` and `data_x` are spelt class, data-x.
    """
    inside = "".join(content)
    return Markup(f"<{name}{_attributes(attributes)}>{inside}</{name}>")


def alone(name: str, **attributes: object) -> Markup:
    """An element without content."""
    return Markup(f"<{name}{_attributes(attributes)}/>")


def number(value: float) -> str:
    """A coordinate: two decimals at most, and never an exponent."""
    if not math.isfinite(value):
        return "0"
    short = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if short in ("-0", "") else short


def _attributes(attributes: dict[str, object]) -> str:
    return "".join(_attribute(name, value) for name, value in attributes.items() if value is not None)


def _attribute(name: str, value: object) -> str:
    spelt = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {spelt}"
    return f' {spelt}="{text(number(value) if isinstance(value, float) else value)}"'
