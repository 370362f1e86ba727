"""A measurement that is repeated, with everything that is random drawn anew from each seed."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from harness import checks

Say = Callable[[str], object]
Entry = dict[str, Any]
"""What was measured, as JSON can hold it."""

Run = TypeVar("Run")


def silent(_line: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Repeated(Generic[Run]):
    """What came out for each seed, and the seconds that all of it took."""

    runs: Sequence[Run]
    seconds: float

    @property
    def first(self) -> Run:
        """What came out for the first seed."""
        return self.runs[0]


def repeated(
    measure: Callable[[int], Run], *, seeds: int | Sequence[int], told: Callable[[Run], str] = str, say: Say = silent
) -> Repeated[Run]:
    """Measure once for each of these seeds, or for so many; `say` hears how each went, in the words of `told`."""
    if isinstance(seeds, int):
        checks.count(seeds=seeds)
    start, runs = time.perf_counter(), []
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        runs.append(measure(seed))
        say(f"  seed {seed}: {told(runs[-1])} after {time.perf_counter() - start:.0f} s")
    return Repeated(runs=runs, seconds=time.perf_counter() - start)


def summary(values: Sequence[float], name: str = "accuracy") -> Entry:
    """The mean over the seeds and the standard deviation, which one seed does not have."""
    return {name: statistics.fmean(values), f"{name}_sd": spread(values)}


def spread(values: Sequence[float]) -> float | None:
    """The standard deviation over the seeds; None for one seed."""
    return statistics.stdev(values) if len(values) > 1 else None


def means(curves: Iterable[Sequence[float]]) -> list[float]:
    """The mean over the seeds, point by point."""
    return [statistics.fmean(values) for values in zip(*curves, strict=True)]
