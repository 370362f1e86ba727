"""The settings that a search compares, and the price of the choice among them."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from incrowd import _validate
from incrowd._random import SeededRandomness
from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.account.accounting import Budget, Price, Relation, price
from incrowd.privacy.account.events import RepeatedEvent, compose
from incrowd.privacy.account.selection import Repetitions
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.statement import Statement, rounded_up
from incrowd.runs.config import Config
from incrowd.runs.folder import Summary
from incrowd.runs.recipes import config_of
from incrowd.runs.settings import tables

__all__ = ["Axis", "Search", "axis"]

Select = Literal["all", "private"]
HASTE = "someone who learns how many runs there were, or how long they took together, learns more than epsilon says"
ON_TEST = "settings were chosen by the test examples, so the accuracy on them is flattering"
ASSUMED = (
    "the settings to compare were fixed without looking at the clients' examples",
    "a person is at most one client in the data of each run",
)
_VALUE = re.compile(r"""(?:"[^"]*"|'[^']*'|\[[^\]]*\]|\{[^}]*\}|[^,"'\[{])+""")


class Axis(NamedTuple):
    """The values of one key, as TOML spells them."""

    key: str
    values: tuple[str, ...]


def axis(text: str) -> Axis:
    """The axis that `key=a,b,c` spells. Commas within a list, a table or quotes belong to a value:
    `model.hidden=[200],[600, 100]`.

    Edge cases: no key, no value, or a repeated value: `ConfigError`.
    """
    key, equals, rest = (part.strip() for part in text.partition("="))
    if not key or not equals:
        raise ConfigError(field="grid", value=text, remedy="write section.key=a,b,c, say local.learning_rate=0.1,0.3")
    parts = _VALUE.findall(rest)
    values = tuple(part.strip() for part in parts)
    if ",".join(parts) != rest or not all(values) or not values or len(set(values)) < len(values):
        raise ConfigError(field=key, value=rest, remedy="give different values, with commas between")
    return Axis(key, values)


class Candidate(NamedTuple):
    """One point of the search: its values, and the whole config."""

    settings: dict[str, Any]
    config: Config


