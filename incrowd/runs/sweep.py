"""A search among settings: its price, its runs one after the other in a folder, the best of them."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from incrowd import _files, _validate
from incrowd._random import SeededRandomness
from incrowd.data.clients import Clients
from incrowd.data.reading import read_once
from incrowd.errors import BudgetExceeded, ConfigError, DataError
from incrowd.privacy.account.accounting import Budget, Price, Relation, price
from incrowd.privacy.account.events import RepeatedEvent, compose
from incrowd.privacy.content import DataIdentity
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.statement import Statement, rounded_up
from incrowd.runs.build import featured
from incrowd.runs.config import Config, tables
from incrowd.runs.folder import DATABASE, LEDGER, RESULT, RUNS, SEARCH, SUMMARY, Summary, ranked
from incrowd.runs.ledgers import RunLedger, identities_of
from incrowd.runs.recipes import config_of
from incrowd.runs.run import Run
from incrowd.runs.sources import federated_data
from incrowd.runs.work import assemble

__all__ = ["Axis", "Search", "Sweep", "axis"]

ON_TEST = "settings were chosen by the test examples, so the accuracy on them is flattering"
ASSUMED = (
    "the settings to compare were fixed without looking at the clients' examples",
    "a person is at most one client in the data of each run",
)
LOCK = "search.lock"
_VALUE = re.compile(r"""(?:"[^"]*"|'[^']*'|\[[^\]]*\]|\{[^}]*\}|[^,"'\[{])+""")
_BEFORE = {LOCK, SEARCH + _files.PART}  # files of a search that was cut off at once


class Axis(NamedTuple):
    """The values of one key, as TOML spells them."""

    key: str
    values: tuple[str, ...]


