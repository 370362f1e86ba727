"""A run that one ledger pays for: its plan, its algorithm, its rounds; and the run of whole clients."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.algorithms import ClientCohort, FedAvg, RoundReport, State
from incrowd.algorithms.clients import Trainers
from incrowd.data import Clients
from incrowd.errors import ConfigError, DataError
from incrowd.learning import ClientTensors, CohortEngine, Execution, Loss, Model
from incrowd.learning.local_algorithms import algorithm_of, sent_parts
from incrowd.privacy.account.accounting import ACCOUNTANTS, Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import DataIdentity
from incrowd.privacy.plan.plan import SAMPLING, Plan, PlanConfig
from incrowd.privacy.plan.sampling import Cyclic, Poisson, Sampler, Schedule, constant, growing, preceded
from incrowd.privacy.release import PrivateRun
from incrowd.privacy.statement import Statement
from incrowd.runs.build import (
    NOTHING,
    Given,
    check_model,
    featured,
    federated_data,
    init_scale_of,
    loss_of,
    model_of,
    processors,
    randomness,
    section,
)
from incrowd.runs.clip_config import clip_of
from incrowd.runs.config import Config, LinearSection
from incrowd.runs.database import Record
from incrowd.runs.folder import LEDGER, Summary
from incrowd.runs.identity import identity_of
from incrowd.runs.round_loop import RoundLoop
from incrowd.runs.run_ledger import RunLedger
from incrowd.runs.silo_config import SiloConfig
from incrowd.runs.spent_so_far import SpentSoFar
from incrowd.runs.stopping import check_watched


@dataclass(frozen=True, kw_only=True, eq=False)
class LedgerWork(ABC):
    """A run that one plan and one ledger of its data pay for.

    `held` are the clients before the feature map replaced their examples. The `ledger` is known once it is found.
    """

    config: Config | SiloConfig
    data: Clients
    held: Clients | None
    plan: Plan
    randomness: Randomness
    ledger: RunLedger | None = None

    @property
    @abstractmethod
    def model(self) -> Model:
        """The trained model."""

    @property
    @abstractmethod
    def loss(self) -> Loss:
        """The loss that training minimises."""

    @abstractmethod
    def identity(self) -> DataIdentity:
        """The data that the ledger is about."""

    @abstractmethod
    def algorithm(self, ledger: Ledger, *, label: str) -> FedAvg[Any]:
        """The algorithm, paid from this ledger, where it reserves the whole plan under this label."""

    @property
    def payer(self) -> RunLedger:
        """The ledger that is charged. Edge cases: `AttributeError` before it is found."""
        if self.ledger is None:
            raise AttributeError("the ledger has not been found yet")
        return self.ledger

    @property
    def asks_others(self) -> bool:
        """Whether participants are trained elsewhere."""
        return False

    @property
    def rounds(self) -> int:
        """The number of planned rounds."""
        return self.plan.rounds

    @property
    def begins_with(self) -> Budget:
        """The budget of a ledger that this run begins: its own, and room for later runs."""
        return replace(self.plan.budget, epsilon=self.plan.budget.epsilon + self.config.privacy.room)

    def settings(self) -> Summary:
        """The settings that were found for the run: the noise of each step."""
        plan = self.plan
        return {
            "schedule": [asdict(step) for step in plan.config.schedule.steps],
            "noise_multiplier": plan.noise_multiplier,
        }

    def find_ledger(self, folder: Path) -> Self:
        """The same, charged to the ledger of its data, which has room for it."""
        plan, wanted, own = self.plan, self.config.privacy, folder / LEDGER
        for name, path in (("ledger", wanted.ledger), ("witness", wanted.witness)):
            if path is not None and Path(path).is_dir():
                raise ConfigError(field=f"privacy.{name}", value=path, remedy="it is a folder: name a file")
        run_ledger = RunLedger.find(
            self.identity(),
            own=own,
            budget=self.begins_with,
            relation=plan.relation,
            path=None if wanted.ledger is None else Path(wanted.ledger),
            witness=None if wanted.witness is None else Path(wanted.witness),
        )
        with run_ledger.open(own) as ledger:
            ledger.check_room(plan.runs)
        return replace(self, ledger=run_ledger)

    def read_ledger(self, content: Mapping[str, Any]) -> Self:
        """The same, charged to the ledger that `RunLedger.to_json` wrote."""
        return replace(self, ledger=RunLedger.from_json(content))

    def check_same(self) -> None:
        """The data are those of the ledger (`DataError`)."""
        self.payer.check_same(self.identity())

    def give_back(self, folder: Path) -> None:
        """No round will follow: others can use the rest of the plan, unless a search planned it."""
        if not self.payer.in_search:
            with self.payer.open(folder / LEDGER) as ledger:
                ledger.release_reservation(self.payer.label)

    def try_out(self) -> None:
        """See that everything fits together, on a ledger that nobody keeps, before a file is written."""
        self.algorithm(Ledger.in_memory(budget=self.plan.budget, relation=self.plan.relation), label="trial")

    @contextmanager
    def open(self, folder: Path) -> Iterator["LedgerSession"]:
        """Ready to train, for as long as the `with` block lasts."""
        with self.payer.open(folder / LEDGER, budget=self.begins_with) as opened:
            yield LedgerSession(work=self, algorithm=self.algorithm(opened, label=self.payer.label))


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientWork(LedgerWork):
    """A run that protects whole clients. This machine's engine trains them, unless `trainers` say otherwise."""

    config: Config
    engine: CohortEngine
    trainers: Trainers | None = None

    @property
    def asks_others(self) -> bool:
        """See `LedgerWork.asks_others`."""
        return self.trainers is not None

    @property
    def model(self) -> Model:
        """See `LedgerWork.model`."""
        return self.engine.model

    @property
    def loss(self) -> Loss:
        """See `LedgerWork.loss`."""
        return self.engine.loss

    def identity(self) -> DataIdentity:
        """See `LedgerWork.identity`."""
        return identity_of(self.config, self.held)

    def settings(self) -> Summary:
        """See `LedgerWork.settings`; beside them the engine's chunk."""
        return {**super().settings(), "chunk": self.engine.chunk}

    def algorithm(self, ledger: Ledger, *, label: str) -> FedAvg[ClientCohort]:
        """See `LedgerWork.algorithm`."""
        size, places = self.engine.size, self.data.places
        private = PrivateRun(
            self.plan, ledger=ledger, randomness=self.randomness, size=size, label=label, places=places
        )
        with section("model"):
            _validate.non_negative(init_scale=init_scale_of(self.config))
        with section("run"):
            cohort = ClientCohort(
                engine=self.engine,
                private=private,
                unavailable=self.config.run.unavailable,
                diagnose=self.config.run.diagnose,
                trainers=self.trainers,
            )
            return FedAvg(cohort, server=self.config.server, init_scale=init_scale_of(self.config))


