"""All rows that are asked for: sets, pfl's setting, speakers of plays."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness import checks
from harness.seeds import Entry
from incrowd import ConfigError
from incrowd.data import Split
from incrowd.learning.features import is_picture
from papers.accuracy.measure import Bench
from papers.accuracy.pfl_setup import pfl_rows
from papers.accuracy.plays import as_ones, load_plays, plays_row
from papers.accuracy.sets import SETS, TABLES, load_set

RECORD_DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Table:
    """What to measure, on the data in a folder. `bench` is what `Bench.on` takes beside the data.

    With `records` the unit is a record, with `pfl` there are pfl-research's rows, too, of so many rounds, and with
    `plays` those of natural clients.

    Edge cases: an unknown set, a number that makes no sense, and plays where training examples are to be measured on
    (of plays there are test speakers alone), are refused before anything is read.
    """

    folder: Path
    sets: Sequence[str]
    clients: Sequence[int]
    epsilons: Sequence[float]
    recipes: Sequence[str]
    records: bool = False
    pfl: int = 0
    plays: bool = False
    bench: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.natural(pfl=self.pfl)
        for name in ("held_out", "strict"):
            if self.plays and self.bench.get(name):
                remedy = "plays are measured on their test speakers, and no example of theirs is public"
                raise ConfigError(field=name, value=self.bench[name], remedy=f"{remedy}: leave out one of the two")
        for name in self.sets:
            checks.known(SETS, data_set=name)
        for clients in self.clients:
            checks.count(clients=clients)
        for epsilon in self.epsilons:
            checks.positive(epsilon=epsilon)

    def rows(self) -> Iterator[Entry]:
        """One entry for each, as it is measured."""
        for name in self.sets:
            yield from self._of_set(name)
        if self.pfl:
            split = load_set("cifar10", self.folder)
            yield from pfl_rows(Bench.on(split, **self.bench), rounds=self.pfl, recipes=self.fitting(split))
        if self.plays:
            split, speakers = load_plays(self.folder)
            for seen in (split, as_ones(split)):
                bench = Bench.on(seen, **{"held_out": 0, **self.bench})
                for epsilon in self.epsilons:
                    for recipe in self.fitting(seen):
                        if recipe != "tables":  # ones where a symbol stands are no columns
                            yield plays_row(bench, speakers, recipe, epsilon=epsilon)
                        if recipe == "text":
                            yield plays_row(bench, speakers, recipe, epsilon=epsilon, network=True)

    def fitting(self, split: Split) -> tuple[str, ...]:
        """Those of the recipes that are for such examples: pictures, tokens, or the rows of a table."""
        shape = split.train.shape
        fit = {"tables", "general"}
        if is_picture(shape):
            fit = {"images", "general"}
        elif split.train.features.dtype == np.int64:
            fit = {"text"}
        return tuple(name for name in self.recipes if name in fit)

    def _of_set(self, name: str) -> Iterator[Entry]:
        bench = Bench.on(load_set(name, self.folder), **{"held_out": 0, "table": TABLES.get(name), **self.bench})
        for epsilon in self.epsilons:
            for recipe in self.fitting(bench.split):
                if self.records:
                    yield bench.records(recipe, epsilon=epsilon, delta=RECORD_DELTA)
                else:
                    for clients in self.clients:
                        yield bench.clients(recipe, clients=clients, epsilon=epsilon)
