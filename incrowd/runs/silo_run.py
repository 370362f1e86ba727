"""A run of silos in a folder: each silo has a folder of its own in it, with its ledger and what it has sent.

| file                                          | holds                                                        |
| --------------------------------------------- | ------------------------------------------------------------ |
| `run.sqlite`                                  | the settings and a row for each round, silo by silo          |
| `silos/silo-1/ledger.sqlite`, its `.witness`  | what the silo spent, written before anything was drawn       |
| `silos/silo-1/sent/`                          | the silo's last answers, which it gives again if asked again |
| `ledger.sqlite`                               | the server's own ledger, where silos are protected as a whole |
| `checkpoints/`, `model.safetensors`, ...      | as in any run (`incrowd.runs.run`)                           |
"""

import json
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from incrowd import __version__
from incrowd.errors import ConfigError, LedgerRolledBack
from incrowd.federated import SiloFedAvg, SiloReport, State
from incrowd.federated.silo_plan import RELATION
from incrowd.privacy.ledger import Ledger
from incrowd.privacy.statement import Claims
from incrowd.runs import _files, results
from incrowd.runs.build import data_identity
from incrowd.runs.checkpoints import Checkpoints
from incrowd.runs.database import Database, Record
from incrowd.runs.outbox import Outbox
from incrowd.runs.run import DATABASE, LEDGER, Summary, settings_in
from incrowd.runs.settings import parse
from incrowd.runs.silo_build import SiloFederation, assemble_silos
from incrowd.runs.silo_config import SiloConfig
from incrowd.runs.trackers import Tracker, trackers

SILOS = "silos"


