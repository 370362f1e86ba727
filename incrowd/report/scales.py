"""From values to places: axes with round numbers on them, and curves of any length in as many points as can be seen."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

Spot = tuple[float, float]

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Values from `low` to `high` on pixels from `start` to `end`; `log` places their logarithms.

    Edge cases: `low` equal to `high` is widened; a logarithmic scale begins above 0, and what is not above 0 lies at
    its start.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    whole: bool = False
    ticks: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        low, high = self.low, self.high
        if self.log:
            high = high if high > 0 else 1.0
            low = low if low > 0 else high / 10
        if not high > low:
            spread = abs(low) * 0.05 or 1.0
            low, high = (low / 2, low * 2) if self.log else (low - spread, high + spread)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)
        found = log_ticks(low, high) if self.log else even_ticks(low, high, whole=self.whole)
        object.__setattr__(self, "ticks", found)

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(max(value, self.low))
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def even_ticks(low: float, high: float, *, most: int = 6, whole: bool = False) -> tuple[float, ...]:
    """Round numbers within the limits, at most so many."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * one for one in _STEPS if power * one >= rough * (1 - 1e-9))
    if whole:
        step = max(1.0, float(math.ceil(step)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(float(f"{place * step:.12g}") for place in range(first, last + 1))


def log_ticks(low: float, high: float, *, most: int = 7) -> tuple[float, ...]:
    """Powers of ten within the limits, with twos and fives between them where there is room."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for parts in ((1, 2, 5), (1, 3), (1,)):
        found = [part * 10.0**power for power in range(first, last + 1) for part in parts]
        found = [one for one in found if low * (1 - 1e-9) <= one <= high * (1 + 1e-9)]
        if 2 <= len(found) <= most:
            return tuple(found)
    every = max(1, math.ceil((last - first) / most))
    powers = tuple(10.0**power for power in range(first, last + 1, every))
    return tuple(one for one in powers if low * (1 - 1e-9) <= one <= high * (1 + 1e-9)) or (low, high)


def limits(values: Sequence[float], *, from_zero: bool = False, room: float = 0.06) -> tuple[float, float]:
    """The least and the largest value, and a little room; from 0 where that is asked for or near."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    spread = (high - low) or abs(high) or 1.0
    start = 0.0 if low >= 0 and (from_zero or low < 0.35 * spread) else low - room * spread
    return start, high + room * spread


def thinned(points: Sequence[Spot], *, columns: int) -> list[Spot]:
    """The same curve in at most four points for each column of pixels: the first, the least, the largest, the last.

    Guarantee: no extreme is lost, and a curve that is short enough is left alone.
    """
    if len(points) <= 4 * columns:
        return list(points)
    first, last = points[0][0], points[-1][0]
    width = (last - first) / columns or 1.0
    kept: list[Spot] = []
    for column in _columns(points, first, width, columns):
        chosen = {column[0], min(column, key=_height), max(column, key=_height), column[-1]}
        kept.extend(sorted(chosen))
    return kept


def picked(count: int, most: int) -> list[int]:
    """So many of the places 0 to count - 1, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})


def _columns(points: Sequence[Spot], first: float, width: float, columns: int) -> Iterator[list[Spot]]:
    held: list[Spot] = []
    at = 0
    for point in points:
        column = min(int((point[0] - first) / width), columns - 1)
        if column != at and held:
            yield held
            held = []
        at = column
        held.append(point)
    if held:
        yield held


def _height(point: Spot) -> float:
    return point[1]