@dataclass(frozen=True, kw_only=True, eq=False)
class LedgerSession:
    """The work with its ledger open."""

    work: LedgerWork
    algorithm: FedAvg[Any]

    @property
    def private(self) -> PrivateRun:
        """The rounds that this ledger pays for."""
        private: PrivateRun = self.algorithm.cohort.private
        return private

    def restored(self, loop: RoundLoop) -> State:
        """Where the run stands, as far as both the last checkpoint and the ledger know."""
        charged, repeats = self.private.next_round, self.work.randomness.simulated
        state = loop.start_from(self.algorithm.init(), charged=charged)
        if state.round < charged and not repeats and state.secret is not None:
            raise DataError(
                f"{loop.folder} lost the memory of its correlated noise with round {charged - 1}, so no later round "
                f"can be released; the model after {state.round} rounds is in its last checkpoint"
            )
        return loop.caught_up(state, charged=charged, repeats=repeats, epsilon=self._spent_so_far.after)

    def rehearse(self, state: State) -> None:
        """Nothing of clients that could be tried without them."""

    def step(self, state: State) -> tuple[State, Record]:
        """Take a state through its round."""
        return self.recorded(*self.algorithm.apply(state))

    def recorded(self, after: State, report: RoundReport) -> tuple[State, Record]:
        """A state, and the record of the round that led to it."""
        return after, self._record(report)

    def report(self, state: State) -> Summary:
        """Nothing: clients report nothing of themselves."""
        return {}

    def claims(self) -> Statement:
        """What may be claimed. Of a plan that ended early, what it costs is what was charged."""
        said, charged, plan = self.private.statement(), self.private.next_round, self.work.plan
        if charged == plan.rounds:
            return said
        cost = ", all of which are paid for with the first" if plan.config.groups is not None else ""
        return replace(said, sampler=f"{said.sampler}{cost}; it ended after {charged}")

    def facts(self, records: Sequence[Record]) -> Summary:
        """What was spent and done, by the expected cohorts, which are public; how fast is for simulations alone."""
        plan = self.work.plan
        done = [record for record in records if not record.lost]
        expected = sum(plan.round(record.round).sampler.expected_cohort for record in done)
        simulated = self.work.randomness.simulated
        seconds = sum(record.seconds or 0.0 for record in records) if simulated else None
        return {
            "rounds": len(done),
            "rounds_lost": len(records) - len(done),
            "communications": expected,
            "client_updates_per_second": expected / seconds if seconds else None,
            "seconds": seconds,
            "epsilon": self.claims().epsilon,
            "delta": plan.budget.delta,
            "budget": asdict(plan.budget),
            "noise_multiplier": plan.noise_multiplier,
        }

    @property
    def _spent_so_far(self) -> SpentSoFar:
        return SpentSoFar(self.work.plan)

    def _record(self, report: RoundReport) -> Record:
        over = report.round + 1
        cohort = self._spent_so_far.communications(over) - self._spent_so_far.communications(report.round)
        training = report.seconds_of_training
        seen = {"observed": report.observed, "diagnostics": report.diagnostics}
        simulation = {name: asdict(value) for name, value in seen.items() if value is not None}
        return Record(
            round=report.round,
            epsilon=self._spent_so_far.after(over),
            seconds=report.seconds,
            clients_per_second=None if training is None else cohort / max(training, 1e-9),
            clip_norm=report.clip_norm,
            noise_std=report.noise_std,
            simulation=simulation or None,
        )


