"""A search in a folder: runs side by side, what they cost together, the best of them.

| file                       | holds                                                                        |
| -------------------------- | ---------------------------------------------------------------------------- |
| `search.json`              | what is searched; the same search goes on here, another one is refused       |
| `ledger.sqlite`            | what the search has spent, each run (or the selection) before it is trained  |
| `runs/0000`, `runs/0001`   | a run each; where only the best is shown, private and deleted in the end     |
| `best/`                    | where only the best is shown: its model, its statement, its summary          |
| `result.json`, `table.csv` | what came out                                                                |
| `search.png`               | accuracy over each of the settings that were compared                        |
"""

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from incrowd import _validate
from incrowd.data import FederatedData
from incrowd.errors import ConfigError, DataError
from incrowd.federated import score
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.promise import Promise
from incrowd.privacy.plan.schedule import Schedule
from incrowd.runs import _files
from incrowd.runs.build import assemble, data_identity, featured, federated_data, randomness, untouched_test
from incrowd.runs.config import Config
from incrowd.runs.folder import DATABASE, LEDGER
from incrowd.runs.processes import Orphan, side_by_side
from incrowd.runs.run import Run
from incrowd.runs.search import Search
from incrowd.runs.search_cost import Cost
from incrowd.runs.search_report import Row, best_of, draw_search, table

SEARCH, RESULT, ATTEMPTS = "search.json", "result.json", "attempts.json"
LABEL = "search"
LOCK = "search.lock"
_BEFORE = {LOCK, SEARCH + _files.PART}  # what may be there of a search that was cut off at once

Result = dict[str, Any]


