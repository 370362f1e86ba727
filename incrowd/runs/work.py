"""A run that is put together: data, model, plans and ledgers.

Each silo with a ledger has a folder in the run's, `silos/silo-1` and so on, with its answers in `sent/`, and the ledger
of public data.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from incrowd._random import Randomness
from incrowd.algorithms.clients import ClientCohort, Trainers
from incrowd.algorithms.fedavg import AnyCohort, Cohort, FedAvg
from incrowd.algorithms.silos import Ask, AskAll, AskShared, AskSums, RecordCohort, Silo, SiloCohort
from incrowd.data.clients import Clients
from incrowd.errors import ConfigError, DataError
from incrowd.learning.dpsgd.engine import BatchedRecords, Records
from incrowd.learning.engine import CohortEngine
from incrowd.learning.execution import Execution
from incrowd.learning.inputs import ClientTensors
from incrowd.learning.local_algorithms import algorithm_of, sent_parts
from incrowd.learning.losses import Loss
from incrowd.learning.models import Model
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.content import DataIdentity
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.paid import RecordRun
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.sampling import Poisson, Sampler, Schedule
from incrowd.privacy.release import PrivateRun
from incrowd.runs.build import (
    check_model,
    declared_records,
    featured,
    loss_of,
    model_of,
    plan_of_all,
    plan_of_clients,
    plans_of_silos,
    randomness,
)
from incrowd.runs.config import Config, LinearSection, Weights
from incrowd.runs.data_config import MapFeatures, Parties
from incrowd.runs.folder import LEDGER, SILOS, Summary, own_place
from incrowd.runs.ledgers import RunLedger, identities_of
from incrowd.runs.round_loop import Checkpoints, DurableSilo, Session, SiloSession
from incrowd.runs.sources import NOTHING, Given, federated_data, processors, section
from incrowd.settings import Descent, Local

Place = tuple[Path, Path | None, Path | None]  # of a ledger in the run's folder; stated ones of ledger and witness


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """A run's data, model, plans and ledgers; each silo that adds noise (`SiloWork`) has a plan and a ledger.

    `held` are the clients before the feature map replaced their examples. `find_ledgers` sets the `ledgers`.
    """

    config: Config
    data: Clients
    held: Clients | None
    model: Model
    loss: Loss
    randomness: Randomness
    plans: tuple[Plan, ...]
    ledgers: tuple[RunLedger, ...] = ()

    @property
    def asks_others(self) -> bool:
        """Whether participants are trained elsewhere: each kind of work has its own way to ask them."""
        return any(getattr(self, way, None) is not None for way in ("trainers", "sums", "shared", "together"))

    @property
    def plan(self) -> Plan:
        """The one plan, or that of the first silo."""
        return self.plans[0]

    @property
    def payer(self) -> RunLedger:
        """The ledger that is charged."""
        return self.ledgers[0]

    @property
    def rounds(self) -> int:
        """The number of rounds at most."""
        return self.plan.rounds

    def answers(self, round: int) -> float:
        """The expected number of clients that contribute to a round; every silo contributes to each."""
        return self.plan.round(round).sampler.expected_cohort

    @property
    def size(self) -> int:
        """The number of values of a contribution."""
        return self.model.size

    def cohort(self, private: PrivateRun) -> Cohort:
        """The participants, whose rounds this run pays for."""
        raise NotImplementedError

    def averaged(self, cohort: AnyCohort) -> FedAvg[AnyCohort]:
        """The server's algorithm over these participants."""
        model = self.config.model
        scale = model.init_scale if isinstance(model, Weights) else 1.0
        return FedAvg(cohort, server=self.config.server, init_scale=scale)

    def algorithm(self, ledger: Ledger, *, label: str) -> FedAvg[Any]:
        """The algorithm, paid from this ledger, where it reserves the whole plan under this label."""
        private = PrivateRun(
            self.plan, ledger=ledger, randomness=self.randomness, size=self.size, label=label, places=self.data.places
        )
        private.name_third_party(self.third_party)
        with section("run"):
            return self.averaged(self.cohort(private))

    def try_out(self) -> None:
        """Put everything together on a ledger in memory, before a file is written."""
        self.algorithm(Ledger.in_memory(budget=self.plan.budget, relation=self.plan.relation), label="trial")

    @contextmanager
    def open(self, folder: Path) -> Iterator[Session]:
        """Ready to train, for as long as the `with` block lasts."""
        with self.payer.open(folder / LEDGER, budget=self.first_budget(self.plan)) as opened:
            yield Session(work=self, algorithm=self.algorithm(opened, label=self.payer.label))

    @property
    def third_party(self) -> str:
        """The feature map of another package, in words; engine and plan name the rest."""
        features = self.config.features
        return f"feature map {features.map}" if isinstance(features, MapFeatures) else ""

    def identities(self) -> list[DataIdentity]:
        """The data that each ledger is about."""
        return identities_of(self.config, self.held)

    def places(self, folder: Path) -> list[Place]:
        """The place of each ledger."""
        wanted = self.config.privacy
        ledger, witness = (None if path is None else Path(path) for path in (wanted.ledger, wanted.witness))
        return [(folder / LEDGER, ledger, witness)]

    def first_budget(self, plan: Plan) -> Budget:
        """The budget of a ledger that this run begins: the plan's, and room for later runs."""
        return replace(plan.budget, epsilon=plan.budget.epsilon + self.config.privacy.room)

    def settings(self) -> Summary:
        """The calibrated settings: the noise of each step."""
        steps = [asdict(step) for step in self.plan.config.schedule.steps]
        return {"schedule": steps, "noise_multiplier": self.plan.noise_multiplier}

    def find_ledgers(self, folder: Path) -> Self:
        """The same, charged to the ledgers of its data, which have room for it: see `RunLedger.find`.

        After a ledger that is refused, or has no room, the later ones are not begun.
        """
        found = []
        for plan, identity, (own, path, witness) in zip(
            self.plans, self.identities(), self.places(folder), strict=False
        ):
            budget, relation = self.first_budget(plan), plan.relation
            ledger = RunLedger.find(identity, own=own, budget=budget, relation=relation, path=path, witness=witness)
            with ledger.open(own) as opened:
                opened.check_room(plan.runs)
            found.append(ledger)
        return replace(self, ledgers=tuple(found))

    def ledgers_to_json(self) -> Summary:
        """Plain JSON data, part of the run's folder."""
        each = [ledger.to_json() for ledger in self.ledgers]
        return {"silos": each} if self.config.privacy.by_silo else each[0]

    def with_ledgers(self, content: Mapping[str, Any]) -> Self:
        """The same, charged to the ledgers that `ledgers_to_json` wrote."""
        each = content["silos"] if self.config.privacy.by_silo else [content]
        return replace(self, ledgers=tuple(map(RunLedger.from_json, each)))

    def check_same(self) -> None:
        """The data are those of the ledgers (`DataError`)."""
        identities = self.identities()
        if len(identities) != len(self.ledgers):
            raise DataError(f"the run began with {len(self.ledgers)} silos: put the data back as they were")
        for ledger, identity in zip(self.ledgers, identities, strict=True):
            ledger.check_same(identity)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientWork(Work):
    """A run that protects whole clients. This machine's engine trains them, unless `trainers` say otherwise."""

    engine: CohortEngine
    trainers: Trainers | None = None

    def settings(self) -> Summary:
        """See `Work.settings`; and the engine's chunk."""
        return {**super().settings(), "chunk": self.engine.chunk}

    @property
    def size(self) -> int:
        """See `Work.size`."""
        return self.engine.size

    def cohort(self, private: PrivateRun) -> ClientCohort:
        """See `Work.cohort`."""
        wanted = self.config.run
        return ClientCohort(
            engine=self.engine,
            private=private,
            unavailable=wanted.unavailable,
            diagnose=wanted.diagnose,
            trainers=self.trainers,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Silos(Work):
    """Silos with public numbers of records. Real parties have neither `records` nor engines here."""

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

    def cohort(self, private: PrivateRun) -> RecordCohort:
        """See `Work.cohort`."""
        return RecordCohort(
            engines=self.engines,
            records=self.declared,
            private=private,
            model=self.model,
            threads=self.threads,
            sums=self.sums,
            shared=self.shared,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class SiloWork(Silos):
    """Silos that each noise their steps. They answer one after the other, or all `together` over a network."""

    together: AskAll | None = None

    @property
    def rounds(self) -> int:
        """The number of rounds at most."""
        return self.config.privacy.rounds

    def identities(self) -> list[DataIdentity]:
        """See `Work.identities`; real parties keep their ledgers."""
        return [] if self.elsewhere else super().identities()

    def places(self, folder: Path) -> list[Place]:
        """See `Work.places`."""
        wanted = self.config.privacy
        return [
            (own_place(folder, name), _in(wanted.ledger, name), _in(wanted.witness, name, ".witness"))
            for name in self.names
        ]

    def silo(self, place: int, ledger: Ledger, *, label: str) -> Silo:
        """One silo, on its ledger."""
        run = RecordRun(self.plans[place], ledger=ledger, randomness=self.randomness, label=label, place=place)
        run.name_third_party(self.third_party)
        batch = self.config.local.physical_batch
        return Silo(self.names[place], run, engine=self.engines[place], threads=self.threads, physical_batch=batch)

    def settings(self) -> Summary:
        """See `Work.settings`; the noise is that of the first silo."""
        return {"noise_multiplier": self.plan.noise_multiplier}

    def asking(self, asks: tuple[Ask, ...]) -> FedAvg[SiloCohort]:
        """The federation of silos that answer through these functions."""
        return self.averaged(
            SiloCohort(
                asks=asks, model=self.model, rounds=self.rounds, randomness=self.randomness, together=self.together
            )
        )

    def try_out(self) -> None:
        """Nothing: the silos' engines were tried when they were made."""

    @contextmanager
    def open(self, folder: Path) -> Iterator[SiloSession]:
        """See `Work.open`."""
        with ExitStack() as stack:
            outboxes = [stack.enter_context(self.open_silo(place, folder)) for place in range(len(self.ledgers))]
            algorithm = self.asking(tuple(outbox.answer for outbox in outboxes))
            yield SiloSession(work=self, algorithm=algorithm, outboxes=outboxes)

    @contextmanager
    def open_silo(self, place: int, folder: Path) -> Iterator[DurableSilo]:
        """One silo on its ledger, in whatever process it answers."""
        # A run goes on from its last checkpoint, and asks for all rounds since then once more.
        keep, simulated = self.config.run.checkpoint_every + 1, self.randomness.simulated
        sent = Checkpoints(folder / SILOS / self.names[place] / "sent", keep=keep, dated=simulated)
        payer = self.ledgers[place]
        with payer.open(own_place(folder, self.names[place])) as ledger:
            yield DurableSilo(self.silo(place, ledger, label=payer.label), sent)


def work_of(
    config: Config,
    given: Given = NOTHING,
    *,
    schedule: Schedule | None = None,
    chunk: int | None = None,
    data: Clients | None = None,
) -> Work:
    """The run that these settings state, put together and unspent.

    A run that goes on gives the schedule and the chunk with which it began. `data` are the clients of this config with
    their features, if they are loaded.
    """
    if not config.of_records:
        return assemble(config, given, schedule=schedule, chunk=chunk, data=data)
    return assemble_silos(config, given) if config.privacy.by_silo else assemble_records(config, given, schedule)


def assemble(
    config: Config,
    given: Given = NOTHING,
    *,
    schedule: Schedule | None = None,
    chunk: int | None = None,
    data: Clients | None = None,
) -> ClientWork:
    """A run of whole clients: see `work_of`."""
    with section("privacy"):
        budget = config.privacy.budget  # before data are loaded, which takes long
    parts = _loaded(config, given, data)
    loaded, model = parts["data"], parts["model"]
    with section("privacy"):
        parts_sent = sent_parts(model.parts, algorithm_of(config.local))
        plan = plan_of_clients(config, budget, clients=loaded.clients, parts=parts_sent, schedule=schedule)
        if config.privacy.noise_by != "server" and loaded.present != loaded.clients:
            # The noise of their mean would reveal their number.
            remedy = f"every client sends something, and data.clients = {loaded.clients} is not how many there are"
            raise ConfigError(field="noise_by", value=config.privacy.noise_by, remedy=remedy)
    # A linear model without biases learns them by the last feature of every example.
    linear = isinstance(config.model, LinearSection) and not config.model.bias
    constant = float(getattr(config.features, "constant", 0.0)) if linear else 0.0
    tensors = replace(ClientTensors.of(loaded), constant=constant)
    engine = CohortEngine(model, tensors, config.local, _execution(config, chunk, plan), loss=parts["loss"])
    return ClientWork(**parts, engine=engine, plans=(plan,))


def assemble_records(config: Config, given: Given = NOTHING, schedule: Schedule | None = None) -> RecordWork:
    """A run of silos under one plan: see `work_of`."""
    parts = _silos(config, given)
    with section("privacy", local=Local.model_fields):
        plan = plan_of_all(config, parts["declared"], schedule)
        plan.training(parts["model"].size)
    engines = _engines(config, parts, Descent(), plan.config.schedule.communications)
    return RecordWork(**parts, plans=(plan,), engines=engines)


def assemble_silos(config: Config, given: Given = NOTHING) -> SiloWork:
    """A run of silos that each add noise: see `work_of`."""
    parts = _silos(config, given)
    with section("privacy", local=Local.model_fields):
        plans = plans_of_silos(config, parts["declared"])
        for name, plan, records in zip(parts["names"], plans, parts["records"], strict=False):
            plan.check_held(len(records), silo=name)
    steps = sum(plan.config.schedule.communications * plan.config.steps for plan in plans)
    return SiloWork(**parts, plans=plans, engines=_engines(config, parts, config.local, steps))


def _loaded(config: Config, given: Given, data: Clients | None = None) -> dict[str, Any]:
    """The parts of a work but its plans: data and model; `data` are those of this config with its features."""
    held = None
    if data is None:
        held = federated_data(config, given)
        data = featured(config, held)
    with section("local"):
        loss = loss_of(config.local.loss, data.examples, given)
    with section("model"):
        model = model_of(config, data.examples, loss, given)
    check_model(model, data, loss)
    parts = {"config": config, "data": data, "held": held, "model": model, "loss": loss}
    return {**parts, "randomness": randomness(config)}


def _execution(config: Config, chunk: int | None, plan: Plan) -> Execution:
    wanted, samplers = config.run, [plan.round(number).sampler for number in range(plan.rounds)]
    with section("run"):
        return Execution(
            device=wanted.device,
            threads=processors() if wanted.threads is None else wanted.threads,
            chunk=wanted.chunk if chunk is None else chunk,
            compile=wanted.compile,
            contributions=sum(sampler.expected_cohort for sampler in samplers),
            cohort=max(map(_usual_size, samplers)),
        )


def _usual_size(sampler: Sampler) -> float:
    """A bound on the clients of nearly every round."""
    expected = sampler.expected_cohort
    return expected + 2 * math.sqrt(expected * (1 - expected / sampler.clients)) * isinstance(sampler, Poisson)


def _silos(config: Config, given: Given) -> dict[str, Any]:
    """The parts of silos but plans and engines: see `_loaded`."""
    parts = _loaded(config, given)
    data: Clients = parts["data"]
    with section("data"):
        if data.present != data.clients:  # silos are parties that the server knows, so their number is exact
            remedy = "every silo has to be there, and these are not how many there are: state how many take part"
            raise ConfigError(field="clients", value=data.clients, remedy=remedy)
    with section("privacy"):
        declared = declared_records(config, data)
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
    engine = partial(BatchedRecords, parts["model"], descent=descent, loss=parts["loss"], execution=execution)
    return tuple(map(engine, parts["records"]))


def _in(folder: str | None, name: str, ending: str = "") -> Path | None:
    return None if folder is None else Path(folder) / f"{name}.sqlite{ending}"
