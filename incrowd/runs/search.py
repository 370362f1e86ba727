"""The settings that a search compares, and the price of the choice among them."""

import csv
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from incrowd import _validate
from incrowd._random import Randomness, SeededRandomness, Stream
from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.account.accounting import Budget, Price, Relation, price
from incrowd.privacy.account.events import RepeatedEvent, compose
from incrowd.privacy.account.selection import Repetitions
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.statement import Statement, rounded_up
from incrowd.runs.config import Config
from incrowd.runs.data_config import PartitionedData
from incrowd.runs.folder import Summary
from incrowd.runs.recipes import config_of
from incrowd.runs.settings import tables

__all__ = ["Axis", "Search", "axis"]

Select = Literal["all", "private", "public"]
Point = tuple[str, ...]
"""One value for each key, as the overrides `key=value` that `incrowd.runs.settings.load` takes."""

MEASURED = ("accuracy", "loss", "epsilon", "rounds", "seconds", "run")
FAST = ("GDP", "RDP")
"""The accountants of figures that are only shown for comparison."""

PUBLIC = "the examples were declared public: nothing was charged, and nobody's examples are protected"
HASTE = "someone who learns how many runs there were, or how long they took together, learns more than epsilon says"
ON_TEST = "settings were chosen by the test examples, so the accuracy on them is flattering"
ASSUMED = (
    "the settings to compare were fixed without looking at the clients' examples",
    "a person is at most one client in the data of each run",
)

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"(?P<low>{_NUMBER})\s*\.\.\s*(?P<high>{_NUMBER})(?P<log>\s*:\s*log)?")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The values of one key: a list as TOML spells them, or all numbers of a `span`, both ends included. With `log`,
    each factor is as probable as every other.
    """

    key: str
    values: tuple[str, ...] = ()
    span: tuple[float, float] | None = None
    log: bool = False
    whole: bool = False

    def sample(self, stream: Stream) -> str:
        """A random value: four digits in a span, or a whole number if both ends are whole."""
        drawn = stream.bits(1)[0]
        if self.span is None:
            return self.values[int(drawn) % len(self.values)]
        share, half = (float(drawn) + 0.5) * 2.0**-64, 0.5 * self.whole
        low, high = self.span[0] - half, self.span[1] + half
        value = low * (high / low) ** share if self.log else low + (high - low) * share
        kept = min(max(value, self.span[0]), self.span[1])
        return str(round(kept)) if self.whole else f"{kept:.4g}"


def axis(text: str) -> Axis:
    """The axis that `key=a,b,c`, `key=low..high` or `key=low..high:log` spells.

    Commas within brackets, braces or quotes belong to a value: `model.hidden=[200],[600, 100]`.

    Edge cases: no key, no value, a value that is there twice, or a range that is none: `ConfigError`.
    """
    key, equals, rest = (part.strip() for part in text.partition("="))
    if not key or not equals:
        raise ConfigError(field="grid", value=text, remedy="write section.key=a,b,c, say local.learning_rate=0.1,0.3")
    span = _RANGE.fullmatch(rest)
    if span is None:
        values = tuple(_split(rest))
        if not all(values) or len(set(values)) < len(values):
            raise ConfigError(field=key, value=rest, remedy="give different values, with commas between")
        return Axis(key=key, values=values)
    low, high, log = float(span["low"]), float(span["high"]), span["log"] is not None
    if not low < high:
        raise ConfigError(field=key, value=f"{low:g}..{high:g}", remedy="give the lower end first")
    if log and low <= 0:
        raise ConfigError(field=key, value=low, remedy="a logarithmic range begins above 0")
    whole = all(re.fullmatch(r"[+-]?\d+", span[end]) for end in ("low", "high"))
    return Axis(key=key, span=(low, high), log=log, whole=whole)


def grid(axes: Sequence[Axis]) -> list[Point]:
    """Every combination; the last key's values follow each other most closely.

    Edge cases: without an axis there is one point, the settings as they are; a range has no combinations.
    """
    _check_keys(axes)
    for each in axes:
        if each.span is not None:
            low, high = each.span
            remedy = "a range is for random search: say how many points with --random N, or list values"
            raise ConfigError(field=each.key, value=f"{low:g}..{high:g}", remedy=remedy)
    return list(product(*([f"{each.key}={value}" for value in each.values] for each in axes)))


def drawn(axes: Sequence[Axis], *, count: int, randomness: Randomness) -> list[Point]:
    """Random points, each key drawn for itself; a point that was there before is drawn anew.

    Edge cases: fewer points than asked for if hardly any is new.
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


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One point of the search: its values, and the whole config."""

    settings: dict[str, Any]
    config: Config


@dataclass(frozen=True, kw_only=True)
class Search:
    """Settings to compare: a file (or the demonstration) with overrides, and axes over it.

    `select` is the way to pay for the choice:

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
        SeededRandomness(seed=self.seed)  # which refuses an impossible seed

    @cached_property
    def candidates(self) -> list[Candidate]:
        """All points, in order."""
        points = self._points
        prepared = list(self._prepared(self._read([*self.overrides, *points[0]])))
        return [self._candidate([*prepared, *self.overrides, *point]) for point in points]

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

    @cached_property
    def _points(self) -> list[Point]:
        if self.random is None:
            return grid(self.axes)
        return drawn(self.axes, count=self.random, randomness=SeededRandomness(seed=self.seed))

    def _candidate(self, overrides: Sequence[str]) -> Candidate:
        config = self._read(overrides)
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

    def _read(self, overrides: Sequence[str]) -> Config:
        """The settings with these overrides, completed by a recipe that they name."""
        stated = tables(self.source, overrides=overrides, data=self.data)
        config = config_of(stated)
        if config.of_records:
            remedy = "a search compares runs of whole clients: train silos one by one"
            raise ConfigError(field="privacy.unit", value="record", remedy=remedy)
        return config

    def _prepared(self, config: Config) -> Iterator[str]:
        """The defaults of every run of a search: one thread, no pictures, a validation set."""
        yield "run.plot=false"
        if config.run.threads is None:
            yield "run.threads=1"
        if not isinstance(config.data, PartitionedData) or not config.data.public:
            return  # no share of private examples is made public
        if config.data.validation is None and self.validation:
            yield f"data.validation={self.validation!r}"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a search over these plans, one for each candidate.

    Guarantee: `price` bounds what everything that the search shows reveals together: all runs, or, where a random
    number of attempts is made and only the best shown, that one.

    Edge cases: plans under different neighbouring relations have no common price and are refused. The least
    delta of the plans is the search's.
    """

    plans: Sequence[Plan]
    select: Select
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
        """The events that a ledger reserves, in order: one for each run, or one for the whole selection, or none."""
        each = [compose(plan.runs) for plan in self.plans]
        if self.select == "public":
            return []
        return [(event, 1) for event in each] if self.repetitions is None else [(self.repetitions.event(each), 1)]

    @cached_property
    def price(self) -> Price:
        """The price of the search."""
        return price(compose(self.events), delta=self.delta, relation=self.relation)

    @cached_property
    def prices(self) -> dict[str, float]:
        """The price of one run (the dearest), and of all candidates shown once."""
        every = self.price
        if self.select != "all":
            each = [(compose(plan.runs), 1) for plan in self.plans]
            every = price(compose(each), delta=self.delta, relation=self.relation, accountants=FAST)
        return {"one_run": max(plan.price.epsilon for plan in self.plans), "every_candidate": every.epsilon}

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
        """The promise of the search, so many of whose own charges are on this ledger."""
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
        if self.select == "public":
            elsewhere = rounded_up(self.prices["every_candidate"])
            spent = f"{PUBLIC}; on clients' examples all runs together would cost epsilon = {elsewhere}"
            return {"selected": spent, "shown": spent}
        private = f"({rounded_up(self.price.epsilon)}, {self.delta:g})-differentially private"
        if self.repetitions is None:
            return {
                "selected": f"chosen by looking at every run, it has no better bound than all of them: {private}",
                "shown": f"all {len(self.plans)} models with their settings and scores are, together, {private}",
            }
        return {
            "selected": f"the model with its settings and its score is {private}",
            "shown": "the selected model alone; the other runs and their number were not kept, and must stay secret",
        }


def best_of(rows: Sequence[Summary]) -> int | None:
    """The place of the row with the highest accuracy (without one, with the least loss); the first of equals.

    Edge cases: weights that went astray have no loss and come last; without rows there is no best.
    """
    return max(range(len(rows)), key=lambda place: _merit(rows[place]), default=None)


def ranked(rows: Sequence[Summary]) -> list[Summary]:
    """The rows, the best first."""
    return sorted(rows, key=_merit, reverse=True)


def table(rows: Sequence[Summary], keys: Sequence[str], *, measured: Sequence[str] = MEASURED) -> str:
    """The rows as a CSV file, the best first."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*keys, *measured])
    for row in ranked(rows):
        writer.writerow([*(row["settings"][key] for key in keys), *(row[name] for name in measured)])
    return text.getvalue()


def _merit(row: Summary) -> tuple[float, float]:
    accuracy, loss = row.get("accuracy"), row.get("loss")
    return -math.inf if accuracy is None else accuracy, -math.inf if loss is None else -loss
