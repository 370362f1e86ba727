"""A search in a folder: runs side by side, what they cost together, the best of them.

| file                       | holds                                                                        |
| -------------------------- | ---------------------------------------------------------------------------- |
| `search.json`              | what is searched; the same search goes on here, another one is refused       |
| `ledger.sqlite`            | what the search has spent; only of public data, others have theirs outside   |
| `runs/0000`, `runs/0001`   | a run each                                                                   |
| `private/`                 | where only the best is shown: the attempts, as long as the search goes on    |
| `best/`                    | where only the best is shown: its model, its statement, its summary          |
| `result.json`, `table.csv` | what came out                                                                |
"""

import hashlib
import json
import math
import secrets
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from incrowd import _files, _validate
from incrowd.algorithms import score
from incrowd.data import Clients
from incrowd.data.reading import read_once
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.sampling import Schedule
from incrowd.runs.build import featured, federated_data, randomness, untouched_test
from incrowd.runs.client_work import assemble
from incrowd.runs.config import Config
from incrowd.runs.folder import DATABASE, MODEL, PRIVATE, STATEMENT, STATEMENT_TEXT, SUMMARY
from incrowd.runs.processes import Orphan, side_by_side
from incrowd.runs.run import Run
from incrowd.runs.search import Search
from incrowd.runs.search_cost import Cost
from incrowd.runs.search_ledger import SEARCH, SearchLedger
from incrowd.runs.search_report import Row, best_of, table

__all__ = ["Sweep"]

RESULT, TABLE, BEST, RUNS = "result.json", "table.csv", "best", "runs"
ATTEMPTS = "attempts.json"
LOCK = "search.lock"
_BEFORE = {LOCK, SEARCH + _files.PART}  # what may be there of a search that was cut off at once

SearchResult = dict[str, Any]


def silent(line: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, kw_only=True)
class SearchRun:
    """A run of the search: its number, the candidate whose settings it has, and the name of its folder."""

    number: int
    candidate: int
    name: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """A search and the folder for it; without one, a folder in `out` that is named after what is searched.

    Guarantee: the whole search is reserved on the one ledger of its data (`incrowd.runs.run_ledger`) before the first
    run trains, and each release charged there first: every run's under a label of its own, or, where only the best is
    shown, the one event of the selection. A search that was cut off goes on where it stopped, with the same ledger, and
    trains no run twice, nor does a copy of its folder. Where only the best is shown, the number of runs follows the law
    that was priced, and what is left, said or dated is the same whatever the number was; there is a result only when
    nothing of the others is left.

    Edge cases: a search that its budget does not allow is refused before anything is written; so is another search in
    the same folder. A run that was paid for and is gone is not trained again. A random number of runs may be 0 under
    the Poisson law: then there is no best, and the price is paid all the same. A rehearsal (`select` is "public") needs
    data that are declared public; runs on private data have to be about the same data and clients. What cannot be
    removed of the attempts is a `DataError`, and the same search goes on from there.
    """

    search: Search
    out: Path | str | None = None
    say: Callable[[str], None] = field(default=silent, repr=False)
    _data: dict[str, Clients] = field(default_factory=dict, init=False, repr=False)
    _ledger: list[SearchLedger] = field(default_factory=list, init=False, repr=False)
    _open: dict[int, Run] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def folder(self) -> Path:
        """Where the search is."""
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
        """What the search costs."""
        return Cost(plans=self.plans, select=self.search.select, repetitions=self.search.repetitions)

    @read_once()
    def run(self, *, jobs: int) -> SearchResult:
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
        """Make or open the run, which pays for itself; those of a private selection are open and paid for."""
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

    def _finished(self, tasks: Sequence[SearchRun]) -> SearchResult:
        """Choose, and write down what may be shown."""
        rows = [self._row(task) for task in tasks]
        place = best_of(rows)
        statement, law = self._statement(), self.search.repetitions
        best = None if place is None else {**rows[place], **self._tested(tasks[place])}
        if self.secret and best is not None:
            best = self._moved(best, statement)
        shown = rows if not self.secret else [best] if best else []
        result: SearchResult = {
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

    def _published(self) -> SearchResult:
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

    def _row(self, task: SearchRun) -> Row:
        folder = self._place(task)
        summary = json.loads((folder / SUMMARY).read_text())
        return {
            "settings": self.search.candidates[task.candidate].settings,
            **{name: summary[name] for name in ("accuracy", "loss")},
            "epsilon": self.plans[task.candidate].price.epsilon,
            **{name: summary[name] for name in ("rounds", "seconds")},
            "run": str(folder),
        }

    def _tested(self, task: SearchRun) -> Row:
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

    def _moved(self, best: Row, statement: dict[str, Any]) -> Row:
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
