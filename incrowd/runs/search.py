"""Which settings to compare, and how the choice among them is to be paid for."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from incrowd import _validate
from incrowd._random import SeededRandomness
from incrowd.errors import ConfigError
from incrowd.privacy.account.selection import Repetitions
from incrowd.runs.config import Config
from incrowd.runs.data_config import PartitionedData
from incrowd.runs.recipes import config_of
from incrowd.runs.settings import parse, tables
from incrowd.runs.space import Axis, Point, drawn, grid

__all__ = ["Candidate", "Search", "Select"]

Select = Literal["all", "private", "public"]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One point of the search: what it sets, and the whole config."""

    settings: dict[str, Any]
    config: Config


@dataclass(frozen=True, kw_only=True)
class Search:
    """Settings to compare: a file (or the demonstration) with overrides, and axes over it.

    `select` says how the choice is paid for:

    all       every run is charged, and everything is shown
    private   a random number of runs, each with settings picked at random; only the best is kept and shown
    public    the examples are declared public: a rehearsal, for which nothing is charged

    `random` takes so many random points in place of all combinations. `validation` is the share of the training
    examples that is declared public and decides; 0 leaves it to the test examples. `budget` is the most that the whole
    search may cost.

    Edge cases: no axis, or whatever is wrong with any of the configs, is a `ConfigError` before anything is loaded; the
    number of runs can only be drawn for `private`. Runs that a tracker would be told of cannot be kept back, so for
    `private` there is none.
    """

    source: Path | str | None = None
    overrides: Sequence[str] = ()
    data: Path | str | None = None
    axes: Sequence[Axis] = ()
    random: int | None = None
    seed: int = 0
    select: Select = "all"
    repetitions: Repetitions | None = None
    validation: float = 0.1
    budget: float | None = None
    _random: SeededRandomness = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.axes:
            remedy = "name what to compare: --grid local.learning_rate=0.1,0.3; one setting alone is `incrowd train`"
            raise ConfigError(field="grid", value=None, remedy=remedy)
        if self.select not in get_args(Select):
            remedy = f"choose from {', '.join(get_args(Select))}"
            raise ConfigError(field="select", value=self.select, remedy=remedy)
        if (self.repetitions is not None) != (self.select == "private"):
            remedy = 'give it with select = "private", which needs it, and only there'
            raise ConfigError(field="expected_runs", value=self.repetitions and self.repetitions.mean, remedy=remedy)
        if self.validation != 0:
            _validate.fraction(validation=self.validation)
        if self.budget is not None:
            _validate.positive(budget=self.budget)
        object.__setattr__(self, "_random", SeededRandomness(seed=self.seed))

    @cached_property
    def candidates(self) -> list[Candidate]:
        """All points, in order."""
        return [self._candidate(point) for point in self._points()]

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys that differ from point to point."""
        return tuple(axis.key for axis in self.axes)

    def config(self, candidate: int, *, run: int) -> Config:
        """The config of a run: its candidate's, and, where randomness is seeded, with a seed of its own.

        Runs share no noise; in a simulation of them, they must not either.
        """
        config = self.candidates[candidate].config
        if config.run.seed is None or "run.seed" in self.keys:
            return config
        own = int(SeededRandomness(seed=config.run.seed).stream("search run", run).bits(1)[0]) % 2**31
        return config.model_copy(update={"run": config.run.model_copy(update={"seed": own})})

    def to_json(self) -> dict[str, Any]:
        """Whatever the result of the search depends on."""
        repetitions = self.repetitions
        law = None if repetitions is None else {"mean": repetitions.mean, "shape": str(repetitions.shape)}
        form = {
            "configs": [candidate.config.model_dump(mode="json") for candidate in self.candidates],
            "keys": self.keys,
            "select": self.select,
            "repetitions": law,
            "budget": self.budget,
        }
        return dict(json.loads(json.dumps(form)))

    def _points(self) -> list[Point]:
        if self.random is None:
            return grid(self.axes)
        return drawn(self.axes, count=self.random, randomness=self._random)

    def _candidate(self, point: Point) -> Candidate:
        config = self._read([*self._prepared, *self.overrides, *point])
        if self.select == "private" and config.run.trackers:
            remedy = "leave them out: of a private selection only the best may be seen, and they are told of all"
            raise ConfigError(field="run.trackers", value=list(config.run.trackers), remedy=remedy)
        dump = config.model_dump(mode="json")
        return Candidate(settings={key: _value(dump, key) for key in self.keys}, config=config)

    @cached_property
    def _prepared(self) -> tuple[str, ...]:
        """What every run of a search has unless it is said otherwise: one thread, no pictures, a validation set."""
        return tuple(self._prepare(self._read(self._together())))

    def _read(self, overrides: Sequence[str]) -> Config:
        """The settings with these overrides, and what a recipe that they name adds."""
        stated = tables(self.source, overrides=overrides, data=self.data)
        config = config_of(stated)
        return config if isinstance(config, Config) else parse(stated)  # which refuses silos, by name

    def _prepare(self, config: Config) -> Iterator[str]:
        yield "run.plot=false"
        if config.run.threads is None:
            yield "run.threads=1"
        if not isinstance(config.data, PartitionedData) or not config.data.public:
            return  # no share of private examples is made public
        if config.data.validation is None and self.validation:
            yield f"data.validation={self.validation!r}"

    def _together(self) -> list[str]:
        """The overrides of some point: only with them may a config be complete."""
        return [*self.overrides, *self._points()[0]]


def _value(tables: dict[str, Any], key: str) -> Any:
    """The value under a key with dots."""
    value: Any = tables
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