def axis(text: str) -> Axis:
    """The axis that `key=a,b,c` spells. Commas within a list, a table or quotes belong to a value:
    `model.hidden=[200],[600, 100]`.
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
    """One point of the search: the values of its keys, and all settings."""

    settings: dict[str, Any]
    config: Config


@dataclass(frozen=True, kw_only=True)
class Search:
    """Settings to compare: a file (or the demonstration) with overrides, and axes over it.

    `random` takes so many random points in place of all combinations. `budget` is the most that the whole search may
    cost.
    """

    source: Path | str | None = None
    overrides: Sequence[str] = ()
    data: Path | str | None = None
    axes: Sequence[Axis] = ()
    random: int | None = None
    seed: int = 0
    budget: float | None = None

    def __post_init__(self) -> None:
        if not self.axes:
            remedy = "name what to compare: --grid local.learning_rate=0.1,0.3; one setting alone is `incrowd train`"
            raise ConfigError(field="grid", value=None, remedy=remedy)
        if doubled := {key for key in self.keys if self.keys.count(key) > 1}:
            raise ConfigError(field=min(doubled), value="twice", remedy="give all its values in one list")
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
        return [self._candidate([*self.overrides, *point]) for point in points]

    def config(self, run: int) -> Config:
        """The config of a run; a simulated run has a separate seed, because real runs share no noise."""
        config = self.candidates[run].config
        if config.run.seed is None or "run.seed" in self.keys:
            return config
        own = int(SeededRandomness(seed=config.run.seed).stream("search run", run).bits(1)[0]) % 2**31
        return config.model_copy(update={"run": config.run.model_copy(update={"seed": own})})

    def to_json(self) -> dict[str, Any]:
        """Everything that the result of the search depends on."""
        configs = [candidate.config.model_dump(mode="json") for candidate in self.candidates]
        return {"configs": configs, "keys": list(self.keys), "budget": self.budget}

    def _candidate(self, overrides: Sequence[str]) -> Candidate:
        config = config_of(tables(self.source, overrides=overrides, data=self.data))
        if config.of_records:
            remedy = "a search compares runs of whole clients: train silos one by one"
            raise ConfigError(field="privacy.unit", value="record", remedy=remedy)
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

    Guarantee: `price` bounds what all runs reveal together, which is all that the search shows. Plans under different
    neighbouring relations have no common price and are refused.
    """

    plans: Sequence[Plan]

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
        """The least delta of the plans."""
        return min(plan.budget.delta for plan in self.plans)

    @cached_property
    def price(self) -> Price:
        """The price of the search."""
        runs = [run for plan in self.plans for run in plan.runs]
        return price(compose(runs), delta=self.delta, relation=self.relation)

    def budget(self, most: float | None) -> Budget:
        """The budget of the search's ledger: its price, unless it is stated and covers that (`BudgetExceeded`)."""
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
        first, caveats = statements[0], [caveat for each in statements for caveat in each.caveats]
        return replace(
            first,
            sampler=f"every run, of {len(self.plans)} settings; the first: {first.sampler}",
            assumed=(*first.assumed, *ASSUMED),
            caveats=tuple(dict.fromkeys(caveats + [ON_TEST] * on_test)),
        )

    def holds(self) -> str:
        """In a sentence: the promise for everything that the search shows."""
        private = f"({rounded_up(self.price.epsilon)}, {self.delta:g})-differentially private"
        return f"all {len(self.plans)} models with their settings and scores are, together, {private}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """A search and the folder for it; without one, a folder in `out` that is named after what is searched.

    Guarantee: the whole search is reserved on the one ledger of its data (`incrowd.runs.ledgers`) before the first
    run trains, and each run is charged there under a separate label. A search that was cut off goes on where it
    stopped, and trains no run twice, not even one that was paid for and is gone.
    """

    search: Search
    out: Path | str | None = None
    say: Callable[[str], None] = field(default=lambda _: None, repr=False)
    _data: dict[str, Clients] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def folder(self) -> Path:
        """The folder of the search."""
        if self.out is not None:
            return Path(self.out).resolve()
        text = json.dumps(self.search.to_json(), sort_keys=True)
        return (Path("out") / f"sweep-{hashlib.sha256(text.encode()).hexdigest()[:10]}").resolve()

    @cached_property
    def cost(self) -> Cost:
        """The price of the search, by the plan of each candidate."""
        plans = []
        for candidate in self.search.candidates:
            work = assemble(candidate.config, chunk=1, data=self._loaded(candidate.config))
            if work.data.test is None:
                remedy = "a choice needs examples that the server holds: give the table a test_file"
                raise ConfigError(field="data.test_file", value=None, remedy=remedy)
            plans.append(work.plan)
        return Cost(plans=plans)

    @cached_property
    def identity(self) -> DataIdentity:
        """The data of the search."""
        configs = {candidate.config.data.model_dump_json(): candidate.config for candidate in self.search.candidates}
        first, *others = [each for config in configs.values() for each in identities_of(config)]
        if not all(each.public for each in (first, *others)) and any(each != first for each in others):
            remedy = "on private data all runs of a search need the same data and clients: search them one by one"
            raise ConfigError(field="data", value=[each.division for each in (first, *others)], remedy=remedy)
        return first

    @read_once()
    def run(self) -> Summary:
        """Search to the end, from wherever it stands; a search that is over returns its result."""
        begun = self._stored()
        if (result := self.folder / RESULT).exists():
            return dict(json.loads(result.read_text()))
        self.cost.budget(self.search.budget)
        if begun is None and not (self.identity.public and self.search.candidates[0].config.privacy.ledger is None):
            found = self._find()
            with found.open(self._own) as ledger:  # before the folder is made
                ledger.check_room([run for runs in self._promises(found).values() for run in runs])
        _files.folder(self.folder)
        with _files.alone(self.folder / LOCK, what="searches in this folder"):
            own = self._begin()
            self.say(f"{len(self.cost.plans)} settings to compare; {self.cost.holds()}")
            for number in range(len(self.cost.plans)):
                if not (self._place(number) / SUMMARY).exists():
                    self._run(number, own).train()
                    self._tell(number)
            return self._finished(own)

    def _begin(self) -> RunLedger:
        """Reserve the whole search, under the label that is kept with it. Only for who holds the search's lock."""
        own = self._stored()
        if own is None:
            self._store(None)
            own = self._find()
            self._store(own)
        else:
            own.check_same(self.identity)
        with own.open(self._own) as ledger:
            ledger.reserve_all(self._promises(own))
        return own

    def _promises(self, own: RunLedger) -> dict[str, list[RepeatedEvent]]:
        """The reserved events, by label."""
        return {own.part(number).label: plan.runs for number, plan in enumerate(self.cost.plans)}

    @property
    def _own(self) -> Path:
        return self.folder / LEDGER

    def _find(self) -> RunLedger:
        wanted, budget = self.search.candidates[0].config.privacy, self.cost.budget(self.search.budget)
        path, witness = (None if place is None else Path(place) for place in (wanted.ledger, wanted.witness))
        relation = self.cost.relation
        return RunLedger.find(
            self.identity, own=self._own, budget=budget, relation=relation, path=path, witness=witness
        )

    def _stored(self) -> RunLedger | None:
        """The ledger of the search that was begun in the folder; another search there is refused."""
        path = self.folder / SEARCH
        if path.exists():
            stored = json.loads(path.read_text())
            if stored["search"] != json.loads(json.dumps(self.search.to_json())):
                remedy = "it holds another search: repeat that one to go on, or name another folder"
                raise ConfigError(field="out", value=str(self.folder), remedy=remedy)
            return None if stored["ledger"] is None else RunLedger.from_json(stored["ledger"])
        if self.folder.exists() and {file.name for file in self.folder.iterdir()} - _BEFORE:
            raise ConfigError(field="out", value=str(self.folder), remedy="name a new or empty folder")
        return None

    def _store(self, own: RunLedger | None) -> None:
        content = {"search": self.search.to_json(), "ledger": None if own is None else own.to_json()}
        _files.write(self.folder / SEARCH, json.dumps(content, indent=1))

    def _run(self, number: int, own: RunLedger) -> Run:
        """The run, as far as it has got."""
        folder, config, part = self._place(number), self.search.config(number), own.part(number)
        data, schedule = self._loaded(config), self.cost.plans[number].config.schedule
        with own.open(self._own) as ledger:
            paid = ledger.reservation(part.label).charged > 0
        if (folder / DATABASE).exists():
            try:
                return Run.open(folder, data=data)
            except DataError:
                if paid:
                    raise
        elif paid:
            raise DataError(f"{folder} is gone, and its run is paid for: put it back, or name a new folder")
        _files.remove(folder)  # cut off while it was made: nothing was spent
        part = replace(part, path=part.path or self._own)
        return Run.create(config, folder, schedule=schedule, data=data, ledger=part)

    def _finished(self, own: RunLedger) -> Summary:
        """Choose, and write down the result."""
        rows, cost = [self._row(number) for number in range(len(self.cost.plans))], self.cost
        configs = [candidate.config for candidate in self.search.candidates]
        on_test = all(getattr(config.data, "validation", None) is None for config in configs)
        with own.open(self._own) as ledger:
            charged = sum(ledger.reservation(label).charged for label in self._promises(own))
            statement = cost.statement(ledger, own=charged, on_test=on_test)
        result: Summary = {
            "runs": rows,
            "best": ranked(rows)[0],
            "epsilon_of_search": cost.price.epsilon,
            "delta": cost.delta,
            "holds": cost.holds(),
            "settings_compared": len(cost.plans),
            "validation_set": self._loaded(configs[0]).describe()["test_set"],
            "statement": statement.to_json(),
            "out": str(self.folder),
        }
        text = json.dumps(result, indent=1, allow_nan=False)
        _files.write(self.folder / RESULT, text)
        return dict(json.loads(text))

    def _row(self, number: int) -> Summary:
        summary = json.loads((self._place(number) / SUMMARY).read_text())
        return {
            "settings": self.search.candidates[number].settings,
            **{name: summary[name] for name in ("accuracy", "loss", "rounds", "seconds")},
            "epsilon": self.cost.plans[number].price.epsilon,
            "run": str(self._place(number)),
        }

    def _place(self, number: int) -> Path:
        return self.folder / RUNS / f"{number:04d}"

    def _tell(self, number: int) -> None:
        row = self._row(number)
        settings = ", ".join(f"{key} = {value}" for key, value in row["settings"].items())
        measured = f"loss {row['loss']}" if row["accuracy"] is None else f"accuracy {row['accuracy']:.4f}"
        of = len(self.cost.plans)
        self.say(f"run {number + 1}/{of}  {settings}  {measured}  epsilon {row['epsilon']:.3f}")

    def _loaded(self, config: Config) -> Clients:
        """The data of a config with their features, loaded once for all runs."""
        key = config.data.model_dump_json() + config.features.model_dump_json()
        if key not in self._data:
            self._data[key] = featured(config, federated_data(config))
        return self._data[key]
