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
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from incrowd import __version__
from incrowd.data import FederatedData
from incrowd.errors import DataError
from incrowd.federated import FedAvg, RoundReport, State
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.schedule import Schedule, Step
from incrowd.privacy.release import PrivateRun
from incrowd.runs import results
from incrowd.runs.build import Federation, assemble, data_identity
from incrowd.runs.config import Config
from incrowd.runs.database import Record
from incrowd.runs.folder import (
    DATABASE,
    LEDGER,
    Summary,
    check_unused,
    database_in,
    settings_in,
    write_results,
)
from incrowd.runs.journey import Journey
from incrowd.runs.settings import parse_json
from incrowd.runs.spending import Spending
from incrowd.runs.trackers import Tracker, trackers


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
        check_unused(folder, DATABASE, LEDGER, f"{LEDGER}.witness")
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
        settings = settings_in(folder, unit="client")
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
        plan = self.federation.plan
        way = Journey.begin(self.folder, self.config.run, rounds=plan.rounds)
        # The budget is not enough to begin a ledger, should this one be gone.
        with way as journey, Ledger.open(self.folder / LEDGER, budget=plan.budget) as ledger:
            algorithm = self.federation.algorithm(self.config, ledger)

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
        plan = self.federation.plan
        self.folder.mkdir(parents=True, exist_ok=True)
        identity = data_identity(self.config)
        Ledger.open(self.folder / LEDGER, budget=plan.budget, relation=plan.relation, data_identity=identity).close()
        with database_in(self.folder) as database:
            database.write_settings(self.settings)

    def _restored(self, journey: Journey, algorithm: FedAvg) -> State:
        """Where the run stands, as far as both the last checkpoint and the ledger know."""
        charged, repeats = algorithm.private.next_round, self.federation.randomness.simulated
        state = journey.departure(algorithm.init(), charged=charged)
        if state.round < charged and not repeats and state.carry.noise is not None:
            raise DataError(
                f"{self.folder} lost the memory of its correlated noise with round {charged - 1}, so no later round "
                f"can be released; the model after {state.round} rounds is in its last checkpoint"
            )
        return journey.caught_up(state, charged=charged, repeats=repeats, epsilon=self._spending.after)

    def _record(self, report: RoundReport, *, measured: Mapping[str, float | None]) -> Record:
        over = report.round + 1
        cohort = self._spending.communications(over) - self._spending.communications(report.round)
        seen = {"observed": report.observed, "diagnostics": report.diagnostics}
        simulation = {name: asdict(value) for name, value in seen.items() if value is not None}
        return Record(
            round=report.round,
            epsilon=self._spending.after(over),
            seconds=report.seconds,
            clients_per_second=cohort / max(report.seconds_of_training, 1e-9),
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
        results.write_model(self.folder, self.federation.engine.model, state.published)
        statement = private.statement()
        summary = {
            **self._measured(state),
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
