"""A run in a folder: what was wanted, what was spent, where it stands, what came out.

| file                              | holds                                                 |
| --------------------------------- | ----------------------------------------------------- |
| `run.sqlite`                      | the settings and a row for each round                 |
| `ledger.sqlite`, its `.witness`   | what was spent, written before it was released        |
| `checkpoints/`                    | the last states                                       |
| `model.safetensors`               | the released model, in torch's names and shapes       |
| `statement.txt`, `statement.json` | what is promised                                      |
| `summary.json`, `curve.png`       | the result; accuracy and epsilon over the rounds      |
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from incrowd import __version__
from incrowd.data import FederatedData
from incrowd.errors import ConfigError, DataError, LedgerRolledBack
from incrowd.federated import FedAvg, RoundReport, State
from incrowd.privacy.ledger import Ledger
from incrowd.privacy.plan import Plan
from incrowd.privacy.schedule import Schedule, Step
from incrowd.runs import _files, results
from incrowd.runs.build import Federation, assemble, data_identity
from incrowd.runs.checkpoints import Checkpoints
from incrowd.runs.config import Config
from incrowd.runs.database import Database, Record
from incrowd.runs.settings import parse_json
from incrowd.runs.spending import Spending
from incrowd.runs.trackers import Tracker, trackers

DATABASE, LEDGER = "run.sqlite", "ledger.sqlite"

Summary = dict[str, Any]


class Run:
    """One private federation, from its settings to its result, in a folder.

    Guarantee: what was released is in the ledger, whenever and however the process ends. Under seeded randomness a run
    that was cut off and goes on ends with the same weights, bit for bit, as one that never stopped. Under the operating
    system's randomness a round that was paid for and then cut off is lost, not repeated: it stays paid, and the run
    goes on with the next.

    Edge cases: a folder that holds a run, or the ledger of one, is refused for a new run; one without a run cannot go
    on; two processes cannot train in one folder at a time.
    """

    def __init__(self, folder: Path, config: Config, federation: Federation) -> None:
        self.folder = folder
        self.config = config
        self.federation = federation
        self._spending = Spending(federation.plan)
        self._checkpoints = Checkpoints(folder / "checkpoints", keep=config.run.keep)

    @classmethod
    def create(
        cls,
        config: Config,
        folder: Path | str,
        *,
        schedule: Schedule | None = None,
        data: FederatedData | None = None,
    ) -> "Run":
        """A new run. Nothing is written before config and data have been found to be usable, and nothing is spent.

        With a `schedule`, cohorts and noise are taken from it, and only whether it fits the budget is asked. With
        `data`, this config's with its features, they are not loaded once more.
        """
        folder = Path(folder).resolve()
        for name in (DATABASE, LEDGER, f"{LEDGER}.witness"):
            if (folder / name).exists():
                raise ConfigError(
                    field="out",
                    value=str(folder),
                    remedy=f"it holds {name} of a run: go on with `incrowd resume {folder}`, or name another folder",
                )
        federation = assemble(config, schedule=schedule, data=data)
        trackers(config.run.trackers, folder)
        federation.algorithm(config, _trial_ledger(federation))
        run = cls(folder, config, federation)
        run._begin()
        return run

    @classmethod
    def open(cls, folder: Path | str, *, data: FederatedData | None = None) -> "Run":
        """The run in a folder, with its own settings, plan and chunk; `data` as in `create`."""
        folder = Path(folder).resolve()
        settings = settings_in(folder)
        config = parse_json(json.dumps(settings["config"]))
        steps = settings["schedule"]
        schedule = None if steps is None else Schedule(tuple(Step(**step) for step in steps))
        return cls(folder, config, assemble(config, schedule=schedule, chunk=settings["chunk"], data=data))

    @property
    def settings(self) -> Summary:
        """What the run was made with, and what was found for it: the noise of each step, and the engine's chunk."""
        plan = self.federation.plan
        return {
            "config": self.config.model_dump(mode="json"),
            "schedule": [asdict(step) for step in plan.config.schedule.steps] if isinstance(plan, Plan) else None,
            "chunk": self.federation.engine.chunk,
            "version": __version__,
            "rounds": plan.rounds,
            "clients": self.federation.data.clients,
            "noise_multiplier": plan.noise_multiplier,
        }

    def train(self, watchers: Sequence[Tracker] = ()) -> Summary:
        """Train to the end, from wherever the run stands, and write the results; a run that is over says them again."""
        watchers = [*trackers(self.config.run.trackers, self.folder), *watchers]
        budget = self.federation.plan.budget  # not enough to begin a ledger, should this one be gone
        lock = _files.alone(self.folder / "run.lock", what="trains in this folder")
        with lock, Ledger.open(self.folder / LEDGER, budget=budget) as ledger:
            database = Database(self.folder / DATABASE)
            try:
                return self._train(database, self.federation.algorithm(self.config, ledger), watchers)
            finally:
                database.close()

    def _begin(self) -> None:
        plan = self.federation.plan
        self.folder.mkdir(parents=True, exist_ok=True)
        identity = data_identity(self.config)
        Ledger.open(self.folder / LEDGER, budget=plan.budget, relation=plan.relation, data_identity=identity).close()
        database = Database(self.folder / DATABASE)
        try:
            database.write_settings(self.settings)
        finally:
            database.close()

    def _train(self, database: Database, algorithm: FedAvg, watchers: Sequence[Tracker]) -> Summary:
        state = self._restored(database, algorithm)
        past = [record for record in database.rounds() if record.round < state.round]
        summary: Summary | None = None
        for watcher in watchers:
            watcher.start(self.settings, past)
        try:
            while state.round < self.federation.plan.rounds:
                state, report = algorithm.apply(state)
                record = self._record(state, report)
                # The row before the checkpoint: a round that is part of the model always has one.
                database.add(record)
                if state.round % self.config.run.checkpoint_every == 0:
                    self._save(state)
                for watcher in watchers:
                    watcher.round(record)
            self._save(state)
            summary = self._finished(state, database)
        finally:
            self._save(state)
            for watcher in watchers:
                watcher.end(summary)
        return summary

    def _save(self, state: State) -> None:
        if state.round not in self._checkpoints.rounds():
            self._checkpoints.save(state.round, state.to_arrays())

    def _restored(self, database: Database, algorithm: FedAvg) -> State:
        """Where the run stands, as far as both the last checkpoint and the ledger know."""
        state, charged = algorithm.init(), algorithm.private.next_round
        arrays = self._checkpoints.latest()
        if arrays is not None:
            state = state.restored(arrays)
        elif charged > 0:
            raise DataError(f"{self._checkpoints.folder} is empty, and {charged} rounds are paid for: put it back")
        else:
            self._checkpoints.save(0, state.to_arrays())
        if state.round > charged:
            raise LedgerRolledBack(
                f"{self.folder} has a checkpoint after {state.round} rounds, its ledger knows {charged}: "
                "put the latest ledger back"
            )
        if state.round == charged or self.federation.randomness.simulated:
            return state
        if state.carry.noise is not None:
            raise DataError(
                f"{self.folder} lost the memory of its correlated noise with round {charged - 1}, so no later round "
                f"can be released; the model after {state.round} rounds is in its last checkpoint"
            )
        for number in range(state.round, charged):
            database.add(self._lost(number))
        return replace(state, round=charged)

    def _record(self, state: State, report: RoundReport) -> Record:
        due = state.round % self.config.run.report_every == 0 or state.round == self.federation.plan.rounds
        measured = self._measured(state) if due else {}
        cohort = self._spending.communications(state.round) - self._spending.communications(report.round)
        seen = {"observed": report.observed, "diagnostics": report.diagnostics}
        simulation = {name: asdict(value) for name, value in seen.items() if value is not None}
        return Record(
            round=report.round,
            epsilon=self._spending.after(state.round),
            seconds=report.seconds,
            clients_per_second=cohort / max(report.seconds_of_training, 1e-9),
            clip_norm=report.clip_norm,
            noise_std=report.noise_std,
            accuracy=measured.get("accuracy"),
            loss=measured.get("loss"),
            simulation=simulation or None,
        )

    def _lost(self, number: int) -> Record:
        return Record(
            round=number, epsilon=self._spending.after(number + 1), seconds=0.0, clients_per_second=0.0, lost=True
        )

    def _measured(self, state: State) -> dict[str, float | None]:
        """How good the model is that would be published now, on the test set that the server holds."""
        engine = self.federation.engine
        return results.measured(engine.model, state.published, self.federation.data.test, loss=engine.local.loss)

    def _finished(self, state: State, database: Database) -> Summary:
        """Write the results."""
        plan, records = self.federation.plan, database.rounds()
        simulated = self.federation.randomness.simulated
        statement = plan.statement(simulated=simulated)
        results.write_model(self.folder, self.federation.engine.model, state.published)
        _files.write(self.folder / "statement.txt", statement.text() + "\n")
        _files.write(self.folder / "statement.json", json.dumps(statement.to_json(), indent=1))
        summary = {
            **self._measured(state),
            **self.federation.data.describe(),
            **self._counted(records),
            "epsilon": plan.price.epsilon,
            "delta": plan.budget.delta,
            "budget": asdict(plan.budget),
            "noise_multiplier": plan.noise_multiplier,
            "simulated": simulated,
            "statement": statement.to_json(),
            "run": str(self.folder),
            "plot": results.drawn(self.folder, records, wanted=self.config.run.plot, simulated=simulated),
        }
        _files.write(self.folder / "summary.json", json.dumps(summary, indent=1, allow_nan=False))
        return summary

    def _counted(self, records: Sequence[Record]) -> Summary:
        """How much was done, and how fast: public numbers, so of the expected cohorts."""
        plan = self.federation.plan
        lost = [record for record in records if record.lost]
        expected = self._spending.communications(plan.rounds)
        expected -= sum(plan.round(record.round).sampler.expected_cohort for record in lost)
        seconds = sum(record.seconds for record in records)
        return {
            "rounds": plan.rounds - len(lost),
            "rounds_lost": len(lost),
            "communications": expected,
            "client_updates_per_second": expected / seconds if seconds else None,
            "seconds": seconds,
        }


def free_folder(parent: Path) -> Path:
    """The first of parent/run-1, parent/run-2, ... that does not exist."""
    number = 1
    while (parent / f"run-{number}").exists():
        number += 1
    return parent / f"run-{number}"


def _trial_ledger(federation: Federation) -> Ledger:
    """A ledger that nobody keeps, to see whether everything fits together before a file is written."""
    return Ledger.in_memory(budget=federation.plan.budget, relation=federation.plan.relation)


def settings_in(folder: Path) -> Summary:
    """What the run in a folder was made with. Edge cases: no run there, or one that was never begun: refused."""
    if not (folder / DATABASE).is_file():
        raise ConfigError(field="run", value=str(folder), remedy="there is no run; start one with incrowd train")
    database = Database(folder / DATABASE)
    try:
        settings = database.settings
    finally:
        database.close()
    if "config" not in settings:
        raise DataError(f"{folder} was cut off while it was made, and nothing was spent: name another folder")
    return settings
