"""A run that protects the records of silos: how it takes its rounds.

Each silo has a folder of its own in the run's, `silos/silo-1` and so on, with what it has sent in `sent/`; of public
data its ledger lies there, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from incrowd._random import Randomness
from incrowd.algorithms import FedAvg, RoundReport, SiloCohort, State
from incrowd.algorithms.counts import figures
from incrowd.algorithms.silos import AskAll
from incrowd.data import Clients
from incrowd.learning import Loss, Model
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.statement import Claims
from incrowd.runs.checkpoints import Checkpoints
from incrowd.runs.database import Record
from incrowd.runs.durable_silo import DurableSilo
from incrowd.runs.folder import LEDGER, SERVER, SILOS, Summary
from incrowd.runs.round_loop import RoundLoop
from incrowd.runs.silo_build import SiloFederation
from incrowd.runs.silo_config import SiloConfig
from incrowd.runs.silo_ledgers import SiloLedgers, own_place


@dataclass(frozen=True, kw_only=True, eq=False)
class SiloWork:
    """A federation of silos as a run needs it. They are asked one after the other, or all `together` elsewhere."""

    federation: SiloFederation
    ledger: SiloLedgers | None = None
    together: AskAll | None = None

    @property
    def payer(self) -> SiloLedgers:
        """The ledgers that are charged. Edge cases: they are not known yet: `AttributeError`."""
        if self.ledger is None:
            raise AttributeError("the ledgers have not been found yet")
        return self.ledger

    @property
    def asks_others(self) -> bool:
        """Whether silos are asked elsewhere."""
        return self.together is not None

    @property
    def config(self) -> SiloConfig:
        """The settings."""
        return self.federation.config

    @property
    def data(self) -> Clients:
        """The silos."""
        return self.federation.data

    @property
    def model(self) -> Model:
        """What is trained."""
        return self.federation.model

    @property
    def loss(self) -> Loss:
        """What training makes small."""
        return self.federation.loss

    @property
    def randomness(self) -> Randomness:
        """Where noise comes from."""
        return self.federation.randomness

    @property
    def rounds(self) -> int:
        """How many rounds there are at most."""
        return self.config.privacy.rounds

    def settings(self) -> Summary:
        """What was found for the run: the noise of the first silo's steps."""
        return {"noise_multiplier": self.federation.noise_multiplier}

    def find_ledger(self, folder: Path) -> "SiloWork":
        """The same, charged to the ledgers of its data, with all that was spent there."""
        return replace(self, ledger=SiloLedgers.find(self.federation, folder))

    def read_ledger(self, content: Mapping[str, Any]) -> "SiloWork":
        """The same, charged to the ledgers that `SiloLedgers.to_json` wrote."""
        return replace(self, ledger=SiloLedgers.from_json(content))

    def check_same(self) -> None:
        """The data are those that the ledgers are about (`DataError`)."""
        self.payer.check_same(self.federation)

    def give_back(self, folder: Path) -> None:
        """No round will follow: what the plans have left is for others."""
        for place in range(len(self.payer.silos)):
            with self.open_silo(place, folder) as outbox:
                outbox.silo.run.give_back()
        if (server := self.payer.server) is not None:
            with server.open(folder / LEDGER) as ledger:
                ledger.release_reservation(server.label)

    def try_out(self) -> None:
        """Nothing: everything was put together when the silos' plans were made."""

    @contextmanager
    def open(self, folder: Path) -> Iterator["SiloSession"]:
        """Ready to train, for as long as the `with` block lasts."""
        ledger, names = self.payer, self.federation.names
        with ExitStack() as stack:
            silos = [stack.enter_context(each) for each in ledger.open(folder, names)]
            outboxes = [self._outbox(place, each, folder) for place, each in enumerate(silos)]
            server = None if ledger.server is None else stack.enter_context(ledger.server.open(folder / LEDGER))
            asks = tuple(outbox.answer for outbox in outboxes)
            label = "" if ledger.server is None else ledger.server.label
            algorithm = self.federation.algorithm(asks, server, label=label, together=self.together)
            yield SiloSession(work=self, algorithm=algorithm, outboxes=outboxes)

    @contextmanager
    def open_silo(self, place: int, folder: Path) -> Iterator[DurableSilo]:
        """One silo on its ledger, in whatever process it answers."""
        own = own_place(folder, self.federation.names[place])
        with self.payer.silos[place].open(own) as ledger:
            yield self._outbox(place, ledger, folder)

    def _outbox(self, place: int, ledger: Ledger, folder: Path) -> DurableSilo:
        silo = self.federation.silo(place, ledger, label=self.payer.silos[place].label)
        # A run goes on from its last checkpoint, and asks for all rounds since then once more.
        keep, simulated = self.config.run.checkpoint_every + 1, self.randomness.simulated
        own = folder / SILOS / self.federation.names[place]
        return DurableSilo(silo, Checkpoints(own / "sent", keep=keep, dated=simulated))


