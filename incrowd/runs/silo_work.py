"""A run that protects the records of silos: by noise of the server, or of each silo, with a ledger each.

Each silo with a ledger has a folder in the run's, `silos/silo-1` and so on, with its answers in `sent/`. The ledger
of public data lies in it, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from incrowd import _validate
from incrowd.algorithms import FedAvg, RecordCohort, RoundReport, Silo, SiloCohort, State
from incrowd.algorithms.silos import Ask, AskAll, AskShared, AskSums
from incrowd.data import Clients
from incrowd.errors import ConfigError
from incrowd.learning import ClientTensors, Execution
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.learning.dpsgd.records import Records
from incrowd.privacy.account.accounting import Budget, price
from incrowd.privacy.account.calibrate import most_rounds
from incrowd.privacy.content import DataIdentity
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.paid import RecordRun
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Schedule, constant
from incrowd.privacy.release import PrivateRun
from incrowd.privacy.statement import Claims
from incrowd.runs.build import init_scale_of
from incrowd.runs.config import Config
from incrowd.runs.data_config import Parties
from incrowd.runs.folder import SILOS, Record, Summary
from incrowd.runs.ledgers import own_place
from incrowd.runs.round_loop import Checkpoints, DurableSilo, RoundLoop
from incrowd.runs.sources import NOTHING, Given, section
from incrowd.runs.work import Session, Work, loaded
from incrowd.settings import Descent, Local

Figure = TypeVar("Figure", int, float)


@dataclass(frozen=True, kw_only=True, eq=False)
class Silos(Work):
    """Silos with public numbers of records. Silos that are real parties have no `records` here."""

    held: Clients
    names: tuple[str, ...]
    records: tuple[Records, ...]
    declared: tuple[int, ...]
    engines: tuple[BatchedRecords, ...]

    @property
    def elsewhere(self) -> bool:
        """Whether the silos are real parties, who keep their records and ledgers."""
        return isinstance(self.config.data, Parties)

    @property
    def threads(self) -> int:
        """The threads of each silo."""
        return self.config.run.threads or 1


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordWork(Silos):
    """A run whose silos send sums to a server, which adds the noise once for all of them."""

    sums: AskSums | None = None
    shared: AskShared | None = None

    def answers(self, round: int) -> float:
        """See `Work.answers`."""
        return float(len(self.names))

    def algorithm(self, ledger: Ledger, *, label: str) -> FedAvg[RecordCohort]:
        """See `Work.algorithm`."""
        size = self.model.size
        private = PrivateRun(self.plan, ledger=ledger, randomness=self.randomness, size=size, label=label)
        private.name_third_party(self.third_party)
        cohort = RecordCohort(
            engines=self.engines,
            records=self.declared,
            private=private,
            model=self.model,
            threads=self.threads,
            sums=self.sums,
            shared=self.shared,
        )
        return FedAvg(cohort, server=self.config.server, init_scale=init_scale_of(self.config))


@dataclass(frozen=True, kw_only=True, eq=False)
class SiloWork(Silos):
    """Silos that each noise their steps. They answer one after the other, or all `together` over a network.

    Real parties have no engines here.
    """

    together: AskAll | None = None

    @property
    def rounds(self) -> int:
        """The number of rounds at most."""
        return self.config.privacy.rounds

    def identities(self) -> list[DataIdentity]:
        """See `Work.identities`; real parties keep their ledgers."""
        return [] if self.elsewhere else super().identities()

    def places(self, folder: Path) -> list[tuple[Path, Path | None, Path | None]]:
        """See `Work.places`."""
        wanted = self.config.privacy
        return [
            (own_place(folder, name), _in(wanted.ledger, name), _in(wanted.witness, name, ".witness"))
            for name in self.names
        ]

    def silo(self, place: int, ledger: Ledger, *, label: str) -> Silo:
        """One silo, on its ledger."""
        plan = self.plans[place]
        run = RecordRun(plan, ledger=ledger, randomness=self.randomness, label=label, place=place)
        run.name_third_party(self.third_party)
        return Silo(
            self.names[place],
            run,
            engine=self.engines[place],
            threads=self.threads,
            physical_batch=self.config.local.physical_batch,
        )

    def settings(self) -> Summary:
        """See `Work.settings`; the noise is that of the first silo."""
        return {"noise_multiplier": self.plan.noise_multiplier}

    def asking(self, asks: tuple[Ask, ...]) -> FedAvg[SiloCohort]:
        """The federation of silos that answer through these functions."""
        cohort = SiloCohort(
            asks=asks,
            model=self.model,
            rounds=self.rounds,
            randomness=self.randomness,
            together=self.together,
        )
        return FedAvg(cohort, server=self.config.server, init_scale=init_scale_of(self.config))

    def try_out(self) -> None:
        """Nothing: the silos' engines were tried when they were made."""

    @contextmanager
    def open(self, folder: Path) -> Iterator["SiloSession"]:
        """See `Work.open`."""
        with ExitStack() as stack:
            outboxes = [stack.enter_context(self.open_silo(place, folder)) for place in range(len(self.paid_from))]
            algorithm = self.asking(tuple(outbox.answer for outbox in outboxes))
            yield SiloSession(work=self, algorithm=algorithm, outboxes=outboxes)

    @contextmanager
    def open_silo(self, place: int, folder: Path) -> Iterator[DurableSilo]:
        """One silo on its ledger, in whatever process it answers."""
        # A run goes on from its last checkpoint, and asks for all rounds since then once more.
        keep, simulated = self.config.run.checkpoint_every + 1, self.randomness.simulated
        sent = Checkpoints(folder / SILOS / self.names[place] / "sent", keep=keep, dated=simulated)
        payer = self.paid_from[place]
        with payer.open(own_place(folder, self.names[place])) as ledger:
            yield DurableSilo(self.silo(place, ledger, label=payer.label), sent)


