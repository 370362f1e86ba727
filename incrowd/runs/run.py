"""A run in a folder: what was wanted, what was spent, where it stands, what came out.

| file                              | holds                                                 |
| --------------------------------- | ----------------------------------------------------- |
| `run.sqlite`                      | the settings and a row for each round                 |
| `ledger.json`                     | which ledger is charged, for which data; not for others |
| `ledger.sqlite`, its `.witness`   | that ledger, of public data; others have theirs outside |
| `checkpoints/`                    | the last states                                       |
| `model.safetensors`               | the released model, in torch's names and shapes       |
| `statement.txt`, `statement.json` | what is promised                                      |
| `start.safetensors`               | the weights that a module of one's own began with      |
| `silos/`                          | what each silo has sent, where records are protected   |
| `card.md`                         | the model's card: all of this on one page             |
| `evaluation.json`                 | how good it is on the clients' own examples           |
| `summary.json`, `curve.png`       | the result; accuracy and epsilon over the rounds      |
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from numpy.typing import ArrayLike

from incrowd import __version__, _files
from incrowd.algorithms import State
from incrowd.algorithms.clients import Trainers
from incrowd.algorithms.silos import AskAll
from incrowd.data import Clients
from incrowd.data.reading import read_once
from incrowd.errors import ConfigError
from incrowd.learning import Model
from incrowd.privacy.plan.sampling import Schedule, Step
from incrowd.runs import results
from incrowd.runs.advice import advice, verdict
from incrowd.runs.build import NOTHING, Given, enrolled
from incrowd.runs.card import card
from incrowd.runs.client_work import ClientWork, LedgerSession, LedgerWork, assemble
from incrowd.runs.config import Config
from incrowd.runs.data_config import Parties
from incrowd.runs.database import Record
from incrowd.runs.evaluation import Evaluation, EvaluationConfig
from incrowd.runs.figures import RunCurve
from incrowd.runs.folder import (
    CARD,
    DATABASE,
    LEDGER,
    SILOS,
    Summary,
    check_unused,
    database_in,
    payer_in,
    settings_in,
    write_payer,
    write_results,
)
from incrowd.runs.judgement import judged
from incrowd.runs.record_work import assemble_records
from incrowd.runs.round_loop import RoundLoop
from incrowd.runs.run_ledger import RunLedger
from incrowd.runs.settings import read_back
from incrowd.runs.silo_build import assemble_silos
from incrowd.runs.silo_config import SiloConfig
from incrowd.runs.silo_work import SiloSession, SiloWork
from incrowd.runs.stopping import decision
from incrowd.runs.trackers import Tracker, trackers

UnitWork = LedgerWork | SiloWork
Session = LedgerSession | SiloSession
Rounds = Generator[tuple[Session, State], tuple[State, Record], Summary]
"""The rounds of a run: see `Run.rounds`."""


class Run:
    """One private federation, of whole clients or of records in silos, from its settings to its result, in a folder.

    Guarantee: what was released is in the ledger, whenever and however the process ends, and no ledger exceeds its
    budget. Under seeded randomness a run that was cut off and goes on ends with the same weights, bit for bit, as one
    that never stopped. Under the operating system's randomness a round that was paid for and then cut off is lost, not
    repeated: it stays paid, and the run goes on with the next; of silos, each loses its own.

    All runs on the same data are charged to one ledger (`incrowd.runs.run_ledger`), which has to have room for the
    whole plan; runs on public data have a ledger each. Of silos, each has one for all runs on its records, and the
    server one for all that protect the same clients; a silo whose budget is spent sends nothing more, and the others go
    on.

    Edge cases: a folder that holds a run, or the ledger of one, is refused for a new run; one without a run cannot go
    on, nor can one whose data have changed; two processes cannot train in one folder at a time. An attempt of a private
    search goes on with the search only.
    """

    def __init__(self, folder: Path, work: UnitWork) -> None:
        self.folder = folder
        self.work = work

    @classmethod
    @read_once()
    def create(
        cls,
        config: Config | SiloConfig,
        folder: Path | str,
        *,
        given: Given = NOTHING,
        schedule: Schedule | None = None,
        data: Clients | None = None,
        ledger: RunLedger | None = None,
        agree: Callable[[UnitWork], None] | None = None,
    ) -> "Run":
        """A new run. Nothing is written before config and data have been found to be usable, and nothing is spent.

        `given` is what a program hands over where settings name nothing. With a `schedule`, cohorts and noise are taken
        from it, and only whether it fits the budget is asked. With `data`, this config's with its features, they are
        not loaded once more. A `ledger` is for runs that are part of a search. `agree` is called before a ledger is
        looked for, and may raise.

        Edge cases: a plan that the data's ledger has no room for raises `BudgetExceeded`, and no folder is made; so do
        silos of which none can pay for a round any more. Private `data` without a `ledger` are refused: others than the
        config's could be charged to it.
        """
        folder = Path(folder).resolve()
        check_unused(folder, DATABASE, *([LEDGER, f"{LEDGER}.witness", SILOS] if ledger is None else []))
        if data is not None and ledger is None and not (data.public and getattr(config.data, "public", True)):
            remedy = "leave them out: which data a ledger is charged for is seen when they are loaded"
            raise ConfigError(field="data", value=type(data).__name__, remedy=remedy)
        work = work_of(config, given, schedule=schedule, data=data)
        trackers(config.run.trackers, folder, simulated=work.randomness.simulated)
        work.try_out()
        if agree is not None:
            agree(work)
        run = cls(folder, work.find_ledger(folder) if ledger is None else work.read_ledger(ledger.to_json()))
        run._begin()
        return run

    @classmethod
    @read_once()
    def open(
        cls, folder: Path | str, *, given: Given = NOTHING, data: Clients | None = None, search: str | None = None
    ) -> "Run":
        """The run in a folder, with its own settings, plan, first weights and chunk; `given` and `data` as in `create`.
        A private search gives its label to open an attempt.

        Edge cases: data that have changed since the run began are refused (`DataError`); who gives `data` has checked.
        """
        folder = Path(folder).resolve()
        settings = settings_in(folder)
        given = replace(given, start=results.first_state_in(folder))
        steps = settings.get("schedule")
        schedule = None if steps is None else Schedule(tuple(Step(**step) for step in steps))
        config, payer = _settings_of_version(settings), payer_in(folder)
        _check_parties(config, settings["clients"])
        if payer.get("search") != search:
            remedy = "it is an attempt of a private search, and paid for as a part of it: go on with that search"
            raise ConfigError(field="run", value=str(folder), remedy=remedy)
        work = work_of(config, given, schedule=schedule, chunk=settings.get("chunk"), data=data).read_ledger(payer)
        if data is None:
            work.check_same()
        if settings["module"] != _form(work.model):
            remedy = f"the run began with another: {settings['module']}"
            raise ConfigError(field="module", value=_form(work.model), remedy=remedy)
        return cls(folder, work)

    def trained_by(self, trainers: Trainers) -> "Run":
        """The same run, whose cohorts are trained elsewhere: see `incrowd.algorithms.clients.Trainers`.

        Edge cases: silos train themselves: `ConfigError`; so does what cannot go together with it.
        """
        if not isinstance(self.work, ClientWork):
            raise ConfigError(field="privacy.unit", value="record", remedy="silos train themselves: use whole clients")
        work = replace(self.work, trainers=trainers)
        work.try_out()
        return Run(self.folder, work)

    def answered_by(self, together: AskAll) -> "Run":
        """The same run, whose silos are asked elsewhere: see `incrowd.algorithms.silos.AskAll`.

        Edge cases: whole clients are trained: `ConfigError`.
        """
        if not isinstance(self.work, SiloWork):
            raise ConfigError(field="privacy.unit", value="client", remedy="clients are trained: use trained_by")
        return Run(self.folder, replace(self.work, together=together))

    @property
    def config(self) -> Config | SiloConfig:
        """What was wanted."""
        return self.work.config

    @property
    def settings(self) -> Summary:
        """What the run was made with, and what was found for it."""
        return {
            "config": self.config.model_dump(mode="json"),
            "version": __version__,
            "rounds": self.work.rounds,
            "clients": self.work.data.clients,
            "module": _form(self.work.model),
            "columns": list(self.work.data.columns),
            **self.work.settings(),
        }

    def train(self, watchers: Sequence[Tracker] = ()) -> Summary:
        """Train to the end, from wherever the run stands, and write the results; a run that is over says them again.

        Edge cases: nobody asks the parties of a run whose data are elsewhere: `ConfigError`.
        """
        with closing(self.rounds(watchers)) as rounds:
            try:
                session, state = next(rounds)
                while True:
                    session, state = rounds.send(session.step(state))
            except StopIteration as over:
                summary: Summary = over.value
                return summary

    def rounds(self, watchers: Sequence[Tracker] = ()) -> Rounds:
        """The rounds that are left, for a loop that takes them itself: see `train`.

        Each round is yielded as the session and the state before it; the state after it, and its record, are sent back.
        """
        wanted = self.config
        if isinstance(wanted.data, Parties) and not self.work.asks_others:
            remedy = "the data are with the parties: `incrowd flower serve` asks them, with the same settings"
            raise ConfigError(field="data.name", value="parties", remedy=remedy)
        with RoundLoop.begin(self.folder, wanted.run, wanted.stop, rounds=self.work.rounds) as loop:
            summary = results.of_stopped(self.folder)
            if summary is None:
                with self.work.open(self.folder) as session:
                    summary = yield from self._rounds(loop, session, watchers)
            else:
                loop.tell(summary, settings=self.settings, watchers=watchers)
            if summary["stopped_early"] is not None:
                self.work.give_back(self.folder)
            return summary

    def _rounds(self, loop: RoundLoop, session: Session, watchers: Sequence[Tracker]) -> Rounds:
        work, state = self.work, session.restored(loop)
        if state.round < work.rounds:
            session.rehearse(state)
        results.rehearse(work.model, state.published, work.data.test, loss=work.loss)
        walk = loop.walk(
            state,
            finish=lambda state: self._finished(state, loop.database.rounds(), session),
            settings=self.settings,
            watchers=watchers,
        )
        with closing(walk):
            try:
                state = next(walk)
                while True:
                    after, record = yield session, state
                    state = walk.send((after, record.measured(**self._measured(after)) if loop.due(after) else record))
            except StopIteration as over:
                summary: Summary = over.value
                return summary

    def evaluate(self, wanted: EvaluationConfig, *, weights: ArrayLike | None = None) -> Summary:
        """Measure the released model, or other weights for it, on the clients' own examples: noised, and charged to the
        ledger of the data like one more round. Edge cases: as `Evaluation`; clients whose examples are not here are a
        `ConfigError`.
        """
        if isinstance(self.config.data, Parties):
            remedy = "the examples are with the parties: ask them with `incrowd evaluate DIR --keys KEYS`"
            raise ConfigError(field="data.name", value="parties", remedy=remedy)
        with Evaluation.begin(self.folder, self.work, wanted, weights=weights) as evaluation:
            return evaluation.release(evaluation.here)

    def advice(self) -> list[str]:
        """What is doubtful before the first round; see `incrowd.runs.advice`."""
        return advice(self.work)

    def _begin(self) -> None:
        _files.folder(self.folder)
        write_payer(self.folder, self.work.payer.to_json())
        results.write_first_state(self.folder, self.work.model)
        with database_in(self.folder) as database:
            database.write_settings(self.settings)

    def _measured(self, state: State) -> dict[str, float | None]:
        """How good the model is that would be published now, on the test set that the server holds."""
        return results.measured(self.work.model, state.published, self.work.data.test, loss=self.work.loss)

    def _finished(self, state: State, records: Sequence[Record], session: Session) -> Summary:
        """Write the results."""
        work = self.work
        results.write_model(self.folder, work.model, state.published)
        metrics, test = results.metrics(work.model, state.published, work.data, loss=work.loss), work.data.test
        verdict = None
        if metrics is not None and test is not None:
            verdict = judged(metrics, examples=len(test), settings=self.settings["config"])
        summary = {
            **self._measured(state),
            "metrics": metrics,
            "verdict": verdict,
            **work.data.describe(),
            **session.report(state),
            **session.facts(records),
            "stopped_early": decision(self.config.stop, records) if state.round < work.rounds else None,
            "simulated": self.work.randomness.simulated,
        }
        curve = RunCurve.of(self.settings, summary, records)
        summary["plot"] = results.drawn(self.folder, curve, wanted=self.config.run.plot)
        claims = session.claims()
        _files.write(self.folder / CARD, card(self.settings, summary, statement=claims.text()))
        return write_results(self.folder, claims, summary)

    def verdict(self, summary: Summary) -> list[str]:
        """What is doubtful about the result; see `incrowd.runs.advice`."""
        with database_in(self.folder) as database:
            return verdict(self.work, summary, database.rounds())


def free_folder(parent: Path) -> Path:
    """The first of parent/run-1, parent/run-2, ... that does not exist."""
    number = 1
    while (parent / f"run-{number}").exists():
        number += 1
    return parent / f"run-{number}"


def _settings_of_version(settings: Summary) -> Config | SiloConfig:
    """The settings that another version may have written, which knows other keys."""
    try:
        return read_back(settings["config"])
    except ConfigError as error:
        made = settings.get("version")
        if made == __version__:
            raise
        remedy = f"the run was made with another version, and this is {__version__}: go on with that one ({error})"
        raise ConfigError(field="version", value=made, remedy=remedy) from error


def _check_parties(config: Config | SiloConfig, began: int) -> None:
    """Parties have their places for as long as a run lasts, there or not."""
    if isinstance(config.data, Parties) and (found := len(enrolled(config.data))) != began:
        remedy = f"the run began with {began}: put back who is missing, as NAME.gone, and begin another for who is new"
        raise ConfigError(field="data.enrolled", value=found, remedy=remedy)


def _form(model: Model) -> str:
    """How torch shows a module."""
    return " ".join(repr(model.module).split())


def work_of(
    config: Config | SiloConfig,
    given: Given = NOTHING,
    *,
    schedule: Schedule | None = None,
    chunk: int | None = None,
    data: Clients | None = None,
) -> UnitWork:
    """The data, the model, and the plan of these settings."""
    if isinstance(config, SiloConfig):
        if config.privacy.noise_by == "server":
            return assemble_records(config, given=given, schedule=schedule)
        return SiloWork(federation=assemble_silos(config, given=given))
    return assemble(config, given=given, schedule=schedule, chunk=chunk, data=data)
