"""A search in a folder: its ledger, runs side by side, their price together, the best of them."""

import hashlib
import json
import math
import secrets
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from incrowd import _files, _validate
from incrowd._private import make_ours
from incrowd.algorithms import score
from incrowd.data import Clients
from incrowd.data.reading import read_once
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.account.events import RepeatedEvent
from incrowd.privacy.ledger.home import Home, is_begun
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import DataIdentity
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.sampling import Schedule
from incrowd.runs.build import featured, randomness, untouched_test
from incrowd.runs.config import Config
from incrowd.runs.folder import (
    BEST,
    DATABASE,
    LEDGER,
    MODEL,
    PRIVATE,
    RESULT,
    RUNS,
    SEARCH,
    STATEMENT,
    STATEMENT_TEXT,
    SUMMARY,
    TABLE,
    Summary,
)
from incrowd.runs.identity import identity_of
from incrowd.runs.ledgers import RunLedger
from incrowd.runs.processes import Orphan, side_by_side
from incrowd.runs.run import Run
from incrowd.runs.search import Cost, Search, best_of, table
from incrowd.runs.sources import federated_data
from incrowd.runs.work import assemble

__all__ = ["Sweep"]

ATTEMPTS = "attempts.json"
LOCK = "search.lock"
_BEFORE = {LOCK, SEARCH + _files.PART}  # files of a search that was cut off at once


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchLedger:
    """The ledger of a search, known by the search's file in its folder.

    Guarantee: every release of the runs is charged once to the ledger of the data. Runs that are all shown are charged
    there one by one. A private selection is one charge; each attempt has a ledger, in the user's state folder if the
    data are private, so that copies of its folder are not trained again. These ledgers are gone when the search is
    over, and an attempt cannot go on without the search.
    """

    search: Search
    cost: Cost
    folder: Path
    _own: list[RunLedger] = field(default_factory=list, init=False, repr=False)

    @cached_property
    def identity(self) -> DataIdentity:
        """The data of the search.

        Edge cases: private data that differ from run to run are refused; so is a rehearsal on private data.
        """
        configs = {candidate.config.data.model_dump_json(): candidate.config for candidate in self.search.candidates}
        first, *others = map(identity_of, configs.values())
        private = [each for each in (first, *others) if not each.public]
        if private and self.search.select == "public":
            remedy = 'the data are private: leave select, or declare them public with "data.public = true"'
            raise ConfigError(field="select", value="public", remedy=remedy)
        if private and any(each != first for each in others):
            remedy = "on private data all runs of a search need the same data and clients: search them one by one"
            raise ConfigError(field="data", value=[each.division for each in (first, *others)], remedy=remedy)
        return first

    @property
    def secret(self) -> str | None:
        """The label without which an attempt cannot be opened; None where every run pays for itself."""
        return self._own[0].label if self.search.select == "private" else None

    def check(self) -> None:
        """The data's ledger has room for the search (`BudgetExceeded`); nothing is written that is not outside."""
        public = self.identity.public
        if not self.cost.events:
            return
        self.cost.budget(self.search.budget)
        own = public and self.search.candidates[0].config.privacy.ledger is None
        if self._stored() is None and not own:
            search_ledger = self._find()
            with search_ledger.open(self.folder / LEDGER) as ledger:
                ledger.check_room([run for runs in self._promises(search_ledger).values() for run in runs])

    def begin(self) -> None:
        """Reserve the whole search, under the label that is kept with it. Only for who holds the search's lock."""
        if not (self.folder / SEARCH).exists():
            self._write(None)
        if not self.cost.events:
            return
        own = self._stored()
        if own is None:
            own = self._find()
            self._write(own)
        else:
            own.check_same(self.identity)
        self._own[:] = [own]
        with own.open(self.folder / LEDGER) as ledger:
            ledger.reserve_all(self._promises(own))

    def open(self) -> Ledger:
        """The ledger, for writing; never open while a process is forked."""
        return self._own[0].open(self.folder / LEDGER)

    def charged(self, number: int | None = None) -> bool:
        """Whether anything was charged: for a run, or for the selection."""
        if not self._own:
            return False
        own = self._own[0]
        label = own.label if number is None else own.part(number).label
        with own.open(self.folder / LEDGER) as ledger:
            return ledger.reservation(label).charged > 0

    def charges(self, ledger: Ledger) -> int:
        """How many charges of the search the ledger holds."""
        return sum(ledger.reservation(label).charged for label in self._promises(self._own[0]))

    def charge(self) -> None:
        """Pay for the selection."""
        if not self.charged():
            (event, _), *_ = self.cost.events
            source = randomness(self.search.candidates[0].config)
            with self.open() as ledger:
                ledger.charge(event, reservation=self._own[0].label, note={"run": 0}, randomness=source)

    def of_run(self, number: int, plan: Plan, folder: Path) -> RunLedger | None:
        """The ledger of a run; None where it has a ledger of its own, as in a rehearsal."""
        if not self._own:
            return None
        own = self._own[0]
        if self.search.select == "all":
            part = own.part(number)
            return replace(part, path=part.path or self.folder / LEDGER)
        public = self.identity.public
        path = folder / LEDGER if public else self._attempts(own.label) / f"{folder.name}.sqlite"
        _files.folder(folder) if public else make_ours(path.parent)
        budget = None if is_begun(path) else plan.budget
        with Ledger.open(path, budget=budget, relation=plan.relation, data_identity=self.identity) as ledger:
            place = None if public else path
            return RunLedger(identity=self.identity, id=ledger.id, label="run", path=place, search=own.label)

    def clean(self) -> None:
        """Remove what kept attempts from being trained twice."""
        own = self._stored()
        if own is not None and self._attempts(own.label).exists():
            _files.remove(self._attempts(own.label))
            _files.undate(self._attempts(own.label).parent)

    def _promises(self, own: RunLedger) -> dict[str, list[RepeatedEvent]]:
        """The reserved events, by label."""
        if self.search.select == "private":
            return {own.label: self.cost.events}
        return {own.part(number).label: plan.runs for number, plan in enumerate(self.cost.plans)}

    def _find(self) -> RunLedger:
        wanted = self.search.candidates[0].config.privacy
        return RunLedger.find(
            self.identity,
            own=self.folder / LEDGER,
            budget=self.cost.budget(self.search.budget),
            relation=self.cost.relation,
            path=None if wanted.ledger is None else Path(wanted.ledger),
            witness=None if wanted.witness is None else Path(wanted.witness),
        )

    def _attempts(self, label: str) -> Path:
        return Home.of_user().folder / "attempts" / label

    def _stored(self) -> RunLedger | None:
        path = self.folder / SEARCH
        stored: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return None if stored.get("ledger") is None else RunLedger.from_json(stored["ledger"])

    def _write(self, own: RunLedger | None) -> None:
        content = {"search": self.search.to_json(), "ledger": None if own is None else own.to_json()}
        _files.write(self.folder / SEARCH, json.dumps(content, indent=1))