@dataclass(frozen=True, kw_only=True, eq=False)
class SiloSession:
    """The work with its ledgers open."""

    work: SiloWork
    algorithm: FedAvg[SiloCohort]
    outboxes: Sequence[DurableSilo]

    def restored(self, loop: RoundLoop) -> State:
        """Where the run stands, as far as the last checkpoint and the ledgers know."""
        private = self.algorithm.cohort.private
        paid = max((number + 1 for outbox in self.outboxes for number in outbox.silo.run.rounds), default=0)
        state = loop.start_from(self.algorithm.init(), charged=paid)
        if private is None:
            return state
        return loop.caught_up(
            state,
            charged=private.next_round,
            repeats=self.work.randomness.simulated,
            epsilon=lambda _: max(self._spent.values()),
        )

    def rehearse(self, state: State) -> None:
        """Every silo can go on from this state: nobody pays before all are ready."""
        for outbox in self.outboxes:
            outbox.silo.rehearse(state.weights)

    def step(self, state: State) -> tuple[State, Record]:
        """Take a state through its round."""
        after, report = self.algorithm.apply(state)
        return after, self._record(report)

    def report(self, state: State) -> Summary:
        """What each silo says of the model on its own records, noised and paid for; None of one that says nothing."""
        std, classes = self.work.config.privacy.report_std, self.work.data.examples.classes
        if std is None or classes is None:
            return {}
        tables = {box.silo.name: box.report(state.published, classes=classes) for box in self.outboxes}
        found = {name: None if table is None else figures(table, std=std) for name, table in tables.items()}
        return {"report_by_silo": found}

    def claims(self) -> Claims:
        """What each silo may claim of its records, and the server of silos as a whole."""
        statements = {outbox.silo.name: outbox.silo.statement() for outbox in self.outboxes}
        if (private := self.algorithm.cohort.private) is not None:
            statements[SERVER] = private.statement()
        return Claims(by_party=statements)

    def facts(self, records: Sequence[Record]) -> Summary:
        """What each silo spent, and which of them had to stop."""
        simulated = self.work.randomness.simulated
        standings = next((record.silos for record in reversed(records) if record.silos), ())
        return {
            "rounds": sum(not record.lost for record in records),
            "epsilon": max(self._spent.values()),
            "delta": self.work.config.privacy.delta,
            "epsilon_by_silo": self._spent,
            "stopped": [standing["silo"] for standing in standings if standing["absence"] == "budget spent"],
            "noise_multiplier": self.work.federation.noise_multiplier,
            "seconds": sum(record.seconds or 0.0 for record in records) if simulated else None,
        }

    @property
    def _spent(self) -> dict[str, float]:
        return {outbox.silo.name: outbox.silo.epsilon for outbox in self.outboxes}

    def _record(self, report: RoundReport) -> Record:
        sent = sum(standing.absence is None for standing in report.silos)
        return Record(
            round=report.round,
            epsilon=report.epsilon,
            seconds=report.seconds,
            clients_per_second=None if report.seconds is None else sent / max(report.seconds, 1e-9),
            clip_norm=self.work.config.privacy.clip_norm,
            silos=[asdict(standing) for standing in report.silos],
        )
