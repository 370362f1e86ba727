"""A run that protects records whose silos send sums to a server: the server adds the noise, once for all silos."""

from dataclasses import dataclass

from incrowd import _validate
from incrowd.algorithms import FedAvg, RecordCohort
from incrowd.errors import ConfigError
from incrowd.learning import Execution, Loss, Model
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import DataIdentity
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Schedule, constant
from incrowd.privacy.release import PrivateRun
from incrowd.runs.build import NOTHING, Given, init_scale_of, randomness, section
from incrowd.runs.client_work import LedgerWork
from incrowd.runs.identity import identity_of_records
from incrowd.runs.silo_build import Silos, named_as_in_the_file, silos_of
from incrowd.runs.silo_config import SiloConfig
from incrowd.settings.descent import Descent


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordWork(LedgerWork):
    """The run; its silos are simulated here, each with an engine and a declared number of records."""

    config: SiloConfig
    silos: Silos
    engines: tuple[BatchedRecords, ...]

    @property
    def model(self) -> Model:
        """See `LedgerWork.model`."""
        return self.silos.model

    @property
    def loss(self) -> Loss:
        """See `LedgerWork.loss`."""
        return self.silos.loss

    def identity(self) -> DataIdentity:
        """See `LedgerWork.identity`."""
        return identity_of_records(self.config, self.held)

    def algorithm(self, ledger: Ledger, *, label: str) -> FedAvg[RecordCohort]:
        """See `LedgerWork.algorithm`."""
        size = self.model.size
        private = PrivateRun(self.plan, ledger=ledger, randomness=self.randomness, size=size, label=label)
        cohort = RecordCohort(
            engines=self.engines, records=self.silos.declared, private=private, threads=self.config.run.threads
        )
        return FedAvg(cohort, server=self.config.server, init_scale=init_scale_of(self.config))


def assemble_records(config: SiloConfig, *, given: Given = NOTHING, schedule: Schedule | None = None) -> RecordWork:
    """Load the data, build the model and the engines, calibrate the plan, all unspent.

    The rounds of a given schedule, as that of a run that goes on, are taken as they are.

    Edge cases: unusable settings or data are a `ConfigError` that names the section and the key, or a `DataError`.
    """
    silos = silos_of(config, given)
    with named_as_in_the_file():
        plan = _plan(config, sum(silos.declared), schedule)
        plan.training(silos.model.size)
    with section("run"):
        execution = Execution(
            device=config.run.device,
            compile=config.run.compile,
            contributions=plan.config.schedule.communications,
        )
    engines = tuple(
        BatchedRecords(silos.model, records, Descent(), loss=silos.loss, execution=execution)
        for records in silos.records
    )
    return RecordWork(
        config=config,
        data=silos.data,
        held=silos.held,
        plan=plan,
        randomness=randomness(config),
        silos=silos,
        engines=engines,
    )


def _plan(config: SiloConfig, records: int, schedule: Schedule | None) -> Plan:
    wanted, batch = config.privacy, config.local.batch_size
    if isinstance(wanted.epsilon, tuple):
        remedy = "one plan protects the records of all silos: give one number"
        raise ConfigError(field="epsilon", value=wanted.epsilon, remedy=remedy)
    budget = Budget(epsilon=wanted.epsilon, delta=wanted.delta)
    cohort = float(records if batch is None else batch)
    _validate.at_most(records, "the declared number of all records", batch_size=cohort)
    plan = PlanConfig(
        members=records,
        schedule=constant(rounds=wanted.rounds, cohort=cohort) if schedule is None else schedule,
        unit="record",
        noise_by="server",
        clip=FixedClip(clip_norm=wanted.clip_norm),
    )
    return plan.calibrate(budget) if schedule is None else plan.plan(budget)
