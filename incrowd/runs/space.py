"""What a search looks at: values of settings, all combinations of them or random ones."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from incrowd import _validate
from incrowd._random import Randomness, Stream
from incrowd.errors import ConfigError

__all__ = ["Axis", "Choice", "Point", "SearchRange", "axis", "drawn", "grid"]

Point = tuple[str, ...]
"""One value for each key, as the overrides `key=value` that `incrowd.runs.settings.load` takes."""

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"(?P<low>{_NUMBER})\s*\.\.\s*(?P<high>{_NUMBER})(?P<log>\s*:\s*log)?")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A few values, as TOML spells them."""

    key: str
    values: tuple[str, ...]

    def sample(self, stream: Stream) -> str:
        """One of them, each as probable as the others."""
        return self.values[int(stream.bits(1)[0]) % len(self.values)]


@dataclass(frozen=True, kw_only=True)
class SearchRange:
    """All numbers between two, both included; with `log`, each factor is as probable as every other."""

    key: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(field=self.key, value=f"{self.low:g}..{self.high:g}", remedy="give the lower end first")
        if self.log and self.low <= 0:
            raise ConfigError(field=self.key, value=self.low, remedy="a logarithmic range begins above 0")

    def sample(self, stream: Stream) -> str:
        """One of them: four digits of it, or a whole number where both ends are whole."""
        share = (float(stream.bits(1)[0]) + 0.5) * 2.0**-64
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        value = low * (high / low) ** share if self.log else low + (high - low) * share
        kept = min(max(value, self.low), self.high)
        return str(round(kept)) if self.whole else f"{kept:.4g}"


Axis = Choice | SearchRange


def axis(text: str) -> Axis:
    """The axis that `key=a,b,c`, `key=low..high` or `key=low..high:log` spells.

    Commas within brackets, braces or quotes belong to a value: `model.hidden=[200],[600, 100]`.

    Edge cases: no key, no value, a value that is there twice, or a range that is none: `ConfigError`.
    """
    key, equals, rest = (part.strip() for part in text.partition("="))
    if not key or not equals:
        raise ConfigError(field="grid", value=text, remedy="write section.key=a,b,c, say local.learning_rate=0.1,0.3")
    span = _RANGE.fullmatch(rest)
    if span is not None:
        whole = all(re.fullmatch(r"[+-]?\d+", span[end]) for end in ("low", "high"))
        low, high = float(span["low"]), float(span["high"])
        return SearchRange(key=key, low=low, high=high, log=span["log"] is not None, whole=whole)
    values = tuple(_split(rest))
    if not all(values) or len(set(values)) < len(values):
        raise ConfigError(field=key, value=rest, remedy="give different values, with commas between")
    return Choice(key=key, values=values)


def grid(axes: Sequence[Axis]) -> list[Point]:
    """Every combination; the last key's values follow each other most closely.

    Edge cases: without an axis there is one point, the settings as they are; a range has no combinations.
    """
    _check_keys(axes)
    for each in axes:
        if isinstance(each, SearchRange):
            remedy = "a range is for random search: say how many points with --random N, or list values"
            raise ConfigError(field=each.key, value=f"{each.low:g}..{each.high:g}", remedy=remedy)
    lists = [[f"{each.key}={value}" for value in each.values] for each in axes if isinstance(each, Choice)]
    return list(product(*lists))


def drawn(axes: Sequence[Axis], *, count: int, randomness: Randomness) -> list[Point]:
    """Random points, each key drawn for itself; a point that was there before is drawn anew.

    Edge cases: where hardly any point is new, fewer than asked for.
    """
    _validate.count(random=count)
    _check_keys(axes)
    points: dict[Point, None] = {}
    for attempt in range(20 * count):
        streams = (randomness.stream("search", attempt, place) for place in range(len(axes)))
        points[tuple(f"{each.key}={each.sample(stream)}" for each, stream in zip(axes, streams, strict=True))] = None
        if len(points) == count:
            break
    return list(points)


def _check_keys(axes: Sequence[Axis]) -> None:
    keys = [each.key for each in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(field=key, value="twice", remedy="give all its values in one list")


def _split(text: str) -> list[str]:
    """The parts between commas that stand in no bracket, brace or quotation."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        depth += (letter in "[{") - (letter in "]}") if not quote else 0
        if letter == "," and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