@dataclass(frozen=True, kw_only=True, eq=False)
class SiloSession(Session):
    """The session of silos with a ledger each."""

    work: SiloWork
    outboxes: Sequence[DurableSilo]

    def restored(self, loop: RoundLoop) -> State:
        """The state of the run, as far as the last checkpoint and the ledgers know."""
        paid = max((number + 1 for outbox in self.outboxes for number in outbox.silo.run.rounds), default=0)
        return loop.start_from(self.algorithm.init(), charged=paid)

    def rehearse(self, state: State) -> None:
        """Every silo can go on from this state: no silo pays before all are ready."""
        for outbox in self.outboxes:
            outbox.silo.rehearse(state.weights)

    def claims(self, state: State) -> Claims:
        """The statement of each silo about its records."""
        return Claims(by_party={outbox.silo.name: outbox.silo.statement() for outbox in self.outboxes})

    def facts(self, records: Sequence[Record]) -> Summary:
        """The spending of each silo, and which of them had to stop."""
        standings = next((record.silos for record in reversed(records) if record.silos), ())
        simulated = self.work.randomness.simulated
        return {
            "rounds": sum(not record.lost for record in records),
            "epsilon": max(self._spent.values()),
            "delta": self.work.config.privacy.delta,
            "epsilon_by_silo": self._spent,
            "stopped": [standing["silo"] for standing in standings if standing["absence"] == "budget spent"],
            "noise_multiplier": self.work.plan.noise_multiplier,
            "seconds": sum(record.seconds or 0.0 for record in records) if simulated else None,
        }

    @property
    def _spent(self) -> dict[str, float]:
        return {outbox.silo.name: outbox.silo.epsilon for outbox in self.outboxes}

    def recorded(self, after: State, report: RoundReport) -> tuple[State, Record]:
        """See `Session.recorded`."""
        sent = sum(standing.absence is None for standing in report.silos)
        record = Record(
            round=report.round,
            epsilon=report.epsilon,
            seconds=report.seconds,
            clients_per_second=None if report.seconds is None else sent / max(report.seconds, 1e-9),
            clip_norm=self.work.config.privacy.clip_norm,
            silos=[asdict(standing) for standing in report.silos],
        )
        return after, record


def assemble_records(config: Config, *, given: Given = NOTHING, schedule: Schedule | None = None) -> RecordWork:
    """Load the data, build the model and the engines, calibrate the one plan, all unspent; a schedule is kept.

    Edge cases: unusable settings or data are a `ConfigError` that names the section and the key, or a `DataError`.
    """
    parts = _silos(config, given)
    with section("privacy", local=Local.model_fields):
        plan = _common_plan(config, parts["declared"], schedule)
        plan.training(parts["model"].size)
    engines = _engines(config, parts, Descent(), plan.config.schedule.communications)
    return RecordWork(**parts, plans=(plan,), engines=engines)


def assemble_silos(config: Config, *, given: Given = NOTHING) -> SiloWork:
    """Load the data, build the models and engines, state the plans, all unspent.

    Edge cases: as `assemble_records`.
    """
    if config.privacy.noise_by != "party":
        remedy = 'models are attacked of silos that noise their own steps: use "party"'
        raise ConfigError(field="privacy.noise_by", value=config.privacy.noise_by, remedy=remedy)
    parts = _silos(config, given)
    with section("privacy", local=Local.model_fields):
        plans = _plans(config, parts["declared"])
        for name, plan, records in zip(parts["names"], plans, parts["records"], strict=False):
            plan.check_held(len(records), silo=name)
    steps = sum(plan.config.schedule.communications * plan.config.steps for plan in plans)
    return SiloWork(**parts, plans=plans, engines=_engines(config, parts, config.local, steps))