@dataclass(frozen=True, kw_only=True)
class SearchRun:
    """A run of the search: its number, the candidate whose settings it has, and the name of its folder."""

    number: int
    candidate: int
    name: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """A search and the folder for it; without one, a folder in `out` that is named after what is searched.

    Guarantee: the whole search is reserved on the one ledger of its data (`incrowd.runs.ledgers`) before the first
    run trains, and each release charged there first: every run's under a label of its own, or, where only the best is
    shown, the one event of the selection. A search that was cut off goes on where it stopped, with the same ledger, and
    trains no run twice, nor does a copy of its folder. If only the best is shown, the number of runs follows the priced
    law; files, messages and dates do not depend on the number; and the result comes when all other runs are gone.

    Edge cases: a search that its budget does not allow is refused before anything is written; so is another search in
    the same folder. A run that was paid for and is gone is not trained again. A random number of runs may be 0 under
    the Poisson law: then there is no best, and the price is paid all the same. A rehearsal (`select` is "public") needs
    data that are declared public; runs on private data have to be about the same data and clients. Attempts that
    cannot be removed are a `DataError`, and the same search goes on from there.
    """

    search: Search
    out: Path | str | None = None
    say: Callable[[str], None] = field(default=lambda _: None, repr=False)
    _data: dict[str, Clients] = field(default_factory=dict, init=False, repr=False)
    _ledger: list[SearchLedger] = field(default_factory=list, init=False, repr=False)
    _open: dict[int, Run] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def folder(self) -> Path:
        """The folder of the search."""
        if self.out is not None:
            return Path(self.out).resolve()
        text = json.dumps(self.search.to_json(), sort_keys=True)
        return (Path("out") / f"sweep-{hashlib.sha256(text.encode()).hexdigest()[:10]}").resolve()

    @property
    def secret(self) -> bool:
        """Whether only the best may be seen."""
        return self.search.select == "private"

    @cached_property
    def plans(self) -> list[Plan]:
        """The plan of each candidate."""
        plans = []
        for candidate in self.search.candidates:
            federation = assemble(candidate.config, chunk=1, data=self._loaded(candidate.config))
            if federation.data.test is None:
                remedy = "a choice needs examples that the server holds: give the table a test_file"
                raise ConfigError(field="data.test_file", value=None, remedy=remedy)
            plans.append(federation.plan)
        return plans

    @cached_property
    def cost(self) -> Cost:
        """The price of the search."""
        return Cost(plans=self.plans, select=self.search.select, repetitions=self.search.repetitions)

    @read_once()
    def run(self, *, jobs: int) -> Summary:
        """Search to the end, from wherever it stands, at most `jobs` runs at a time; a search that is over says its
        result again.
        """
        _validate.count(jobs=jobs)
        self._check_folder()
        if (self.folder / RESULT).exists() and not self.secret:
            return dict(json.loads((self.folder / RESULT).read_text()))
        its = SearchLedger(search=self.search, cost=self.cost, folder=self.folder)
        self._ledger[:] = [its]
        over = any((folder / RESULT).exists() for folder in (self.folder, self.folder / PRIVATE))
        if not over:
            its.check()
        _files.folder(self.folder)
        with _files.alone(self.folder / LOCK, what="searches in this folder"):
            if over:
                return self._published()
            its.begin()
            holds = self.cost.holds()
            self.say(f"{len(self.plans)} settings to compare; {holds['shown']}")
            tasks = self._tasks()
            waiting = [task for task in tasks if not (self._place(task) / SUMMARY).exists()]
            for task in side_by_side(waiting, jobs=self.at_a_time(jobs), first=self._begin, work=self._train):
                self._open.pop(task.number, None)
                if not self.secret:
                    self._tell(task, len(tasks))
            return self._finished(tasks)

    def at_a_time(self, jobs: int) -> int:
        """How many runs there may be at a time: one where a device other than the processors computes, which processes
        cannot share.
        """
        devices = {candidate.config.run.device for candidate in self.search.candidates}
        return jobs if devices == {"cpu"} else min(jobs, 1)

    def _tasks(self) -> list[SearchRun]:
        """The runs: one for each candidate, or, where the number has to be random, as many as are drawn. Drawn once."""
        law = self.search.repetitions
        if law is None:
            count = len(self.plans)
            return [SearchRun(number=number, candidate=number, name=f"{number:04d}") for number in range(count)]
        path = self.folder / PRIVATE / ATTEMPTS
        if not path.exists():
            if self._ledger[0].charged():
                raise DataError(
                    f"{path} is gone, and the selection is paid for: put it back, or search in a new folder"
                )
            source = randomness(self.search.candidates[0].config)
            attempts = law.sample(source.stream("attempts"))
            picks = [int(source.stream("pick", number).bits(1)[0]) % len(self.plans) for number in range(attempts)]
            # An error may name the folder of an attempt, so its name must not tell how many there are.
            _files.folder(path.parent)
            _files.write(path, json.dumps([[secrets.token_hex(8), pick] for pick in picks]))
        attempted = enumerate(json.loads(path.read_text()))
        tasks = [SearchRun(number=number, candidate=pick, name=name) for number, (name, pick) in attempted]
        paid = self._ledger[0].charged()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said once for each candidate, when it was planned
            for task in tasks:  # all of them, because the one charge is for all
                self._open[task.number] = self._run(task, paid=paid)
        self._ledger[0].charge()
        return tasks

    def _begin(self, task: SearchRun) -> None:
        """Make or open the run, which pays for itself; the runs of a private selection are open and paid for."""
        if not self.secret:
            self._open[task.number] = self._run(task, paid=self._ledger[0].charged(task.number))

    def _train(self, task: SearchRun) -> None:
        with warnings.catch_warnings():
            if self.secret:  # how often training warns tells how many attempts there are
                warnings.simplefilter("ignore")
            self._open[task.number].train([Orphan()])

    def _run(self, task: SearchRun, *, paid: bool) -> Run:
        """The run, as far as it has got."""
        folder, config = self._place(task), self.search.config(task.candidate, run=task.number)
        data, its = self._loaded(config), self._ledger[0]
        if (folder / DATABASE).exists():
            try:
                return Run.open(folder, data=data, search=its.secret)
            except DataError:
                if paid:
                    raise
        elif paid:
            raise DataError(f"{folder} is gone, and its run is paid for: put it back, or name a new folder")
        _files.remove(folder)  # cut off while it was made: nothing was spent
        ledger = its.of_run(task.number, self.plans[task.candidate], folder)
        return Run.create(config, folder, schedule=self._schedule(task), data=data, ledger=ledger)

    def _schedule(self, task: SearchRun) -> Schedule:
        return self.plans[task.candidate].config.schedule

    def _finished(self, tasks: Sequence[SearchRun]) -> Summary:
        """Choose, and write down what may be shown."""
        rows = [self._row(task) for task in tasks]
        place = best_of(rows)
        statement, law = self._statement(), self.search.repetitions
        best = None if place is None else {**rows[place], **self._tested(tasks[place])}
        if self.secret and best is not None:
            best = self._moved(best, statement)
        shown = rows if not self.secret else [best] if best else []
        result: Summary = {
            "runs": shown,
            "best": best,
            "epsilon_of_search": self.cost.price.epsilon,
            "delta": self.cost.delta,
            "select": self.search.select,
            "holds": self.cost.holds(),
            "prices": self.cost.prices,
            "settings_compared": len(self.plans),
            "validation_set": self._loaded(self.search.candidates[0].config).describe()["test_set"],
            "statement": statement,
            "out": str(self.folder),
            "table": str(self.folder / TABLE),
        }
        if law is not None:
            chance = 1 - law.generating(1 - 1 / len(self.plans))
            result |= {"expected_runs": law.mean, "chance_that_a_setting_is_tried": chance}
        _files.write(self.folder / TABLE, table(shown, self.search.keys))
        text = json.dumps(result, indent=1, allow_nan=False)
        if self.secret:
            _files.folder(self.folder / PRIVATE)
            _files.write(self.folder / PRIVATE / RESULT, text)
            return self._published()
        _files.write(self.folder / RESULT, text)
        return dict(json.loads(text))

    def _published(self) -> Summary:
        """Remove all but the best, and then, not before, let there be a result.

        Whenever this is cut off, it is done again: the result waits among what is private, and is the last to leave it.
        """
        private, result = self.folder / PRIVATE, self.folder / RESULT
        if not result.exists():
            for path in private.iterdir():
                if path.name != RESULT:
                    _files.remove(path)
            self._ledger[0].clean()
            _files.write(result, (private / RESULT).read_bytes())
        _files.remove(private)
        for path in (*self.folder.rglob("*"), self.folder):
            _files.undate(path)  # how long it took tells how many attempts there were
        return dict(json.loads(result.read_text()))

    def _row(self, task: SearchRun) -> Summary:
        folder = self._place(task)
        summary = json.loads((folder / SUMMARY).read_text())
        return {
            "settings": self.search.candidates[task.candidate].settings,
            **{name: summary[name] for name in ("accuracy", "loss")},
            "epsilon": self.plans[task.candidate].price.epsilon,
            **{name: summary[name] for name in ("rounds", "seconds")},
            "run": str(folder),
        }

    def _tested(self, task: SearchRun) -> Summary:
        """How good the chosen model is on the test examples, which had no say, where others were held out for that."""
        config = self.search.config(task.candidate, run=task.number)
        test = untouched_test(config)
        if test is None:
            return {"test_accuracy": None, "test_loss": None}
        schedule, data = self._schedule(task), self._loaded(config)
        engine = assemble(config, schedule=schedule, chunk=1, data=data).engine
        weights = engine.model.loaded(load_file(self._place(task) / MODEL)).weights.numpy()
        measured = score(engine.model, weights, test, loss=engine.loss)
        return {
            "test_accuracy": measured.accuracy,
            "test_loss": measured.loss if math.isfinite(measured.loss) else None,
        }

    def _moved(self, best: Summary, statement: dict[str, Any]) -> Summary:
        """The best, where only that may be seen: its model and what is promised for it, in a folder of its own.

        How long it took depends on how many others ran beside it, so that is not said.
        """
        source, target = Path(best["run"]), self.folder / BEST
        _files.folder(target)
        moved = {**best, "epsilon": self.cost.price.epsilon, "seconds": None, "run": str(target)}
        _files.write(target / MODEL, (source / MODEL).read_bytes())
        _files.write(target / STATEMENT_TEXT, str(statement["text"]) + "\n")
        _files.write(target / STATEMENT, json.dumps(statement, indent=1))
        _files.write(target / SUMMARY, json.dumps({**moved, "statement": statement}, indent=1))
        return moved

    def _statement(self) -> dict[str, Any]:
        if self.search.select == "public":
            return {"text": self.cost.holds()["shown"], "epsilon": 0.0, "delta": self.cost.delta}
        configs = [candidate.config for candidate in self.search.candidates]
        on_test = all(getattr(config.data, "validation", None) is None for config in configs)
        with self._ledger[0].open() as ledger:
            return self.cost.statement(ledger, own=self._ledger[0].charges(ledger), on_test=on_test).to_json()

    def _check_folder(self) -> None:
        path = self.folder / SEARCH
        if path.exists():
            if json.loads(path.read_text())["search"] != self.search.to_json():
                remedy = "it holds another search: repeat that one to go on, or name another folder"
                raise ConfigError(field="out", value=str(self.folder), remedy=remedy)
        elif self.folder.exists() and {file.name for file in self.folder.iterdir()} - _BEFORE:
            raise ConfigError(field="out", value=str(self.folder), remedy="name a new or empty folder")

    def _place(self, task: SearchRun) -> Path:
        return self._attempts / task.name

    @property
    def _attempts(self) -> Path:
        return self.folder / PRIVATE if self.secret else self.folder / RUNS

    def _tell(self, task: SearchRun, of: int) -> None:
        row = self._row(task)
        settings = ", ".join(f"{key} = {value}" for key, value in row["settings"].items())
        measured = f"loss {row['loss']}" if row["accuracy"] is None else f"accuracy {row['accuracy']:.4f}"
        self.say(f"run {task.number + 1}/{of}  {settings}  {measured}  epsilon {row['epsilon']:.3f}")

    def _loaded(self, config: Config) -> Clients:
        """The data of a config with their features, loaded once however many runs there are."""
        key = config.data.model_dump_json() + config.features.model_dump_json()
        if key not in self._data:
            self._data[key] = featured(config, federated_data(config))
        return self._data[key]