class SiloRun:
    """One federation of silos, from its settings to its result, in a folder.

    Guarantee: what a silo sent is on its ledger, whenever and however the process ends, and no ledger exceeds its
    budget. Under seeded randomness a run that was cut off and goes on ends with the same weights, bit for bit, as one
    that never stopped. Under the operating system's a round that a silo had paid for and not yet sent is lost for that
    silo: it stays paid, and the silo goes on with the next.

    Edge cases: a folder that holds a run is refused for a new run; so are ledgers of other data or another budget. A
    silo whose budget is spent sends nothing more, and the others go on. Two processes cannot train in one folder at a
    time.
    """

    def __init__(self, folder: Path, federation: SiloFederation, *, label: str) -> None:
        self.folder = folder
        self.config = federation.config
        self.federation = federation
        self.label = label
        self._checkpoints = Checkpoints(folder / "checkpoints", keep=self.config.run.keep)

    @classmethod
    def create(cls, config: SiloConfig, folder: Path | str) -> "SiloRun":
        """A new run. Nothing is written before config and data have been found to be usable, and nothing is spent.

        Ledgers that are there already, because `privacy.ledgers` names a folder that outlives its runs, are taken up
        with all that was spent.
        """
        folder = Path(folder).resolve()
        for name in (DATABASE, LEDGER, SILOS):
            if (folder / name).exists():
                remedy = f"it holds {name} of a run: go on with `incrowd resume {folder}`, or name another folder"
                raise ConfigError(field="out", value=str(folder), remedy=remedy)
        federation = assemble_silos(config)
        trackers(config.run.trackers, folder)
        run = cls(folder, federation, label=secrets.token_hex(8))
        run._begin()
        return run

    @classmethod
    def open(cls, folder: Path | str) -> "SiloRun":
        """The run in a folder, with its own settings."""
        folder = Path(folder).resolve()
        settings = settings_in(folder)
        config = parse(json.dumps(settings["config"]), SiloConfig)
        return cls(folder, assemble_silos(config), label=settings["label"])

    @property
    def settings(self) -> Summary:
        """What the run was made with; the noise is that of the first silo's first round on an unspent budget."""
        return {
            "config": self.config.model_dump(mode="json"),
            "label": self.label,
            "version": __version__,
            "rounds": self.config.privacy.rounds,
            "clients": self.federation.data.clients,
            "noise_multiplier": self.federation.noise_multiplier,
        }

    def train(self, watchers: Sequence[Tracker] = ()) -> Summary:
        """Train to the end, from wherever the run stands, and write the results; a run that is over says them again."""
        watchers = [*trackers(self.config.run.trackers, self.folder), *watchers]
        with ExitStack() as stack:
            stack.enter_context(_files.alone(self.folder / "run.lock", what="trains in this folder"))
            ledgers = [stack.enter_context(self._ledger(place)) for place in range(len(self.federation.plans))]
            outboxes = [self._outbox(place, ledger) for place, ledger in enumerate(ledgers)]
            clients = self.federation.clients
            server = stack.enter_context(Ledger.open(self.folder / LEDGER, budget=clients.budget)) if clients else None
            database = Database(self.folder / DATABASE)
            stack.callback(database.close)
            algorithm = self.federation.algorithm(tuple(outbox.answer for outbox in outboxes), server)
            return self._train(database, algorithm, outboxes, watchers)

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        identity = data_identity(self.config)
        for place, plan in enumerate(self.federation.plans):
            path = self._ledger_path(place)
            path.parent.mkdir(parents=True, exist_ok=True)
            its = f"{identity}, {plan.name}"
            Ledger.open(path, budget=plan.budget, relation=RELATION, data_identity=its).close()
        if self.federation.clients is not None:
            plan_of_all = self.federation.clients
            Ledger.open(
                self.folder / LEDGER,
                budget=plan_of_all.budget,
                relation=plan_of_all.relation,
                data_identity=identity,
            ).close()
        database = Database(self.folder / DATABASE)
        try:
            database.write_settings(self.settings)
        finally:
            database.close()

    def _folder(self, place: int) -> Path:
        return self.folder / SILOS / self.federation.plans[place].name

    def _ledger_path(self, place: int) -> Path:
        kept = self.config.privacy.ledgers
        parent = self._folder(place) if kept is None else Path(kept) / self.federation.plans[place].name
        return parent / LEDGER

    def _ledger(self, place: int) -> Ledger:
        return Ledger.open(self._ledger_path(place), budget=self.federation.plans[place].budget)

    def _outbox(self, place: int, ledger: Ledger) -> Outbox:
        silo = self.federation.silo(place, ledger, label=self.label)
        # A run goes on from its last checkpoint, and asks for all rounds since then once more.
        return Outbox(silo, Checkpoints(self._folder(place) / "sent", keep=self.config.run.checkpoint_every + 1))

    def _train(
        self, database: Database, algorithm: SiloFedAvg, outboxes: Sequence[Outbox], watchers: Sequence[Tracker]
    ) -> Summary:
        state = self._restored(database, algorithm)
        past = [record for record in database.rounds() if record.round < state.round]
        summary: Summary | None = None
        for watcher in watchers:
            watcher.start(self.settings, past)
        try:
            while state.round < algorithm.rounds:
                state, report = algorithm.apply(state)
                record = self._record(state, report)
                database.add(record)
                if state.round % self.config.run.checkpoint_every == 0:
                    self._save(state)
                for watcher in watchers:
                    watcher.round(record)
            self._save(state)
            summary = self._finished(state, database, outboxes)
        finally:
            self._save(state)
            for watcher in watchers:
                watcher.end(summary)
        return summary

    def _save(self, state: State) -> None:
        if state.round not in self._checkpoints.rounds():
            self._checkpoints.save(state.round, state.to_arrays())

    def _restored(self, database: Database, algorithm: SiloFedAvg) -> State:
        """Where the run stands, as far as the last checkpoint and the server's ledger, if it has one, know."""
        state = algorithm.init()
        arrays = self._checkpoints.latest()
        if arrays is not None:
            state = state.restored(arrays)
        if algorithm.private is None:
            return state
        charged = algorithm.private.next_round
        if state.round > charged:
            raise LedgerRolledBack(f"{self.folder / LEDGER} knows fewer rounds than there were: put the latest back")
        if self.federation.randomness.simulated or state.round == charged:
            return state
        for number in range(state.round, charged):
            database.add(Record(round=number, epsilon=0.0, seconds=0.0, clients_per_second=0.0, lost=True))
        return replace(state, round=charged)

    def _record(self, state: State, report: SiloReport) -> Record:
        due = state.round % self.config.run.report_every == 0 or state.round == self.config.privacy.rounds
        measured = self._measured(state) if due else {}
        sent = sum(standing.absence is None for standing in report.silos)
        return Record(
            round=report.round,
            epsilon=report.epsilon,
            seconds=report.seconds,
            clients_per_second=sent / max(report.seconds, 1e-9),
            clip_norm=self.config.privacy.clip_norm,
            accuracy=measured.get("accuracy"),
            loss=measured.get("loss"),
            silos=[asdict(standing) for standing in report.silos],
        )

    def _measured(self, state: State) -> dict[str, float | None]:
        federation = self.federation
        return results.measured(federation.model, state.published, federation.data.test, loss=federation.loss)

    def _claims(self, outboxes: Sequence[Outbox]) -> Claims:
        """What each silo may claim of its records, and the server of silos as a whole."""
        simulated = self.federation.randomness.simulated
        silos = [outbox.silo for outbox in outboxes]
        found = {
            silo.plan.name: silo.plan.statement(silo.account.ledger.spent(), simulated=simulated) for silo in silos
        }
        if self.federation.clients is not None:
            found["the server"] = self.federation.clients.statement(simulated=simulated)
        return Claims(by_party=found)

    def _finished(self, state: State, database: Database, outboxes: Sequence[Outbox]) -> Summary:
        """Write the results."""
        records, claims = database.rounds(), self._claims(outboxes)
        simulated = self.federation.randomness.simulated
        results.write_model(self.folder, self.federation.model, state.published)
        _files.write(self.folder / "statement.txt", claims.text() + "\n")
        _files.write(self.folder / "statement.json", json.dumps(claims.to_json(), indent=1))
        spent = {outbox.silo.plan.name: outbox.silo.epsilon for outbox in outboxes}
        standings = records[-1].silos or () if records else ()
        summary = {
            **self._measured(state),
            **self.federation.data.describe(),
            "rounds": sum(not record.lost for record in records),
            "epsilon": max(spent.values()),
            "delta": self.config.privacy.delta,
            "epsilon_by_silo": spent,
            "left": [standing["silo"] for standing in standings if standing["absence"] == "budget spent"],
            "noise_multiplier": self.federation.noise_multiplier,
            "seconds": sum(record.seconds for record in records),
            "simulated": simulated,
            "statement": claims.to_json(),
            "run": str(self.folder),
            "plot": results.drawn(self.folder, records, wanted=self.config.run.plot, simulated=simulated),
        }
        _files.write(self.folder / "summary.json", json.dumps(summary, indent=1, allow_nan=False))
        return summary
