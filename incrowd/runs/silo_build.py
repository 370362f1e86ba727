"""A run that protects the records of silos: what its settings come to. Whatever is wrong shows here, unspent."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from incrowd._random import Randomness
from incrowd.data import Clients
from incrowd.errors import BudgetExceeded, ConfigError, DataError
from incrowd.federated import Account, Silo, SiloFedAvg, SiloPlan
from incrowd.federated.counter import Counter
from incrowd.federated.silo_fedavg import Ask
from incrowd.learning import ClientTensors, Execution, Loss, Model
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.learning.dpsgd.records import RecordEngine, Records
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.account.calibrate import CONSTANT_NOISE, Pace, named
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone
from incrowd.privacy.plan.schedule import constant
from incrowd.privacy.plan.silo_plan import RELATION
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
    plans: tuple[SiloPlan, ...]
    records: tuple[Records, ...]
    engines: tuple[RecordEngine, ...]
    clients: Plan | None
    randomness: Randomness
    noise_multiplier: float

    @property
    def elsewhere(self) -> bool:
        """Whether the silos are real parties, whose records and ledgers are their own."""
        return isinstance(self.config.data, Parties)

    def silo(self, place: int, ledger: Ledger, *, label: str) -> Silo:
        """One silo, on its ledger."""
        plan = self.plans[place]
        counts = plan.count_std is not None or plan.report_std is not None
        return Silo(
            plan,
            Account(ledger=ledger, randomness=self.randomness, label=label, place=place),
            engine=self.engines[place],
            counter=Counter(model=self.model, records=self.records[place]) if counts else None,
            threads=self.config.run.threads,
        )

    def algorithm(self, asks: tuple[Ask, ...], ledger: Ledger | None, *, label: str) -> SiloFedAvg:
        """The federation; the ledger, and the label there, are the server's, where silos are protected as a whole."""
        private = None
        if self.clients is not None and ledger is not None:
            size = self.model.size
            private = PrivateRun(self.clients, ledger=ledger, randomness=self.randomness, size=size, label=label)
        by_records = self.config.privacy.weigh == "by records"
        return SiloFedAvg(
            asks=asks,
            model=self.model,
            server=self.config.server,
            rounds=self.config.privacy.rounds,
            randomness=self.randomness,
            weights=[float(plan.records) for plan in self.plans] if by_records else None,
            private=private,
            init_scale=init_scale_of(self.config),
        )


def assemble_silos(config: SiloConfig, *, given: Given = NOTHING) -> SiloFederation:
    """Load the data, build the models and engines, state the plans, and see that somebody can pay for the first round.

    Edge cases: whatever cannot be used is a `ConfigError` that names the section and the key, or a `DataError`; budgets
    too small for any silo's first round are a `BudgetExceeded`.
    """
    source = federated_data(config, given)
    data = featured(config, source)
    check_watched(config.stop, data, counted=config.privacy.count_std is not None)
    wanted, elsewhere = config.local, isinstance(config.data, Parties)
    with section("local"):
        loss = loss_of(wanted.loss, data.examples, given)
    with section("model"):
        model = model_of(config, data.examples, loss, given)
    check_model(model, data, loss)
    with section("data"):
        _check_silos(data)
    names = _names(data)
    held = () if elsewhere else _records(data)
    with _named_as_in_the_file():
        plans = tuple(_plan(config, place, records, names) for place, records in enumerate(_declared(config, data)))
        for plan, records in zip(plans, held, strict=not elsewhere):
            plan.check(len(records))
        _check_counts(config, data, plans)
        clients = _client_level(config, model, data.clients)
        first = _first_noise(plans)
    with section("run"):
        execution = Execution(
            device=config.run.device,
            compile=config.run.compile,
            contributions=sum(plan.contributions for plan in plans),
        )
    engines = tuple(BatchedRecords(model, records, wanted, loss=loss, execution=execution) for records in held)
    return SiloFederation(
        config=config,
        data=data,
        held=source,
        model=model,
        loss=loss,
        plans=plans,
        records=held,
        engines=engines,
        clients=clients,
        randomness=randomness(config),
        noise_multiplier=first,
    )


def _records(data: Clients) -> tuple[Records, ...]:
    tensors = ClientTensors.of(data)
    return tuple(Records.of(tensors, client) for client in range(data.clients))


@contextmanager
def _named_as_in_the_file() -> Iterator[None]:
    """Put the section's name before the field of a plan that an error names."""
    try:
        yield
    except ConfigError as error:
        name = "local" if error.field in LocalRecords.model_fields else "privacy"
        field = "noise_multiplier" if error.field == "noise" else error.field
        raise ConfigError(field=f"{name}.{field}", value=error.value, remedy=error.remedy) from error


def _first_noise(plans: Sequence[SiloPlan]) -> float:
    """The noise of the first round, of the first silo that could pay for it from an unspent budget.

    Edge cases: none could: `BudgetExceeded`.
    """
    refusals = []
    for plan in plans:
        try:
            ledger = Ledger.in_memory(budget=plan.budget, relation=RELATION)
            if plan.report_runs:
                ledger.reserve(plan.report_runs, label="report")
            multiplier = plan.noise_multiplier(0, spent=ledger.commitments())
            ledger.charge(plan.event(multiplier))
        except BudgetExceeded as error:
            refusals.append(error)
        else:
            return multiplier
    raise refusals[0]


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


def _plan(config: SiloConfig, place: int, records: int, names: Sequence[str]) -> SiloPlan:
    wanted, local, silos, name = config.privacy, config.local, len(names), names[place]
    noise: Pace | float = CONSTANT_NOISE if wanted.pace is None else named(wanted.pace)
    if wanted.noise_multiplier is not None:
        noise = wanted.noise_multiplier
    return SiloPlan(
        name=name,
        budget=Budget(epsilon=_each(wanted.epsilon, silos, field="epsilon")[place], delta=wanted.delta),
        rounds=wanted.rounds,
        records=records,
        batch_size=records if local.batch_size is None else local.batch_size,
        epochs=local.epochs,
        clip_norm=wanted.clip_norm,
        noise=noise,
        most_noise=wanted.most_noise,
        count_std=wanted.count_std,
        report_std=wanted.report_std,
        physical_batch=local.physical_batch,
    )


def _check_counts(config: SiloConfig, data: Clients, plans: Sequence[SiloPlan]) -> None:
    for name in ("count_std", "report_std"):
        if getattr(config.privacy, name) is not None and data.examples.classes is None:
            raise DataError(f"{name} counts right labels, and these labels are numbers, not classes: leave it out")
    if config.privacy.report_std is not None:
        cells = (data.examples.classes or 1) * ((data.examples.classes or 1) + 1)
        for plan in plans:
            plan.check_report(cells)


def _client_level(config: SiloConfig, model: Model, silos: int) -> Plan | None:
    wanted = config.privacy.clients
    if wanted is None:
        return None
    with section("clients"):
        plan = PlanConfig(
            clients=silos,
            schedule=constant(rounds=config.privacy.rounds, cohort=silos),
            sampling=Everyone,
            clip=clip_of(wanted.clip, model.parts, silos),
        )
        return plan.calibrate(Budget(epsilon=wanted.epsilon, delta=wanted.delta))
