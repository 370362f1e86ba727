"""A run that protects the records of silos: what its settings come to. Whatever is wrong shows here, unspent."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.algorithms import FedAvg, Silo, SiloCohort
from incrowd.algorithms.counts import Counter
from incrowd.algorithms.silos import Ask, AskAll
from incrowd.data import Clients
from incrowd.errors import ConfigError, DataError
from incrowd.learning import ClientTensors, Execution, Loss, Model
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.learning.dpsgd.records import RecordEngine, Records
from incrowd.privacy.account.accounting import Budget, most_rounds, price
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, Schedule, constant
from incrowd.privacy.records import RecordRun
from incrowd.privacy.release import PrivateRun
from incrowd.runs.build import (
    NOTHING,
    Given,
    check_model,
    featured,
    federated_data,
    init_scale_of,
    loss_of,
    model_of,
    randomness,
    section,
)
from incrowd.runs.clip_config import clip_of
from incrowd.runs.data_config import Parties
from incrowd.runs.silo_config import LocalRecords, SiloConfig
from incrowd.runs.stopping import check_watched


@dataclass(frozen=True, kw_only=True, eq=False)
class SiloFederation:
    """Everything that a run of silos needs but its ledgers. Of real parties there are neither records nor engines."""

    config: SiloConfig
    data: Clients
    held: Clients
    model: Model
    loss: Loss
    names: tuple[str, ...]
    plans: tuple[Plan, ...]
    records: tuple[Records, ...]
    engines: tuple[RecordEngine, ...]
    clients: Plan | None
    randomness: Randomness

    @property
    def noise_multiplier(self) -> float:
        """The noise of the first silo's steps."""
        return self.plans[0].noise_multiplier

    @property
    def elsewhere(self) -> bool:
        """Whether the silos are real parties, whose records and ledgers are their own."""
        return isinstance(self.config.data, Parties)

    def silo(self, place: int, ledger: Ledger, *, label: str) -> Silo:
        """One silo, on its ledger."""
        plan = self.plans[place]
        counts = plan.config.report_std is not None
        return Silo(
            self.names[place],
            RecordRun(plan, ledger=ledger, randomness=self.randomness, label=label, place=place),
            engine=self.engines[place],
            counter=Counter(model=self.model, records=self.records[place]) if counts else None,
            threads=self.config.run.threads,
            physical_batch=self.config.local.physical_batch,
        )

    def algorithm(
        self, asks: tuple[Ask, ...], ledger: Ledger | None, *, label: str, together: AskAll | None = None
    ) -> FedAvg[SiloCohort]:
        """The federation; the ledger, and the label there, are the server's, where silos are protected as a whole."""
        private = None
        if self.clients is not None and ledger is not None:
            size = self.model.size
            private = PrivateRun(self.clients, ledger=ledger, randomness=self.randomness, size=size, label=label)
        by_records = self.config.privacy.weigh == "by records"
        cohort = SiloCohort(
            asks=asks,
            model=self.model,
            rounds=self.config.privacy.rounds,
            randomness=self.randomness,
            weights=[float(plan.config.members) for plan in self.plans] if by_records else None,
            private=private,
            together=together,
        )
        return FedAvg(cohort, server=self.config.server, init_scale=init_scale_of(self.config))


@dataclass(frozen=True, kw_only=True, eq=False)
class Silos:
    """The silos of a run before any plan: `held` are theirs before the feature map replaced their examples.

    Silos that are real parties have no `records` here.
    """

    data: Clients
    held: Clients
    model: Model
    loss: Loss
    names: tuple[str, ...]
    records: tuple[Records, ...]
    declared: tuple[int, ...]

    @property
    def elsewhere(self) -> bool:
        """Whether the silos are real parties."""
        return not self.records


def silos_of(config: SiloConfig, given: Given = NOTHING) -> Silos:
    """Load the data and build the model of a run of silos; see `assemble_silos`."""
    held = federated_data(config, given)
    data = featured(config, held)
    check_watched(config.stop, data)
    with section("local"):
        loss = loss_of(config.local.loss, data.examples, given)
    with section("model"):
        model = model_of(config, data.examples, loss, given)
    check_model(model, data, loss)
    with section("data"):
        _check_silos(data)
    with named_as_in_the_file():
        declared = _declared(config, data)
    return Silos(
        data=data,
        held=held,
        model=model,
        loss=loss,
        names=_names(data),
        records=() if isinstance(config.data, Parties) else _records(data),
        declared=declared,
    )


