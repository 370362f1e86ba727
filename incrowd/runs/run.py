"""A run in a folder: what was wanted, what was spent, where it stands, what came out.

| file                              | holds                                                 |
| --------------------------------- | ----------------------------------------------------- |
| `run.sqlite`                      | the settings and a row for each round                 |
| `ledger.json`                     | which ledger is charged, for which data; not for others |
| `ledger.sqlite`, its `.witness`   | that ledger, of public data; others have theirs outside |
| `checkpoints/`                    | the last states                                       |
| `model.safetensors`               | the released model, in torch's names and shapes       |
| `statement.txt`, `statement.json` | what is promised                                      |
| `summary.json`, `curve.png`       | the result; accuracy and epsilon over the rounds      |
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from incrowd import __version__, _files
from incrowd.data import Clients
from incrowd.data._rows import read_once
from incrowd.errors import ConfigError, DataError
from incrowd.federated import FedAvg, RoundReport, State
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.schedule import Schedule, Step
from incrowd.privacy.release import PrivateRun
from incrowd.runs import results
from incrowd.runs.build import Federation, assemble
from incrowd.runs.config import Config
from incrowd.runs.database import Record
from incrowd.runs.folder import (
    DATABASE,
    LEDGER,
    Summary,
    check_unused,
    database_in,
    payer_in,
    settings_in,
    write_payer,
    write_results,
)
from incrowd.runs.identity import identity_of
from incrowd.runs.journey import Journey
from incrowd.runs.run_ledger import RunLedger
from incrowd.runs.settings import parse_json
from incrowd.runs.spending import Spending
from incrowd.runs.trackers import Tracker, trackers


class Run:
    """One private federation, from its settings to its result, in a folder.

    Guarantee: what was released is in the ledger, whenever and however the process ends. Under seeded randomness a run
    that was cut off and goes on ends with the same weights, bit for bit, as one that never stopped. Under the operating
    system's randomness a round that was paid for and then cut off is lost, not repeated: it stays paid, and the run
    goes on with the next.

    All runs on the same data are charged to one ledger (`incrowd.runs.run_ledger`), which has to have room for the
    whole plan; runs on public data have a ledger each.

    Edge cases: a folder that holds a run, or the ledger of one, is refused for a new run; one without a run cannot go
    on, nor can one whose data have changed; two processes cannot train in one folder at a time. An attempt of a private
    search goes on with the search only.
    """

    def __init__(self, folder: Path, config: Config, federation: Federation, ledger: RunLedger) -> None:
        self.folder = folder
        self.config = config
        self.federation = federation
        self.ledger = ledger
        self._spending = Spending(federation.plan)

    @classmethod
    @read_once()
    def create(
        cls,
        config: Config,
        folder: Path | str,
        *,
        schedule: Schedule | None = None,
        data: Clients | None = None,
        ledger: RunLedger | None = None,
    ) -> "Run":
        """A new run. Nothing is written before config and data have been found to be usable, and nothing is spent.

        With a `schedule`, cohorts and noise are taken from it, and only whether it fits the budget is asked. With
        `data`, this config's with its features, they are not loaded once more. A `ledger` is for runs that are part of
        a search.

        Edge cases: a plan that the data's ledger has no room for raises `BudgetExceeded`, and no folder is made.
        Private `data` without a `ledger` are refused: others than the config's could be charged to it.
        """
        folder = Path(folder).resolve()
        check_unused(folder, DATABASE, *([LEDGER, f"{LEDGER}.witness"] if ledger is None else []))
        if data is not None and ledger is None and not config.data.public:
            remedy = "leave them out: which data a ledger is charged for is seen when they are loaded"
            raise ConfigError(field="data", value=type(data).__name__, remedy=remedy)
        federation = assemble(config, schedule=schedule, data=data)
        trackers(config.run.trackers, folder, simulated=federation.randomness.simulated)
        federation.algorithm(config, _trial_ledger(federation), label="trial")
        if ledger is None:
            ledger = _ledger_of(config, federation, own=folder / LEDGER)
        run = cls(folder, config, federation, ledger)
        run._begin()
        return run

    @classmethod
    @read_once()
    def open(cls, folder: Path | str, *, data: Clients | None = None, search: str | None = None) -> "Run":
        """The run in a folder, with its own settings, plan and chunk; `data` as in `create`. A private search gives
        its label to open an attempt.

        Edge cases: data that have changed since the run began are refused (`DataError`); who gives them has checked.
        """
        folder = Path(folder).resolve()
        settings = settings_in(folder, unit="client")
        config = parse_json(json.dumps(settings["config"]))
        its = RunLedger.from_json(payer_in(folder))
        if its.search != search:
            remedy = "it is an attempt of a private search, and paid for as a part of it: go on with that search"
            raise ConfigError(field="run", value=str(folder), remedy=remedy)
        if data is None:
            its.check_same(identity_of(config))
        steps = settings["schedule"]
        schedule = None if steps is None else Schedule(tuple(Step(**step) for step in steps))
        federation = assemble(config, schedule=schedule, chunk=settings["chunk"], data=data)
        return cls(folder, config, federation, its)

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
        plan = self.federation.plan
        way = Journey.begin(self.folder, self.config.run, rounds=plan.rounds)
        with way as journey, self.ledger.open(self.folder / LEDGER, budget=plan.budget) as ledger:
            algorithm = self.federation.algorithm(self.config, ledger, label=self.ledger.label)

            def step(state: State) -> tuple[State, Record]:
                after, report = algorithm.apply(state)
                return after, self._record(report, measured=self._measured(after) if journey.due(after) else {})

            state = self._restored(journey, algorithm)
            engine = self.federation.engine
            results.rehearse(engine.model, state.published, self.federation.data.test, loss=engine.local.loss)
            return journey.travel(
                state,
                step,
                finish=lambda state: self._finished(state, journey.database.rounds(), algorithm.private),
                settings=self.settings,
                watchers=watchers,
            )

    def _begin(self) -> None:
        _files.folder(self.folder)
        write_payer(self.folder, self.ledger.to_json())
        with database_in(self.folder) as database:
            database.write_settings(self.settings)

    def _restored(self, journey: Journey, algorithm: FedAvg) -> State:
        """Where the run stands, as far as both the last checkpoint and the ledger know."""
        charged, repeats = algorithm.private.next_round, self.federation.randomness.simulated
        state = journey.departure(algorithm.init(), charged=charged)
        if state.round < charged and not repeats and state.secret is not None:
            raise DataError(
                f"{self.folder} lost the memory of its correlated noise with round {charged - 1}, so no later round "
                f"can be released; the model after {state.round} rounds is in its last checkpoint"
            )
        return journey.caught_up(state, charged=charged, repeats=repeats, epsilon=self._spending.after)

    def _record(self, report: RoundReport, *, measured: Mapping[str, float | None]) -> Record:
        over = report.round + 1
        cohort = self._spending.communications(over) - self._spending.communications(report.round)
        training = report.seconds_of_training
        seen = {"observed": report.observed, "diagnostics": report.diagnostics}
        simulation = {name: asdict(value) for name, value in seen.items() if value is not None}
        return Record(
            round=report.round,
            epsilon=self._spending.after(over),
            seconds=report.seconds,
            clients_per_second=None if training is None else cohort / max(training, 1e-9),
            clip_norm=report.clip_norm,
            noise_std=report.noise_std,
            accuracy=measured.get("accuracy"),
            loss=measured.get("loss"),
            simulation=simulation or None,
        )

    def _measured(self, state: State) -> dict[str, float | None]:
        """How good the model is that would be published now, on the test set that the server holds."""
        engine = self.federation.engine
        return results.measured(engine.model, state.published, self.federation.data.test, loss=engine.local.loss)

    def _finished(self, state: State, records: Sequence[Record], private: PrivateRun) -> Summary:
        """Write the results."""
        plan, simulated = self.federation.plan, self.federation.randomness.simulated
        engine = self.federation.engine
        results.write_model(self.folder, engine.model, state.published)
        statement = private.statement()
        summary = {
            **self._measured(state),
            "metrics": results.metrics(engine.model, state.published, self.federation.data, loss=engine.local.loss),
            **self.federation.data.describe(),
            **self._counted(records),
            "epsilon": statement.epsilon,
            "delta": plan.budget.delta,
            "budget": asdict(plan.budget),
            "noise_multiplier": plan.noise_multiplier,
            "simulated": simulated,
            "plot": results.drawn(self.folder, records, wanted=self.config.run.plot, simulated=simulated),
        }
        return write_results(self.folder, statement, summary)

    def _counted(self, records: Sequence[Record]) -> Summary:
        """How much was done, by the expected cohorts, which are public; how fast is for simulations alone."""
        plan = self.federation.plan
        lost = [record for record in records if record.lost]
        expected = self._spending.communications(plan.rounds)
        expected -= sum(plan.round(record.round).sampler.expected_cohort for record in lost)
        simulated = self.federation.randomness.simulated
        seconds = sum(record.seconds or 0.0 for record in records) if simulated else None
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


def _ledger_of(config: Config, federation: Federation, *, own: Path) -> RunLedger:
    """The ledger of the run's data, which has room for the run."""
    plan, wanted = federation.plan, config.privacy
    found = RunLedger.find(
        identity_of(config),
        own=own,
        budget=plan.budget,
        relation=plan.relation,
        path=None if wanted.ledger is None else Path(wanted.ledger),
        witness=None if wanted.witness is None else Path(wanted.witness),
    )
    with found.open(own) as ledger:
        ledger.check_room(plan.runs)
    return found


def _trial_ledger(federation: Federation) -> Ledger:
    """A ledger that nobody keeps, to see whether everything fits together before a file is written."""
    return Ledger.in_memory(budget=federation.plan.budget, relation=federation.plan.relation)
