"""Markup, element by element: whatever a text or an attribute holds, it stays text."""

import html
import math
from collections.abc import Iterable


class Markup(str):
    """Finished markup. Whatever is no `Markup` is text, and is escaped where it is put together with it."""

    __slots__ = ()

    def __add__(self, other: str) -> "Markup":
        return joined([self, other])


def text(value: object) -> Markup:
    """A value as text. Guarantee: no part of it is markup; characters that no page may hold are left out."""
    shown = "".join(one if one.isprintable() or one in "\n\t\u00a0\u202f" else " " for one in str(value))
    return Markup(html.escape(shown, quote=True))


def joined(parts: Iterable[str]) -> Markup:
    """Parts one after the other. Guarantee: those that are no `Markup` are escaped."""
    return Markup("".join(part if isinstance(part, Markup) else text(part) for part in parts))


NOTHING = Markup("")


def tag(name: str, *content: str, **attributes: object) -> Markup:
    """An element. Guarantee: content that is no `Markup`, and every attribute, is text.

    An attribute that is None is left out, one that is True has no value; `class_` and `data_x` are spelt class, data-x.
    """
    return Markup(f"<{name}{_attributes(attributes)}>{joined(content)}</{name}>")


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
