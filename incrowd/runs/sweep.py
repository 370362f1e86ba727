"""A search in a folder: its ledger, its runs one after the other, the best of them."""

import hashlib
import json
import secrets
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from incrowd import _files
from incrowd._private import make_ours
from incrowd.data import Clients
from incrowd.data.reading import read_once
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.account.events import RepeatedEvent
from incrowd.privacy.ledger.home import Home, is_begun
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import DataIdentity
from incrowd.privacy.statement import Statement
from incrowd.runs.build import featured, randomness
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
    Summary,
)
from incrowd.runs.ledgers import RunLedger, identities_of
from incrowd.runs.run import Run
from incrowd.runs.search import Cost, Search, best_of
from incrowd.runs.sources import federated_data
from incrowd.runs.work import assemble

__all__ = ["Sweep"]

ATTEMPTS, LOCK = "attempts.json", "search.lock"
_BEFORE = {LOCK, SEARCH + _files.PART}  # files of a search that was cut off at once


class SearchRun(NamedTuple):
    """A run of the search: its number, the candidate whose settings it has, and the name of its folder."""

    number: int
    candidate: int
    name: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """A search and the folder for it; without one, a folder in `out` that is named after what is searched.

    Guarantee: the whole search is reserved on the one ledger of its data (`incrowd.runs.ledgers`) before the first
    run trains, and each release charged there first: every run's under a separate label, or, where only the best is
    shown, the one event of the selection; then each attempt has a separate ledger, in the user's state folder if the
    data are private, and cannot go on without the search. A search that was cut off goes on where it stopped, and
    trains no run twice, nor does a copy of its folder. If only the best is shown, the number of runs follows the priced
    law; files, messages and dates do not depend on the number; and the result comes when all other runs are gone.

    Edge cases: a search that its budget does not allow is refused before anything is written; so is another search in
    the same folder, or private data that differ from run to run. A run that was paid for and is gone is not trained
    again. A random number of runs may be 0 under the Poisson law: then the result has no best, and the price is
    paid all the same. Attempts that cannot be removed are a `DataError`, and the same search goes on from there.
    """

    search: Search
    out: Path | str | None = None
    say: Callable[[str], None] = field(default=lambda _: None, repr=False)
    _data: dict[str, Clients] = field(default_factory=dict, init=False, repr=False)
    _ledger: list[RunLedger] = field(default_factory=list, init=False, repr=False)
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
    def cost(self) -> Cost:
        """The price of the search, by the plan of each candidate."""
        plans = []
        for candidate in self.search.candidates:
            work = assemble(candidate.config, chunk=1, data=self._loaded(candidate.config))
            if work.data.test is None:
                remedy = "a choice needs examples that the server holds: give the table a test_file"
                raise ConfigError(field="data.test_file", value=None, remedy=remedy)
            plans.append(work.plan)
        return Cost(plans=plans, repetitions=self.search.repetitions)

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
        self._check_folder()
        if (self.folder / RESULT).exists() and not self.secret:
            return dict(json.loads((self.folder / RESULT).read_text()))
        over = any((folder / RESULT).exists() for folder in (self.folder, self.folder / PRIVATE))
        if not over:
            self._check_room()
        _files.folder(self.folder)
        with _files.alone(self.folder / LOCK, what="searches in this folder"):
            if over:
                return self._published()
            self._begin()
            self.say(f"{len(self.cost.plans)} settings to compare; {self.cost.holds()['shown']}")
            tasks = self._tasks()
            for task in tasks:
                if not (self._place(task) / SUMMARY).exists():
                    self._train(task)
                    if not self.secret:
                        self._tell(task, len(tasks))
            return self._finished(tasks)

    # The ledger

    def _check_room(self) -> None:
        """The data's ledger has room for the search (`BudgetExceeded`); nothing is written that is not outside."""
        self.cost.budget(self.search.budget)
        own = self.identity.public and self.search.candidates[0].config.privacy.ledger is None
        if self._stored() is None and not own:
            found = self._find()
            with found.open(self.folder / LEDGER) as ledger:
                ledger.check_room([run for runs in self._promises(found).values() for run in runs])

    def _begin(self) -> None:
        """Reserve the whole search, under the label that is kept with it. Only for who holds the search's lock."""
        if not (self.folder / SEARCH).exists():
            self._store(None)
        own = self._stored()
        if own is None:
            own = self._find()
            self._store(own)
        else:
            own.check_same(self.identity)
        self._ledger[:] = [own]
        with own.open(self.folder / LEDGER) as ledger:
            ledger.reserve_all(self._promises(own))

    def _promises(self, own: RunLedger) -> dict[str, list[RepeatedEvent]]:
        """The reserved events, by label."""
        if self.secret:
            return {own.label: self.cost.events}
        return {own.part(number).label: plan.runs for number, plan in enumerate(self.cost.plans)}

    def _find(self) -> RunLedger:
        wanted, own, budget = self.search.candidates[0].config.privacy, self.folder / LEDGER, self.search.budget
        return RunLedger.find(
            self.identity,
            own=own,
            budget=self.cost.budget(budget),
            relation=self.cost.relation,
            path=wanted.ledger,
            witness=wanted.witness,
        )

    def _stored(self) -> RunLedger | None:
        path = self.folder / SEARCH
        stored: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return None if stored.get("ledger") is None else RunLedger.from_json(stored["ledger"])

    def _store(self, own: RunLedger | None) -> None:
        content = {"search": self.search.to_json(), "ledger": None if own is None else own.to_json()}
        _files.write(self.folder / SEARCH, json.dumps(content, indent=1))

    def _charged(self, label: str) -> bool:
        with self._ledger[0].open(self.folder / LEDGER) as ledger:
            return ledger.reservation(label).charged > 0

    def _ledger_of(self, task: SearchRun, folder: Path) -> RunLedger:
        """The ledger of a run: a part of the search's, or that of an attempt, which the selection pays for."""
        own, plan, public = self._ledger[0], self.cost.plans[task.candidate], self.identity.public
        if not self.secret:
            part = own.part(task.number)
            return replace(part, path=part.path or self.folder / LEDGER)
        path = folder / LEDGER if public else _attempts(own) / f"{folder.name}.sqlite"
        _files.folder(folder) if public else make_ours(path.parent)
        budget = None if is_begun(path) else plan.budget
        with Ledger.open(path, budget=budget, relation=plan.relation, data_identity=self.identity) as ledger:
            place = None if public else path
            return RunLedger(identity=self.identity, id=ledger.id, label="run", path=place, search=own.label)

    # The runs

    def _tasks(self) -> list[SearchRun]:
        """The runs: one for each candidate, or, where the number has to be random, as many as are drawn. Drawn once."""
        law, plans = self.search.repetitions, self.cost.plans
        if law is None:
            return [SearchRun(number=number, candidate=number, name=f"{number:04d}") for number in range(len(plans))]
        path, label = self.folder / PRIVATE / ATTEMPTS, self._ledger[0].label
        source, paid = randomness(self.search.candidates[0].config), self._charged(label)
        if not path.exists():
            if paid:
                raise DataError(
                    f"{path} is gone, and the selection is paid for: put it back, or search in a new folder"
                )
            attempts = law.sample(source.stream("attempts"))
            picks = [int(source.stream("pick", number).bits(1)[0]) % len(plans) for number in range(attempts)]
            # An error may name the folder of an attempt, so its name must not reveal their number.
            _files.folder(path.parent)
            _files.write(path, json.dumps([[secrets.token_hex(8), pick] for pick in picks]))
        attempted = enumerate(json.loads(path.read_text()))
        tasks = [SearchRun(number=number, candidate=pick, name=name) for number, (name, pick) in attempted]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # each candidate warned when it was planned
            for task in tasks:  # all of them, because the one charge is for all
                self._open[task.number] = self._run(task, paid=paid)
        if not paid:
            (event, _), *_ = self.cost.events
            with self._ledger[0].open(self.folder / LEDGER) as ledger:
                ledger.charge(event, reservation=label, note={"run": 0}, randomness=source)
        return tasks

    def _train(self, task: SearchRun) -> None:
        """Train a run, which pays for itself; the attempts of a private selection are open and paid for."""
        run = self._open.pop(task.number, None)
        if run is None:
            run = self._run(task, paid=self._charged(self._ledger[0].part(task.number).label))
        with warnings.catch_warnings():
            if self.secret:  # the number of warnings reveals the number of attempts
                warnings.simplefilter("ignore")
            run.train()

    def _run(self, task: SearchRun, *, paid: bool) -> Run:
        """The run, as far as it has got."""
        folder, config = self._place(task), self.search.config(task.candidate, run=task.number)
        data, schedule = self._loaded(config), self.cost.plans[task.candidate].config.schedule
        if (folder / DATABASE).exists():
            try:
                return Run.open(folder, data=data, search=self._ledger[0].label if self.secret else None)
            except DataError:
                if paid:
                    raise
        elif paid:
            raise DataError(f"{folder} is gone, and its run is paid for: put it back, or name a new folder")
        _files.remove(folder)  # cut off while it was made: nothing was spent
        return Run.create(config, folder, schedule=schedule, data=data, ledger=self._ledger_of(task, folder))

    def _finished(self, tasks: Sequence[SearchRun]) -> Summary:
        """Choose, and write down what may be shown."""
        rows = [self._row(task) for task in tasks]
        place, law, cost = best_of(rows), self.search.repetitions, self.cost
        statement, best = self._statement().to_json(), None if place is None else rows[place]
        if self.secret and best is not None:
            best = self._moved(best, statement)
        shown = rows if not self.secret else [best] if best else []
        result: Summary = {
            "runs": shown,
            "best": best,
            "epsilon_of_search": cost.price.epsilon,
            "delta": cost.delta,
            "select": self.search.select,
            "holds": cost.holds(),
            "settings_compared": len(cost.plans),
            "validation_set": self._loaded(self.search.candidates[0].config).describe()["test_set"],
            "statement": statement,
            "out": str(self.folder),
        }
        if law is not None:
            chance = 1 - law.generating(1 - 1 / len(cost.plans))
            result |= {"expected_runs": law.mean, "chance_that_a_setting_is_tried": chance}
        text = json.dumps(result, indent=1, allow_nan=False)
        if self.secret:
            _files.folder(self.folder / PRIVATE)
            _files.write(self.folder / PRIVATE / RESULT, text)
            return self._published()
        _files.write(self.folder / RESULT, text)
        return dict(json.loads(text))

    def _published(self) -> Summary:
        """Remove all but the best, and only then write the result.

        Whenever this is cut off, it is done again: the result waits among what is private, and is the last to leave it.
        """
        private, result = self.folder / PRIVATE, self.folder / RESULT
        if not result.exists():
            for path in private.iterdir():
                if path.name != RESULT:
                    _files.remove(path)
            own = self._stored()
            if own is not None and _attempts(own).exists():
                _files.remove(_attempts(own))
                _files.undate(_attempts(own).parent)
            _files.write(result, (private / RESULT).read_bytes())
        _files.remove(private)
        for path in (*self.folder.rglob("*"), self.folder):
            _files.undate(path)  # the duration reveals the number of attempts
        return dict(json.loads(result.read_text()))

    def _row(self, task: SearchRun) -> Summary:
        folder = self._place(task)
        summary = json.loads((folder / SUMMARY).read_text())
        return {
            "settings": self.search.candidates[task.candidate].settings,
            **{name: summary[name] for name in ("accuracy", "loss", "rounds", "seconds")},
            "epsilon": self.cost.plans[task.candidate].price.epsilon,
            "run": str(folder),
        }

    def _moved(self, best: Summary, statement: dict[str, Any]) -> Summary:
        """The best, where only that may be seen: its model and what is promised for it, in a separate folder. Its
        duration would reveal the others, so it is left out.
        """
        target = self.folder / BEST
        _files.folder(target)
        moved = {**best, "epsilon": self.cost.price.epsilon, "seconds": None, "run": str(target)}
        _files.write(target / MODEL, (Path(best["run"]) / MODEL).read_bytes())
        _files.write(target / STATEMENT_TEXT, str(statement["text"]) + "\n")
        _files.write(target / STATEMENT, json.dumps(statement, indent=1))
        _files.write(target / SUMMARY, json.dumps({**moved, "statement": statement}, indent=1))
        return moved

    def _statement(self) -> Statement:
        configs = [candidate.config for candidate in self.search.candidates]
        on_test = all(getattr(config.data, "validation", None) is None for config in configs)
        own = self._ledger[0]
        with own.open(self.folder / LEDGER) as ledger:
            charged = sum(ledger.reservation(label).charged for label in self._promises(own))
            return self.cost.statement(ledger, own=charged, on_test=on_test)

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
        """The data of a config with their features, loaded once for all runs."""
        key = config.data.model_dump_json() + config.features.model_dump_json()
        if key not in self._data:
            self._data[key] = featured(config, federated_data(config))
        return self._data[key]


def _attempts(own: RunLedger) -> Path:
    """The ledgers of attempts, which keep a copy of the search from training them twice."""
    return Home.of_user().folder / "attempts" / own.label