def assemble_silos(config: SiloConfig, *, given: Given = NOTHING) -> SiloFederation:
    """Load the data, build the models and engines, state the plans, all unspent.

    Edge cases: whatever cannot be used is a `ConfigError` that names the section and the key, or a `DataError`.
    """
    if config.privacy.noise_by == "server":
        remedy = 'models are attacked of silos that noise their own steps: use "party"'
        raise ConfigError(field="privacy.noise_by", value="server", remedy=remedy)
    silos = silos_of(config, given)
    data, model, names = silos.data, silos.model, silos.names
    with named_as_in_the_file():
        _validate.non_negative(room=config.privacy.room)
        plans = _plans(config, silos.declared)
        for name, plan, records in zip(names, plans, silos.records, strict=not silos.elsewhere):
            plan.check_held(len(records), silo=name)
        _check_report(data, plans)
        clients = _client_level(config, model, data.clients)
    with section("run"):
        execution = Execution(
            device=config.run.device,
            compile=config.run.compile,
            contributions=sum(map(_contributions, plans)),
        )
    engines = tuple(
        BatchedRecords(model, records, config.local, loss=silos.loss, execution=execution) for records in silos.records
    )
    return SiloFederation(
        config=config,
        data=data,
        held=silos.held,
        model=model,
        loss=silos.loss,
        names=names,
        plans=plans,
        records=silos.records,
        engines=engines,
        clients=clients,
        randomness=randomness(config),
    )


def _records(data: Clients) -> tuple[Records, ...]:
    tensors = ClientTensors.of(data)
    return tuple(Records.of(tensors, client) for client in range(data.clients))


@contextmanager
def named_as_in_the_file() -> Iterator[None]:
    """Put the section's name before the field of a plan that an error names."""
    try:
        yield
    except ConfigError as error:
        name = "local" if error.field in LocalRecords.model_fields else "privacy"
        raise ConfigError(field=f"{name}.{error.field}", value=error.value, remedy=error.remedy) from error


def _check_silos(data: Clients) -> None:
    """Silos are parties that one knows, so their number is exact."""
    if data.present != data.clients:
        remedy = "every silo has to be there, and these are not how many there are: state how many silos take part"
        raise ConfigError(field="clients", value=data.clients, remedy=remedy)


def _names(data: Clients) -> tuple[str, ...]:
    """What the silos are called: by names that are declared public, or by their places."""
    return data.names or tuple(f"silo-{place}" for place in range(1, data.clients + 1))


def _declared(config: SiloConfig, data: Clients) -> tuple[int, ...]:
    """The public number of records of each silo: what the settings declare; of public data also what is there."""
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


Figure = TypeVar("Figure", int, float)


def _each(wanted: Figure | tuple[Figure, ...], silos: int, *, field: str) -> tuple[Figure, ...]:
    """One for each silo, of one for all or a list."""
    each = wanted if isinstance(wanted, tuple) else (wanted,) * silos
    if len(each) != silos:
        raise ConfigError(field=field, value=each, remedy=f"give one for each of the {silos} silos, or one")
    return each


def _plans(config: SiloConfig, records: Sequence[int]) -> tuple[Plan, ...]:
    """One for each silo; equal ones are priced once."""
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
                report_std=wanted.report_std,
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


def _contributions(plan: Plan) -> float:
    """How many records are expected to take part in steps, in all rounds together."""
    return plan.config.schedule.communications * plan.config.steps


def _check_report(data: Clients, plans: Sequence[Plan]) -> None:
    if plans[0].config.report_std is None:
        return
    if data.examples.classes is None:
        raise DataError("report_std counts right labels, and these labels are numbers, not classes: leave it out")
    for plan in plans:
        plan.check_report(data.examples.classes * (data.examples.classes + 1))


def _client_level(config: SiloConfig, model: Model, silos: int) -> Plan | None:
    wanted = config.privacy.clients
    if wanted is None:
        return None
    with section("clients"):
        plan = PlanConfig(
            members=silos,
            schedule=constant(rounds=config.privacy.rounds, cohort=silos),
            sampling=Everyone,
            clip=clip_of(wanted.clip, model.parts, silos),
        )
        return plan.calibrate(Budget(epsilon=wanted.epsilon, delta=wanted.delta))
