"""The page's words in several languages, from one catalogue (`static/words.toml`), and numbers as each spells them."""

import math
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from incrowd.errors import ConfigError
from incrowd.privacy.statement import rounded_up
from incrowd.report.svg import Markup, tag, text

UNKNOWN = "\u2013"
"""What stands where nothing is known."""

LANGUAGES = ("en", "de", "fr")
"""The languages of the catalogue; the first is the one that statements are written in."""

_POINT = {"en": ".", "de": ",", "fr": ","}
_SPACE = "\u00a0"  # none breaks a line there
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?%?")
_POWER = re.compile(r"(?<=\d)\^(-?\d+)")
_MINUS = re.compile(r"(?<!\S)-(?=\d)")
_GROUP = {"en": ",", "de": "\u202f", "fr": "\u202f"}


@cache
def catalogue() -> dict[str, dict[str, str]]:
    """All texts: a key, and for each language its words."""
    static, found = resources.files("incrowd.report") / "static", dict[str, dict[str, str]]()
    for name in ("words.toml", "said.toml"):
        found |= tomllib.loads((static / name).read_bytes().decode())
    return found


@dataclass(frozen=True)
class Wording:
    """One language of the catalogue.

    Guarantee: whatever is put into a text stays text. Edge cases: a language that is not there is a `ConfigError`.
    """

    language: str

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            remedy = f"choose from {', '.join(LANGUAGES)}"
            raise ConfigError(field="language", value=self.language, remedy=remedy)

    def plain(self, key: str, **values: object) -> str:
        """A text, with these values in it, as it is: whoever makes markup of it escapes it."""
        return catalogue()[key][self.language].format(**values)

    def __call__(self, key: str, **values: object) -> Markup:
        """The same as markup."""
        return text(self.plain(key, **values))

    def number(self, value: float | None, digits: int = 3) -> str:
        """So many digits that matter; a dash for what is not known."""
        if value is None or not math.isfinite(value):
            return UNKNOWN
        if value and not 1e-4 <= abs(value) < 1e7:
            mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
            short = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
            power = "10" + str(int(exponent)).translate(_RAISED)
            return power if short == "1" else self._spelt(f"{short}") + "·" + power
        places = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
        said = f"{value:,.{places}f}"
        return self._spelt(said.rstrip("0").rstrip(".") if "." in said else said)

    def count(self, value: float | None) -> str:
        """A whole number, or as near as it is to one."""
        if value is None:
            return UNKNOWN
        return self._spelt(f"{value:,.0f}") if abs(value - round(value)) < 1e-9 else self.number(value, 4)

    def percent(self, share: float | None, digits: int = 1) -> str:
        """A share of a hundred."""
        if share is None or not math.isfinite(share):
            return UNKNOWN
        said = f"{100 * share:.{digits}f}"
        return f"{self._spelt(said)}{_SPACE}%"

    def odds(self, share: float) -> str:
        """A share of a hundred that is never below the share, as a promise has to be read."""
        return f"{self._spelt(rounded_up(100 * share))}{_SPACE}%"

    def epsilon(self, value: float | None) -> str:
        """An epsilon in four digits that is never below the number."""
        return UNKNOWN if value is None else self._spelt(rounded_up(value))

    def unit(self, unit: str) -> str:
        """One of whom or what is protected."""
        return self.plain(f"one.{unit}") if f"one.{unit}" in catalogue() else unit

    def sentence(self, english: str) -> Markup:
        """A sentence of a statement or an audit in this language; as it is, and so marked, where the catalogue does not
        know it. Guarantee: numbers are the same, spelt as the language does, with powers raised.
        """
        said = self.said(english)
        return tag("span", _set(english), lang=LANGUAGES[0]) if said is None else text(_set(said))

    def said(self, english: str) -> str | None:
        """The same as plain text; None where it is not known. Edge cases: a number alone is known."""
        if self.language == LANGUAGES[0]:
            return english
        for key, pattern in _statements():
            if found := pattern.fullmatch(english):
                values = {name: self._value(name, value) for name, value in found.groupdict().items()}
                return self.plain(key, **values)
        return english.replace(".", _POINT[self.language]) if _NUMBER.fullmatch(english) else None

    def _value(self, name: str, value: str) -> str:
        """What stands in a sentence; a name that somebody gave stays as it is."""
        return value if name == "name" else self.said(value) or value

    def _spelt(self, said: str) -> str:
        return said.translate({ord("."): _POINT[self.language], ord(","): _GROUP[self.language]})


@cache
def _statements() -> list[tuple[str, re.Pattern[str]]]:
    """The sentences of statements: their keys, and what matches them with values in."""
    return [(key, _matching(texts["en"])) for key, texts in catalogue().items() if key.startswith("said.")]


def _set(said: str) -> str:
    """Powers and minus signs as they are in print."""
    return _MINUS.sub("\u2212", _POWER.sub(lambda found: found[1].translate(_RAISED), said))


def _matching(template: str) -> re.Pattern[str]:
    seen, pattern = set[str](), ""
    for place, part in enumerate(re.split(r"\{(\w+)\}", template)):
        pattern += re.escape(part) if place % 2 == 0 else f"(?P={part})" if part in seen else f"(?P<{part}>.+)"
        seen |= {part} if place % 2 else set()
    return re.compile(pattern, re.DOTALL)