def silent(line: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A run of the search: its number, and the candidate whose settings it has."""

    number: int
    candidate: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """A search and the folder for it; without one, a folder in `out` that is named after what is searched.

    Guarantee: what a run releases is charged to the search's ledger before it trains; a search that was cut off goes on
    where it stopped, with the same ledger, and trains no run twice. Where only the best is shown, the number of runs
    follows the law that was priced, and in the end nothing of the others is left.

    Edge cases: a search that its budget does not allow is refused before anything is written; so is another search in
    the same folder. A run that was paid for and is gone is not trained again. A random number of runs may be 0 under
    the Poisson law: then there is no best, and the price is paid all the same.
    """

    search: Search
    out: Path | str | None = None
    say: Callable[[str], None] = field(default=silent, repr=False)
    _data: dict[str, FederatedData] = field(default_factory=dict, init=False, repr=False)
    _open: dict[int, Run] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def folder(self) -> Path:
        """Where the search is."""
        if self.out is not None:
            return Path(self.out).resolve()
        text = json.dumps(self.search.to_json(), sort_keys=True)
        return (Path("out") / f"sweep-{hashlib.sha256(text.encode()).hexdigest()[:10]}").resolve()

    @cached_property
    def plans(self) -> list[Promise]:
        """The plan of each candidate."""
        plans = []
        for candidate in self.search.candidates:
            federation = assemble(candidate.config, chunk=1, data=self._loaded(candidate.config))
            if federation.data.test is None:
                remedy = "a choice needs examples that the server holds: give the table a test_file"
                raise ConfigError(field="data.test_file", value=None, remedy=remedy)
            plans.append(federation.plan)
        if not self.search.fit or self.search.budget is None:
            return plans
        cost = Cost(plans=plans, select=self.search.select, repetitions=self.search.repetitions)
        return list(cost.fitted(self.search.budget))

    @cached_property
    def cost(self) -> Cost:
        """What the search costs."""
        return Cost(plans=self.plans, select=self.search.select, repetitions=self.search.repetitions)

    def run(self, *, jobs: int) -> Result:
        """Search to the end, from wherever it stands, at most `jobs` runs at a time; a search that is over says its
        result again.
        """
        _validate.count(jobs=jobs)
        self._check_folder()
        if (self.folder / RESULT).exists():
            self._clean()
            return dict(json.loads((self.folder / RESULT).read_text()))
        budget = self.cost.budget(self.search.budget) if self.cost.events else None
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _files.alone(self.folder / LOCK, what="searches in this folder"):
            _files.write(self.folder / SEARCH, json.dumps(self.search.to_json(), indent=1))
            holds = self.cost.holds()
            self.say(f"{len(self.plans)} settings to compare; {holds['shown']}")
            if budget is not None:
                with self._ledger(**({} if (self.folder / "runs").exists() else self._terms(budget))) as ledger:
                    ledger.reserve(self.cost.events, label=LABEL)
            tasks = self._tasks()
            waiting = [task for task in tasks if not (self._place(task) / "summary.json").exists()]
            for task in side_by_side(waiting, jobs=self.at_a_time(jobs), first=self._begin, work=self._train):
                self._open.pop(task.number, None)
                if self.search.select != "private":
                    self._tell(task, len(tasks))
            return self._finished(tasks)

    def at_a_time(self, jobs: int) -> int:
        """How many runs there may be at a time: one where a device other than the processors computes, which processes
        cannot share.
        """
        devices = {candidate.config.run.device for candidate in self.search.candidates}
        return jobs if devices == {"cpu"} else min(jobs, 1)

    def _tasks(self) -> list[Task]:
        """The runs: one for each candidate, or, where the number has to be random, as many as are drawn. Drawn once."""
        law = self.search.repetitions
        if law is None:
            return [Task(number=number, candidate=number) for number in range(len(self.plans))]
        path = self.folder / ATTEMPTS
        if not path.exists():
            if self._charged():
                raise DataError(
                    f"{path} is gone, and the selection is paid for: put it back, or search in a new folder"
                )
            source = randomness(self.search.candidates[0].config)
            attempts = law.draw(source.stream("attempts"))
            picks = [int(source.stream("pick", number).bits(1)[0]) % len(self.plans) for number in range(attempts)]
            _files.write(path, json.dumps(picks))
        picks = json.loads(path.read_text())
        tasks = [Task(number=number, candidate=pick) for number, pick in enumerate(picks)]
        for task in tasks:  # all of them, because the one charge is for all
            self._open[task.number] = self._run(task, paid=bool(self._charged()))
        self._charge(1)
        return tasks

    def _begin(self, task: Task) -> None:
        """Make or open the run, and pay for it."""
        if self.search.select == "private":
            return
        charged = self._charged()
        self._open[task.number] = self._run(task, paid=task.number < charged)
        if self.cost.events:
            self._charge(task.number + 1)

    def _train(self, task: Task) -> None:
        self._open[task.number].train([Orphan()])

    def _run(self, task: Task, *, paid: bool) -> Run:
        """The run, as far as it has got."""
        folder, config = self._place(task), self.search.config(task.candidate, run=task.number)
        data = self._loaded(config)
        if (folder / DATABASE).exists():
            try:
                return Run.open(folder, data=data)
            except DataError:
                if paid:
                    raise
        elif paid:
            raise DataError(f"{folder} is gone, and its run is paid for: put it back, or name a new folder")
        shutil.rmtree(folder, ignore_errors=True)  # cut off while it was made: nothing was spent
        return Run.create(config, folder, schedule=self._schedule(task), data=data)

    def _schedule(self, task: Task) -> Schedule | None:
        plan = self.plans[task.candidate]
        return plan.config.schedule if isinstance(plan, Plan) else None

    def _charged(self) -> int:
        """How many of the search's events are charged."""
        if not self.cost.events:
            return 0
        with Ledger.read(self.folder / LEDGER) as ledger:
            return ledger.reservation(LABEL).charged

    def _charge(self, events: int) -> None:
        """Charge the search's events up to so many."""
        source = randomness(self.search.candidates[0].config)
        with self._ledger() as ledger:
            for number in range(ledger.reservation(LABEL).charged, events):
                event = self.cost.events[number][0]
                ledger.charge(event, reservation=LABEL, note={"run": number}, randomness=source)

    def _ledger(self, **terms: Any) -> Ledger:
        """The ledger; never open while a process is forked."""
        return Ledger.open(self.folder / LEDGER, **terms)

    def _terms(self, budget: Budget) -> dict[str, Any]:
        """What the ledger is begun with; it is begun before the first run."""
        identity = data_identity(self.search.candidates[0].config)
        return {"budget": budget, "relation": self.cost.relation, "data_identity": identity}

    def _finished(self, tasks: Sequence[Task]) -> Result:
        """Choose, and write down what may be shown."""
        rows = [self._row(task) for task in tasks]
        place = best_of(rows)
        best = None if place is None else {**rows[place], **self._tested(tasks[place])}
        secret = self.search.select == "private"
        shown = rows if not secret else [best] if best else []
        result: Result = {
            "runs": shown,
            "best": best,
            "epsilon_of_search": self.cost.price.epsilon,
            "delta": self.cost.delta,
            "select": self.search.select,
            "holds": self.cost.holds(),
            "prices": self.cost.prices,
            "settings_compared": len(self.plans),
            "validation_set": self._loaded(self.search.candidates[0].config).describe()["test_set"],
            "statement": self._statement(),
            "out": str(self.folder),
            "table": str(self.folder / "table.csv"),
            "plot": None,
        }
        law = self.search.repetitions
        if law is not None:
            chance = 1 - law.generating(1 - 1 / len(self.plans))
            result |= {"expected_runs": law.mean, "chance_that_a_setting_is_tried": chance}
            if best is not None:
                result["runs"] = [best := self._moved(best, result["statement"])]
                result["best"] = best
        _files.write(self.folder / "table.csv", table(shown, self.search.keys))
        if not secret and self.search.keys:
            result["plot"] = draw_search(self.folder / "search.png", shown, self.search.keys)
        text = json.dumps(result, indent=1, allow_nan=False)
        _files.write(self.folder / RESULT, text)
        self._clean()
        return dict(json.loads(text))

    def _row(self, task: Task) -> Row:
        folder = self._place(task)
        summary = json.loads((folder / "summary.json").read_text())
        return {
            "settings": self.search.candidates[task.candidate].settings,
            **{name: summary[name] for name in ("accuracy", "loss", "epsilon", "rounds", "seconds")},
            "run": str(folder),
        }

    def _tested(self, task: Task) -> Row:
        """How good the chosen model is on the test examples, which had no say, where others were held out for that."""
        config = self.search.config(task.candidate, run=task.number)
        test = untouched_test(config)
        if test is None:
            return {"test_accuracy": None, "test_loss": None}
        schedule, data = self._schedule(task), self._loaded(config)
        engine = assemble(config, schedule=schedule, chunk=1, data=data).engine
        weights = engine.model.layout.flatten(load_file(self._place(task) / "model.safetensors"))
        found = score(engine.model, weights, test, loss=engine.local.loss)
        return {"test_accuracy": found.accuracy, "test_loss": found.loss if math.isfinite(found.loss) else None}

    def _moved(self, best: Row, statement: dict[str, Any]) -> Row:
        """The best, where only that may be seen: its model and what is promised for it, in a folder of its own."""
        source, target = Path(best["run"]), self.folder / "best"
        target.mkdir(exist_ok=True)
        shutil.copy(source / "model.safetensors", target / "model.safetensors")
        moved = {**best, "epsilon": self.cost.price.epsilon, "run": str(target)}
        _files.write(target / "statement.txt", str(statement["text"]) + "\n")
        _files.write(target / "statement.json", json.dumps(statement, indent=1))
        _files.write(target / "summary.json", json.dumps({**moved, "statement": statement}, indent=1))
        return moved

    def _statement(self) -> dict[str, Any]:
        if self.search.select == "public":
            return {"text": self.cost.holds()["shown"], "epsilon": 0.0, "delta": self.cost.delta}
        configs = [candidate.config for candidate in self.search.candidates]
        on_test = all(getattr(config.data, "validation", None) is None for config in configs)
        with self._ledger() as ledger:
            return self.cost.statement(ledger, on_test=on_test).to_json()

    def _clean(self) -> None:
        """Leave nothing of runs that must not be seen."""
        if self.search.select == "private":
            shutil.rmtree(self.folder / "runs", ignore_errors=True)
            (self.folder / ATTEMPTS).unlink(missing_ok=True)

    def _check_folder(self) -> None:
        path = self.folder / SEARCH
        if path.exists():
            if json.loads(path.read_text()) != self.search.to_json():
                remedy = "it holds another search: repeat that one to go on, or name another folder"
                raise ConfigError(field="out", value=str(self.folder), remedy=remedy)
        elif self.folder.exists() and {file.name for file in self.folder.iterdir()} - _BEFORE:
            raise ConfigError(field="out", value=str(self.folder), remedy="name a new or empty folder")

    def _place(self, task: Task) -> Path:
        return self.folder / "runs" / f"{task.number:04d}"

    def _tell(self, task: Task, of: int) -> None:
        row = self._row(task)
        settings = ", ".join(f"{key} = {value}" for key, value in row["settings"].items())
        measured = f"loss {row['loss']}" if row["accuracy"] is None else f"accuracy {row['accuracy']:.4f}"
        self.say(f"run {task.number + 1}/{of}  {settings}  {measured}  epsilon {row['epsilon']:.3f}")

    def _loaded(self, config: Config) -> FederatedData:
        """The data of a config with their features, loaded once however many runs there are."""
        key = config.data.model_dump_json() + config.features.model_dump_json()
        if key not in self._data:
            self._data[key] = featured(config, federated_data(config))
        return self._data[key]
