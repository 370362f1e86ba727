"""A run that one plan and one ledger pay for: the parts, the plan, the algorithm, its rounds; whole clients."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from incrowd import _validate
from incrowd._log import note
from incrowd._random import Randomness
from incrowd.algorithms import ClientCohort, FedAvg, RoundReport, State
from incrowd.algorithms.clients import Trainers
from incrowd.data import Clients
from incrowd.errors import ConfigError, DataError, RoundLost
from incrowd.learning import ClientTensors, CohortEngine, Execution, Loss, Model
from incrowd.learning.local_algorithms import algorithm_of, sent_parts
from incrowd.privacy.account.accounting import ACCOUNTANTS, Budget, GaussianCurve, RenyiCurve
from incrowd.privacy.account.events import RepeatedEvent, compose, mechanisms
from incrowd.privacy.content import DataIdentity
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import SAMPLING, Plan, PlanConfig
from incrowd.privacy.plan.sampling import Cyclic, Poisson, Sampler, Schedule, constant, growing, preceded
from incrowd.privacy.release import PrivateRun
from incrowd.privacy.statement import Claims, Statement
from incrowd.runs.build import check_model, featured, init_scale_of, loss_of, model_of, randomness
from incrowd.runs.config import Config, LinearSection, clip_of
from incrowd.runs.data_config import MapFeatures
from incrowd.runs.folder import LEDGER, Record, Summary
from incrowd.runs.ledgers import RunLedger, identities_of
from incrowd.runs.round_loop import RoundLoop
from incrowd.runs.sources import NOTHING, Given, federated_data, processors, section

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """A run that is put together: its data, its model, its plans, and the ledgers that are charged.

    One plan and one ledger pay for it, unless each silo noises its steps (`SiloWork`): then each silo has both. `held`
    are the clients before the feature map replaced their examples. `find_ledgers` sets the `ledgers`.
    """

    config: Config
    data: Clients
    held: Clients | None
    model: Model
    loss: Loss
    randomness: Randomness
    plans: tuple[Plan, ...]
    ledgers: tuple[RunLedger, ...] | None = None

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
        """The ledger that is charged. Edge cases: `AttributeError` before `find_ledgers`."""
        return self.paid_from[0]

    @property
    def rounds(self) -> int:
        """The number of rounds at most."""
        return self.plan.rounds

    def answers(self, round: int) -> float:
        """The expected number of clients that contribute to a round; every silo contributes to each."""
        return self.plan.round(round).sampler.expected_cohort

    def algorithm(self, ledger: Ledger, *, label: str) -> FedAvg[Any]:
        """The algorithm, paid from this ledger, where it reserves the whole plan under this label."""
        raise NotImplementedError

    def try_out(self) -> None:
        """Put everything together on a ledger in memory, before a file is written."""
        self.algorithm(Ledger.in_memory(budget=self.plan.budget, relation=self.plan.relation), label="trial")

    @contextmanager
    def open(self, folder: Path) -> Iterator["Session"]:
        """Ready to train, for as long as the `with` block lasts."""
        with self.payer.open(folder / LEDGER, budget=self.first_budget(self.plan)) as opened:
            yield Session(work=self, algorithm=self.algorithm(opened, label=self.payer.label))

    @property
    def third_party(self) -> str:
        """The feature map of another package, in words; engine and plan name the rest."""
        features = self.config.features
        return f"feature map {features.map}" if isinstance(features, MapFeatures) else ""

    @property
    def paid_from(self) -> tuple[RunLedger, ...]:
        """The ledgers that are charged. Edge cases: `AttributeError` before `find_ledgers`."""
        if self.ledgers is None:
            raise AttributeError("the ledger has not been found yet")
        return self.ledgers

    def identities(self) -> list[DataIdentity]:
        """The data that each ledger is about."""
        return identities_of(self.config, self.held)

    def places(self, folder: Path) -> list[tuple[Path, Path | None, Path | None]]:
        """The place of each ledger in the run's folder, and the stated ones of ledger and witness."""
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

        Edge cases: after a ledger that is refused, or has no room, the later ones are not begun.
        """
        found = []
        for plan, identity, place in zip(self.plans, self.identities(), self.places(folder), strict=False):
            own, path, witness = place
            ledger = RunLedger.find(
                identity,
                own=own,
                budget=self.first_budget(plan),
                relation=plan.relation,
                path=path,
                witness=witness,
            )
            with ledger.open(own) as opened:
                opened.check_room(plan.runs)
            found.append(ledger)
        return replace(self, ledgers=tuple(found))

    def ledgers_to_json(self) -> Summary:
        """Plain JSON data, part of the run's folder."""
        each = [ledger.to_json() for ledger in self.paid_from]
        return {"silos": each} if self.config.privacy.by_silo else each[0]

    def with_ledgers(self, content: Mapping[str, Any]) -> Self:
        """The same, charged to the ledgers that `ledgers_to_json` wrote."""
        each = content["silos"] if self.config.privacy.by_silo else [content]
        return replace(self, ledgers=tuple(map(RunLedger.from_json, each)))

    def check_same(self) -> None:
        """The data are those of the ledgers (`DataError`)."""
        identities = self.identities()
        if len(identities) != len(self.paid_from):
            raise DataError(f"the run began with {len(self.paid_from)} silos: put the data back as they were")
        for ledger, identity in zip(self.paid_from, identities, strict=True):
            ledger.check_same(identity)