@dataclass(frozen=True, kw_only=True)
class Search:
    """Settings to compare: a file (or the demonstration) with overrides, and axes over it.

    With `select` "all" every run is charged, and everything is shown. With "private" the number of runs is random,
    each has settings picked at random, and only the best is kept and shown. `random` takes so many random points in
    place of all combinations. `budget` is the most that the whole search may cost.

    Edge cases: no axis, or whatever is wrong with any of the configs, is a `ConfigError` before anything is loaded; the
    number of runs can only be drawn for `private`. Runs that a tracker would be told of cannot be kept back, so
    `private` refuses trackers.
    """

    source: Path | str | None = None
    overrides: Sequence[str] = ()
    data: Path | str | None = None
    axes: Sequence[Axis] = ()
    random: int | None = None
    seed: int = 0
    select: Select = "all"
    repetitions: Repetitions | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        if not self.axes:
            remedy = "name what to compare: --grid local.learning_rate=0.1,0.3; one setting alone is `incrowd train`"
            raise ConfigError(field="grid", value=None, remedy=remedy)
        if doubled := {key for key in self.keys if self.keys.count(key) > 1}:
            raise ConfigError(field=min(doubled), value="twice", remedy="give all its values in one list")
        if self.select not in get_args(Select):
            remedy = f"choose from {', '.join(get_args(Select))}"
            raise ConfigError(field="select", value=self.select, remedy=remedy)
        if (self.repetitions is not None) != (self.select == "private"):
            remedy = 'give it with select = "private", which needs it, and only there'
            raise ConfigError(field="expected_runs", value=self.repetitions and self.repetitions.mean, remedy=remedy)
        if self.budget is not None:
            _validate.positive(budget=self.budget)
        SeededRandomness(seed=self.seed)  # which refuses an impossible seed

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that differ from point to point."""
        return tuple(axis.key for axis in self.axes)

    @cached_property
    def candidates(self) -> list[Candidate]:
        """All points, in order."""
        points = [*product(*([f"{each.key}={value}" for value in each.values] for each in self.axes))]
        if self.random is not None:
            _validate.count(random=self.random)
            order = SeededRandomness(seed=self.seed).stream("search").bits(len(points)).argsort()
            points = [points[place] for place in sorted(order[: self.random])]
        return [self._candidate(["run.plot=false", *self.overrides, *point]) for point in points]

    def config(self, candidate: int, *, run: int) -> Config:
        """The config of a run: its candidate's, and, where randomness is seeded, with a separate seed.

        Runs share no noise; in a simulation of them, they must not either.
        """
        config = self.candidates[candidate].config
        if config.run.seed is None or "run.seed" in self.keys:
            return config
        own = int(SeededRandomness(seed=config.run.seed).stream("search run", run).bits(1)[0]) % 2**31
        return config.model_copy(update={"run": config.run.model_copy(update={"seed": own})})

    def to_json(self) -> dict[str, Any]:
        """Everything that the result of the search depends on."""
        law = self.repetitions
        form = {
            "configs": [candidate.config.model_dump(mode="json") for candidate in self.candidates],
            "keys": self.keys,
            "select": self.select,
            "repetitions": None if law is None else {"mean": law.mean, "shape": str(law.shape)},
            "budget": self.budget,
        }
        return dict(json.loads(json.dumps(form)))

    def _candidate(self, overrides: Sequence[str]) -> Candidate:
        config = config_of(tables(self.source, overrides=overrides, data=self.data))
        if config.of_records:
            remedy = "a search compares runs of whole clients: train silos one by one"
            raise ConfigError(field="privacy.unit", value="record", remedy=remedy)
        if self.select == "private" and config.run.trackers:
            remedy = "leave them out: of a private selection only the best may be seen, and they are told of all"
            raise ConfigError(field="run.trackers", value=list(config.run.trackers), remedy=remedy)
        settings = {}
        for key in self.keys:
            value: Any = config.model_dump(mode="json")
            for part in key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            settings[key] = value
        return Candidate(settings=settings, config=config)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a search over these plans, one for each candidate.

    Guarantee: `price` bounds what everything that the search shows reveals together: all runs, or, where a random
    number of attempts is made and only the best shown, that one.

    Edge cases: plans under different neighbouring relations have no common price and are refused. The least delta of
    the plans is the search's.
    """

    plans: Sequence[Plan]
    repetitions: Repetitions | None = None

    def __post_init__(self) -> None:
        relations = sorted({plan.relation.name for plan in self.plans})
        if len(relations) > 1:
            remedy = "their neighbouring relations differ: search each sampling for itself"
            raise ConfigError(field="privacy.sampling", value=relations, remedy=remedy)

    @property
    def relation(self) -> Relation:
        """The neighbouring relation of all runs."""
        return self.plans[0].relation

    @property
    def delta(self) -> float:
        """The delta of the search."""
        return min(plan.budget.delta for plan in self.plans)

    @cached_property
    def events(self) -> list[RepeatedEvent]:
        """The events that a ledger reserves, in order: one for each run, or one for the whole selection."""
        each = [compose(plan.runs) for plan in self.plans]
        return [(event, 1) for event in each] if self.repetitions is None else [(self.repetitions.event(each), 1)]

    @cached_property
    def price(self) -> Price:
        """The price of the search."""
        return price(compose(self.events), delta=self.delta, relation=self.relation)

    def budget(self, most: float | None) -> Budget:
        """The budget of the search's ledger: its price, unless it is stated.

        Edge cases: a price above the stated budget is a `BudgetExceeded`.
        """
        epsilon = self.price.epsilon
        if most is not None and epsilon > most:
            raise BudgetExceeded(
                f"this search costs epsilon = {epsilon:.6g} at delta = {self.delta:g}, and its budget is {most:g}: "
                "search less, or give each run a smaller privacy.epsilon"
            )
        return Budget(epsilon=epsilon if most is None else most, delta=self.delta)

    def statement(self, ledger: Ledger, *, own: int, on_test: bool) -> Statement:
        """The promise of the search, which made so many of the charges on this ledger."""
        statements = [plan.statement(ledger, own=own) for plan in self.plans]
        first = statements[0]
        runs = "every run" if self.repetitions is None else "the best of a random number of runs"
        caveats = [caveat for each in statements for caveat in each.caveats] + ([ON_TEST] if on_test else [])
        return replace(
            first,
            sampler=f"{runs}, of {len(self.plans)} settings; the first: {first.sampler}",
            assumed=(*first.assumed, *ASSUMED),
            not_covered=(*first.not_covered, *(() if self.repetitions is None else (HASTE,))),
            caveats=tuple(dict.fromkeys(caveats)),
        )

    def holds(self) -> dict[str, str]:
        """In a sentence each: the promise for the selected model, and for everything that the search shows."""
        private = f"({rounded_up(self.price.epsilon)}, {self.delta:g})-differentially private"
        if self.repetitions is not None:
            shown = "the selected model alone; the other runs and their number were not kept, and must stay secret"
            return {"selected": f"the model with its settings and its score is {private}", "shown": shown}
        every = f"all {len(self.plans)} models with their settings and scores are, together, {private}"
        best = f"chosen by looking at every run, it has no better bound than all of them: {private}"
        return {"selected": best, "shown": every}


def best_of(rows: Sequence[Summary]) -> int | None:
    """The place of the row with the highest accuracy (without one, with the least loss); the first of equals.

    Edge cases: weights that went astray have no loss and come last; without rows the best is None.
    """
    return max(range(len(rows)), key=lambda place: _merit(rows[place]), default=None)


def ranked(rows: Sequence[Summary]) -> list[Summary]:
    """The rows, the best first."""
    return sorted(rows, key=_merit, reverse=True)


def _merit(row: Summary) -> tuple[float, float]:
    accuracy, loss = row.get("accuracy"), row.get("loss")
    return -math.inf if accuracy is None else accuracy, -math.inf if loss is None else -loss