def _silos(config: Config, given: Given) -> dict[str, Any]:
    """The parts of silos but plans and engines: see `loaded`."""
    parts = loaded(config, given)
    data: Clients = parts["data"]
    with section("data"):
        if data.present != data.clients:  # silos are parties that the server knows, so their number is exact
            remedy = "every silo has to be there, and these are not how many there are: state how many take part"
            raise ConfigError(field="clients", value=data.clients, remedy=remedy)
    with section("privacy"):
        declared = _declared(config, data)
    names = data.names or tuple(f"silo-{place}" for place in range(1, data.clients + 1))
    records: tuple[Records, ...] = ()
    if not isinstance(config.data, Parties):
        tensors = ClientTensors.of(data)
        records = tuple(Records.of(tensors, client) for client in range(data.clients))
    return parts | {"names": names, "records": records, "declared": declared}


def _engines(
    config: Config, parts: Mapping[str, Any], descent: Descent, contributions: float
) -> tuple[BatchedRecords, ...]:
    """An engine for each silo that is here, of a run in which so many records are expected in all steps together."""
    with section("run"):
        execution = Execution(device=config.run.device, compile=config.run.compile, contributions=contributions)
    model, loss = parts["model"], parts["loss"]
    return tuple(
        BatchedRecords(model, records, descent, loss=loss, execution=execution) for records in parts["records"]
    )


def _declared(config: Config, data: Clients) -> tuple[int, ...]:
    """The public number of records of each silo: the declared one, or for public data the counted one."""
    wanted = config.privacy.records
    if wanted is None and data.public:
        return tuple(int(size) for size in data.sizes)
    if wanted is None:
        remedy = (
            "how many records a silo has is private and never counted: state a public number that it does not exceed, "
            "say records = 5000, or a list with one for each silo"
        )
        raise ConfigError(field="records", value=None, remedy=remedy)
    return _each(wanted, data.clients, field="records")


def _each(wanted: Figure | tuple[Figure, ...], silos: int, *, field: str) -> tuple[Figure, ...]:
    """One for each silo, of one for all or a list."""
    each = wanted if isinstance(wanted, tuple) else (wanted,) * silos
    if len(each) != silos:
        raise ConfigError(field=field, value=each, remedy=f"give one for each of the {silos} silos, or one")
    return each


def _common_plan(config: Config, declared: Sequence[int], schedule: Schedule | None) -> Plan:
    """The one plan of all silos' records."""
    records, silos = sum(declared), len(declared)
    wanted, batch = config.privacy, config.local.batch_size
    cohort = float(records if batch is None else batch)
    _validate.at_most(records, "the declared number of all records", batch_size=cohort)
    plan = PlanConfig(
        members=records,
        schedule=constant(rounds=wanted.rounds, cohort=cohort) if schedule is None else schedule,
        unit="record",
        noise_by=wanted.noise_by,
        parties=silos if wanted.noise_by == "parties" else None,
        colluders=wanted.colluders,
        clip=FixedClip(clip_norm=wanted.clip_norm),
    )
    return plan.calibrate(wanted.budget) if schedule is None else plan.plan(wanted.budget)


def _plans(config: Config, records: Sequence[int]) -> tuple[Plan, ...]:
    """A plan for each silo; equal ones are priced once."""
    wanted, local = config.privacy, config.local
    epsilons = _each(wanted.epsilon, len(records), field="epsilon")
    made: dict[tuple[int, float], Plan] = {}
    for members, epsilon in zip(records, epsilons, strict=True):
        if (members, epsilon) not in made:
            plan = PlanConfig.of_records(
                records=members,
                rounds=wanted.rounds,
                clip_norm=wanted.clip_norm,
                batch_size=local.batch_size,
                epochs=local.epochs,
                noise_multiplier=1.0 if wanted.noise_multiplier is None else wanted.noise_multiplier,
            )
            budget = Budget(epsilon=epsilon, delta=wanted.delta)
            fixed = wanted.noise_multiplier is not None
            made[members, epsilon] = _as_many(plan, budget) if fixed else plan.calibrate(budget)
    return tuple(made[each] for each in zip(records, epsilons, strict=True))


def _as_many(config: PlanConfig, budget: Budget) -> Plan:
    """As many of the rounds as a budget allows at the stated noise."""

    def shortened(rounds: int) -> PlanConfig:
        return replace(config, schedule=Schedule((replace(config.schedule.steps[0], rounds=rounds),)))

    wanted = config.schedule.rounds
    if price(config.whole, delta=budget.delta, relation=config.relation).epsilon > budget.epsilon:
        most = most_rounds(lambda rounds: shortened(rounds).whole, budget=budget, relation=config.relation)
        wanted = min(most, wanted)
    return shortened(wanted).plan(budget)


def _in(folder: str | None, name: str, ending: str = "") -> Path | None:
    return None if folder is None else Path(folder) / f"{name}.sqlite{ending}"
