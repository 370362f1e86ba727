"""A run of silos in a folder: each silo has a folder of its own in it, with its ledger and what it has sent.

| file                                          | holds                                                        |
| --------------------------------------------- | ------------------------------------------------------------ |
| `run.sqlite`                                  | the settings and a row for each round, silo by silo          |
| `ledger.json`                                 | which ledgers are charged, for which data; not for others    |
| `silos/silo-1/ledger.sqlite`, its `.witness`  | what the silo spent; only of public data, others' are outside |
| `silos/silo-1/sent/`                          | the silo's last answers, which it gives again if asked again |
| `ledger.sqlite`                               | likewise the server's, where silos are protected as a whole  |
| `checkpoints/`, `model.safetensors`, ...      | as in any run (`incrowd.runs.run`)                           |
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from incrowd import __version__, _files
from incrowd.data._rows import read_once
from incrowd.federated import SiloFedAvg, SiloReport, State
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.release import PrivateRun
from incrowd.privacy.statement import Claims
from incrowd.runs import results
from incrowd.runs.checkpoints import Checkpoints
from incrowd.runs.database import Record
from incrowd.runs.folder import (
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
from incrowd.runs.journey import Journey
from incrowd.runs.outbox import Outbox
from incrowd.runs.settings import parse
from incrowd.runs.silo_build import SiloFederation, assemble_silos
from incrowd.runs.silo_config import SiloConfig
from incrowd.runs.silo_ledgers import SiloLedgers
from incrowd.runs.trackers import Tracker, trackers


class SiloRun:
    """One federation of silos, from its settings to its result, in a folder.

    Guarantee: what a silo sent is on its ledger, whenever and however the process ends, and no ledger exceeds its
    budget. Under seeded randomness a run that was cut off and goes on ends with the same weights, bit for bit, as one
    that never stopped. Under the operating system's a round that a silo had paid for and not yet sent is lost for that
    silo: it stays paid, and the silo goes on with the next.

    Each silo has one ledger for all runs on its records, and the server one for all that protect the same clients
    (`incrowd.runs.run_ledger`).

    Edge cases: a folder that holds a run is refused for a new run; so are ledgers of other data or another budget. A
    silo whose budget is spent sends nothing more, and the others go on. Two processes cannot train in one folder at a
    time. A run whose data have changed does not go on.
    """

    def __init__(self, folder: Path, federation: SiloFederation, ledgers: SiloLedgers) -> None:
        self.folder = folder
        self.config = federation.config
        self.federation = federation
        self.ledgers = ledgers

    @classmethod
    @read_once()
    def create(cls, config: SiloConfig, folder: Path | str) -> "SiloRun":
        """A new run. Nothing is written before config and data have been found to be usable, and nothing is spent.

        Ledgers that are there already are taken up with all that was spent.

        Edge cases: where no silo can pay for a round any more, or the server's ledger has no room, `BudgetExceeded`.
        """
        folder = Path(folder).resolve()
        check_unused(folder, DATABASE, LEDGER, SILOS)
        federation = assemble_silos(config)
        trackers(config.run.trackers, folder, simulated=federation.randomness.simulated)
        run = cls(folder, federation, SiloLedgers.find(federation, folder))
        run._begin()
        return run

    @classmethod
    @read_once()
    def open(cls, folder: Path | str) -> "SiloRun":
        """The run in a folder, with its own settings.

        Edge cases: data that have changed since the run began are refused (`DataError`).
        """
        folder = Path(folder).resolve()
        settings = settings_in(folder, unit="record")
        config = parse(json.dumps(settings["config"]), SiloConfig)
        ledgers = SiloLedgers.from_json(payer_in(folder))
        ledgers.check_same(config)
        return cls(folder, assemble_silos(config), ledgers)

    @property
    def settings(self) -> Summary:
        """What the run was made with; the noise is that of the first silo's first round on an unspent budget."""
        return {
            "config": self.config.model_dump(mode="json"),
            "version": __version__,
            "rounds": self.config.privacy.rounds,
            "clients": self.federation.data.clients,
            "noise_multiplier": self.federation.noise_multiplier,
        }

    def train(self, watchers: Sequence[Tracker] = ()) -> Summary:
        """Train to the end, from wherever the run stands, and write the results; a run that is over says them again."""
        with ExitStack() as stack:
            way = Journey.begin(self.folder, self.config.run, rounds=self.config.privacy.rounds)
            journey = stack.enter_context(way)
            ledgers = [stack.enter_context(each) for each in self.ledgers.open(self.folder)]
            outboxes = [self._outbox(place, ledger) for place, ledger in enumerate(ledgers)]
            clients = self.ledgers.server
            server = None if clients is None else stack.enter_context(clients.open(self.folder / LEDGER))
            label = "" if clients is None else clients.label
            algorithm = self.federation.algorithm(tuple(outbox.answer for outbox in outboxes), server, label=label)

            def step(state: State) -> tuple[State, Record]:
                after, report = algorithm.apply(state)
                return after, self._record(report, measured=self._measured(after) if journey.due(after) else {})

            return journey.travel(
                self._rehearsed(self._restored(journey, algorithm, outboxes), outboxes),
                step,
                finish=lambda state: self._finished(state, journey.database.rounds(), outboxes, algorithm.private),
                settings=self.settings,
                watchers=watchers,
            )

    def _begin(self) -> None:
        _files.folder(self.folder)
        write_payer(self.folder, self.ledgers.to_json())
        with database_in(self.folder) as database:
            database.write_settings(self.settings)

    def _folder(self, place: int) -> Path:
        return self.folder / SILOS / self.federation.plans[place].name

    def _outbox(self, place: int, ledger: Ledger) -> Outbox:
        silo = self.federation.silo(place, ledger, label=self.ledgers.silos[place].label)
        # A run goes on from its last checkpoint, and asks for all rounds since then once more.
        keep, simulated = self.config.run.checkpoint_every + 1, self.federation.randomness.simulated
        return Outbox(silo, Checkpoints(self._folder(place) / "sent", keep=keep, dated=simulated))

    def _restored(self, journey: Journey, algorithm: SiloFedAvg, outboxes: Sequence[Outbox]) -> State:
        """Where the run stands, as far as the last checkpoint and the ledgers know."""
        paid = max((number + 1 for outbox in outboxes for number in outbox.silo.account.paid()), default=0)
        state = journey.departure(algorithm.init(), charged=paid)
        if algorithm.private is None:
            return state
        return journey.caught_up(
            state,
            charged=algorithm.private.next_round,
            repeats=self.federation.randomness.simulated,
            epsilon=lambda _: max(outbox.silo.epsilon for outbox in outboxes),
        )

    def _rehearsed(self, state: State, outboxes: Sequence[Outbox]) -> State:
        """The same state, from which every silo, and who measures, can go on: nobody pays before all are ready."""
        federation = self.federation
        if state.round < self.config.privacy.rounds:
            for outbox in outboxes:
                outbox.silo.rehearse(state.weights)
            results.rehearse(federation.model, state.published, federation.data.test, loss=federation.loss)
        return state

    def _record(self, report: SiloReport, *, measured: Mapping[str, float | None]) -> Record:
        sent = sum(standing.absence is None for standing in report.silos)
        return Record(
            round=report.round,
            epsilon=report.epsilon,
            seconds=report.seconds,
            clients_per_second=None if report.seconds is None else sent / max(report.seconds, 1e-9),
            clip_norm=self.config.privacy.clip_norm,
            accuracy=measured.get("accuracy"),
            loss=measured.get("loss"),
            silos=[asdict(standing) for standing in report.silos],
        )

    def _measured(self, state: State) -> dict[str, float | None]:
        federation = self.federation
        return results.measured(federation.model, state.published, federation.data.test, loss=federation.loss)

    def _claims(self, outboxes: Sequence[Outbox], private: PrivateRun | None) -> Claims:
        """What each silo may claim of its records, and the server of silos as a whole."""
        found = {outbox.silo.plan.name: outbox.silo.statement() for outbox in outboxes}
        if private is not None:
            found["the server"] = private.statement()
        return Claims(by_party=found)

    def _finished(
        self, state: State, records: Sequence[Record], outboxes: Sequence[Outbox], private: PrivateRun | None
    ) -> Summary:
        """Write the results."""
        federation, simulated = self.federation, self.federation.randomness.simulated
        results.write_model(self.folder, federation.model, state.published)
        spent = {outbox.silo.plan.name: outbox.silo.epsilon for outbox in outboxes}
        standings = next((record.silos for record in reversed(records) if record.silos), ())
        summary = {
            **self._measured(state),
            "metrics": results.metrics(federation.model, state.published, federation.data, loss=federation.loss),
            **self.federation.data.describe(),
            "rounds": sum(not record.lost for record in records),
            "epsilon": max(spent.values()),
            "delta": self.config.privacy.delta,
            "epsilon_by_silo": spent,
            "left": [standing["silo"] for standing in standings if standing["absence"] == "budget spent"],
            "noise_multiplier": self.federation.noise_multiplier,
            "seconds": sum(record.seconds or 0.0 for record in records) if simulated else None,
            "simulated": simulated,
            "plot": results.drawn(self.folder, records, wanted=self.config.run.plot, simulated=simulated),
        }
        return write_results(self.folder, self._claims(outboxes, private), summary)