def assemble(
    config: Config,
    *,
    given: Given = NOTHING,
    schedule: Schedule | None = None,
    chunk: int | None = None,
    data: Clients | None = None,
) -> ClientWork:
    """Load the data, build the model and the engine, calibrate the plan.

    A schedule and a chunk that are given, as a run that goes on does, are taken as they are; so are `data`, which are
    then those of this config with its features.

    Edge cases: whatever cannot be used is a `ConfigError` that names the section and the key, or a `DataError`.
    """
    with section("privacy"):
        _validate.non_negative(room=config.privacy.room)
        Budget(epsilon=config.privacy.epsilon, delta=config.privacy.delta)  # before data are loaded, which takes long
    held = federated_data(config, given) if data is None else None
    data = featured(config, held) if held is not None else data
    assert data is not None  # noqa: S101 - one of the two
    check_watched(config.stop, data)
    with section("local"):
        loss = loss_of(config.local.loss, data.examples, given)
    with section("model"):
        model = model_of(config, data.examples, loss, given)
    check_model(model, data, loss)
    with section("privacy"):
        plan = _plan(config, data.clients, model, schedule)
        _check_local(config, data)
    execution = _execution(config, chunk, plan)
    constant = _constant(config)
    tensors = replace(ClientTensors.of(data), constant=constant)
    engine = CohortEngine(model, tensors, config.local, execution, loss=loss)
    return ClientWork(config=config, data=data, held=held, engine=engine, plan=plan, randomness=randomness(config))


def _constant(config: Config) -> float:
    """The last feature of every example, by which a linear model learns its biases; 0 where it has biases."""
    linear = isinstance(config.model, LinearSection) and not config.model.bias
    return float(getattr(config.features, "constant", 0.0)) if linear else 0.0


def _execution(config: Config, chunk: int | None, plan: Plan) -> Execution:
    wanted = config.run
    with section("run"):
        return Execution(
            device=wanted.device,
            threads=processors() if wanted.threads is None else wanted.threads,
            chunk=wanted.chunk if chunk is None else chunk,
            compile=wanted.compile,
            contributions=SpentSoFar(plan).communications(plan.rounds),
            cohort=max(_usual_size(plan.round(number).sampler) for number in range(plan.rounds)),
        )


def _usual_size(sampler: Sampler) -> float:
    """So many clients a round has nearly always at most."""
    expected = sampler.expected_cohort
    return expected + 2 * math.sqrt(expected * (1 - expected / sampler.clients)) * isinstance(sampler, Poisson)


def _plan(config: Config, clients: int, model: Model, schedule: Schedule | None) -> Plan:
    wanted = config.privacy
    budget = Budget(epsilon=wanted.epsilon, delta=wanted.delta)
    parts = sent_parts(model.parts, algorithm_of(config.local))
    cohort = _cohort(config, clients)
    plan = PlanConfig(
        members=clients,
        schedule=_schedule(config, cohort) if schedule is None else schedule,
        sampling=SAMPLING[wanted.sampling] if wanted.groups is None else Cyclic,
        noise_by=wanted.noise_by,
        clip=clip_of(wanted.clip, parts, cohort),
        accountants=ACCOUNTANTS if wanted.accountant == "tightest" else (wanted.accountant.upper(),),
    )
    return plan.calibrate(budget) if schedule is None else plan.plan(budget)


def _check_local(config: Config, data: Clients) -> None:
    """Clients that noise for themselves are all there, or the noise of their mean would tell how many are."""
    if config.privacy.noise_by == "party" and data.present != data.clients:
        remedy = f"every client sends something, and data.clients = {data.clients} is not how many there are"
        raise ConfigError(field="noise_by", value="party", remedy=remedy)


def _cohort(config: Config, clients: int) -> float:
    wanted = config.privacy
    if wanted.groups is not None:
        _validate.count(groups=wanted.groups)
        return clients / wanted.groups
    if wanted.cohort is not None:
        return wanted.cohort
    if wanted.sampling != "everyone":
        raise ConfigError(field="cohort", value=None, remedy="say how many clients take part in a round")
    return float(clients)


def _schedule(config: Config, cohort: float) -> Schedule:
    """The schedule of training, after the round that asks for the label distribution, if there is one."""
    share, rounds = config.local.label_distribution, config.privacy.rounds
    if share is None:
        return _training_schedule(config, cohort, rounds=rounds)
    if rounds < 2:
        remedy = "plan at least 2: the first is for local.label_distribution"
        raise ConfigError(field="rounds", value=rounds, remedy=remedy)
    return preceded(_training_schedule(config, cohort, rounds=rounds - 1), share=share)


def _training_schedule(config: Config, cohort: float, *, rounds: int) -> Schedule:
    wanted = config.privacy
    if wanted.grow_from is None:
        return constant(rounds=rounds, cohort=cohort)
    return growing(rounds=rounds, first_cohort=wanted.grow_from, last_cohort=cohort)