def loaded(config: Config, given: Given, data: Clients | None = None) -> dict[str, Any]:
    """The parts of a work but its plans: data and model; `data` are those of this config with its features."""
    held = federated_data(config, given) if data is None else None
    data = featured(config, held) if held is not None else data
    assert data is not None  # noqa: S101 - one of the two
    with section("local"):
        loss = loss_of(config.local.loss, data.examples, given)
    with section("model"):
        model = model_of(config, data.examples, loss, given)
    check_model(model, data, loss)
    return {
        "config": config,
        "data": data,
        "held": held,
        "model": model,
        "loss": loss,
        "randomness": randomness(config),
    }


def spent_after(plan: Plan, rounds: int) -> float:
    """An upper bound on the epsilon of a plan's first rounds, at the budget's delta.

    Guarantee: never below what these rounds cost, never above the price of the whole plan, and exactly that after the
    last round. The bound is exact (GDP) if everyone takes part in every round; otherwise it is by RDP, which takes well
    under a millisecond, while the tight figure takes most of a second.
    """
    if not 0 < rounds < plan.rounds:
        return plan.price.epsilon if rounds else 0.0
    first: list[RepeatedEvent] = []
    for event, count in plan.runs:
        first += [(event, min(count, rounds))] if rounds > 0 else []
        rounds -= count
    runs = mechanisms(compose(first))
    curve = GaussianCurve(runs) if GaussianCurve.supports(runs) else RenyiCurve(runs, plan.relation)
    return min(curve.epsilon(plan.budget.delta), plan.price.epsilon)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientWork(Work):
    """A run that protects whole clients. This machine's engine trains them, unless `trainers` say otherwise."""

    engine: CohortEngine
    trainers: Trainers | None = None

    def settings(self) -> Summary:
        """See `Work.settings`; and the engine's chunk."""
        return {**super().settings(), "chunk": self.engine.chunk}

    def algorithm(self, ledger: Ledger, *, label: str) -> FedAvg[ClientCohort]:
        """See `Work.algorithm`."""
        private = PrivateRun(
            self.plan,
            ledger=ledger,
            randomness=self.randomness,
            size=self.engine.size,
            label=label,
            places=self.data.places,
        )
        private.name_third_party(self.third_party)
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
class Session:
    """The work with its ledger open; for several ledgers see `SiloSession`."""

    work: Work
    algorithm: FedAvg[Any]

    @property
    def private(self) -> PrivateRun:
        """The rounds that this ledger pays for."""
        private: PrivateRun = self.algorithm.cohort.private
        return private

    def restored(self, loop: RoundLoop) -> State:
        """The state of the run, as far as both the last checkpoint and the ledger know."""
        charged, repeats = self.private.next_round, self.work.randomness.simulated
        state = loop.start_from(self.algorithm.init(), charged=charged)
        if state.round < charged and not repeats and state.secret is not None:
            raise DataError(
                f"{loop.folder} lost the memory of its correlated noise with round {charged - 1}, so no later round "
                f"can be released; the model after {state.round} rounds is in its last checkpoint"
            )
        return loop.caught_up(state, charged=charged, repeats=repeats, epsilon=partial(spent_after, self.work.plan))

    def rehearse(self, state: State) -> None:
        """Nothing: clients cannot be tried without their examples."""

    def step(self, state: State) -> tuple[State, Record]:
        """Take a state through its round. Edge cases: a round that is lost moves nothing, and stays paid for."""
        try:
            return self.recorded(*self.algorithm.apply(state))
        except RoundLost as lost:
            note(_log, "round lost", level=logging.WARNING, round=state.round, why=str(lost))
            spent = spent_after(self.work.plan, state.round + 1)
            return replace(state, round=state.round + 1), Record(round=state.round, epsilon=spent, lost=True)

    def recorded(self, after: State, report: RoundReport) -> tuple[State, Record]:
        """A state, and the record of the round that led to it."""
        plan, training = self.work.plan, report.seconds_of_training
        answers = self.work.answers(report.round)
        seen = {"observed": report.observed, "diagnostics": report.diagnostics}
        record = Record(
            round=report.round,
            epsilon=spent_after(plan, report.round + 1),
            seconds=report.seconds,
            clients_per_second=None if training is None else answers / max(training, 1e-9),
            clip_norm=report.clip_norm,
            noise_std=report.noise_std,
            simulation={name: asdict(value) for name, value in seen.items() if value is not None} or None,
        )
        return after, record

    def claims(self, state: State) -> Statement | Claims:
        """The statement about a run that ends in this state."""
        return self.private.statement()

    def facts(self, records: Sequence[Record]) -> Summary:
        """Rounds and spending, by the expected cohorts, which are public; speed in simulations alone."""
        plan = self.work.plan
        done = [record for record in records if not record.lost]
        expected = sum(self.work.answers(record.round) for record in done)
        simulated = self.work.randomness.simulated
        seconds = sum(record.seconds or 0.0 for record in records) if simulated else None
        return {
            "rounds": len(done),
            "rounds_lost": len(records) - len(done),
            "communications": expected,
            "client_updates_per_second": expected / seconds if seconds else None,
            "seconds": seconds,
            "epsilon": self.private.statement().epsilon,
            "delta": plan.budget.delta,
            "budget": asdict(plan.budget),
            "noise_multiplier": plan.noise_multiplier,
        }


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

    Edge cases: unusable settings or data are a `ConfigError` that names the section and the key, or a `DataError`.
    """
    with section("privacy"):
        budget = config.privacy.budget  # before data are loaded, which takes long
    parts = loaded(config, given, data)
    data, model, loss = parts["data"], parts["model"], parts["loss"]
    assert data is not None  # noqa: S101 - it is loaded
    with section("privacy"):
        plan = _plan(config, budget, data.clients, model, schedule)
        if config.privacy.noise_by != "server" and data.present != data.clients:
            # The noise of their mean would reveal their number.
            remedy = f"every client sends something, and data.clients = {data.clients} is not how many there are"
            raise ConfigError(field="noise_by", value=config.privacy.noise_by, remedy=remedy)
    tensors = replace(ClientTensors.of(data), constant=_constant(config))
    engine = CohortEngine(model, tensors, config.local, _execution(config, chunk, plan), loss=loss)
    return ClientWork(**parts, engine=engine, plans=(plan,))


def _constant(config: Config) -> float:
    """The last feature of every example, by which a linear model learns its biases; 0 where it has biases."""
    linear = isinstance(config.model, LinearSection) and not config.model.bias
    return float(getattr(config.features, "constant", 0.0)) if linear else 0.0


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


def _plan(config: Config, budget: Budget, clients: int, model: Model, schedule: Schedule | None) -> Plan:
    wanted = config.privacy
    parts = sent_parts(model.parts, algorithm_of(config.local))
    cohort = _cohort(config, clients)
    plan = PlanConfig(
        members=clients,
        schedule=_schedule(config, cohort) if schedule is None else schedule,
        sampling=SAMPLING[wanted.sampling] if wanted.groups is None else Cyclic,
        noise_by=wanted.noise_by,
        colluders=wanted.colluders,
        clip=clip_of(wanted.clip, parts, cohort),
        accountants=ACCOUNTANTS if wanted.accountant == "tightest" else (wanted.accountant.upper(),),
    )
    return plan.calibrate(budget) if schedule is None else plan.plan(budget)


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
    """The schedule of training, after the round of the label distribution, if any."""
    share, wanted, rounds = config.local.label_distribution, config.privacy, config.privacy.rounds
    if share is not None and rounds < 2:
        remedy = "plan at least 2: the first is for local.label_distribution"
        raise ConfigError(field="rounds", value=rounds, remedy=remedy)
    rounds -= share is not None
    if wanted.grow_from is None:
        training = constant(rounds=rounds, cohort=cohort)
    else:
        training = growing(rounds=rounds, first_cohort=wanted.grow_from, last_cohort=cohort)
    return training if share is None else preceded(training, share=share)
