"""From a config to the objects that do the work. Whatever is wrong with a config or its data shows here, unspent."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from incrowd import _validate
from incrowd._random import Randomness, SeededRandomness, SystemRandomness
from incrowd.data import (
    Clients,
    Examples,
    Partition,
    Split,
    dirichlet,
    hold_out,
    iid,
    load_digits,
    load_mnist,
    load_table,
    lognormal_sizes,
    sorted_shards,
)
from incrowd.data.dealing import by_sizes
from incrowd.data.examples import Labels
from incrowd.errors import ConfigError
from incrowd.federated import FedAvg, ServerStep
from incrowd.learning import (
    CROSS_ENTROPY,
    LOSSES,
    SQUARED,
    ClientTensors,
    CohortEngine,
    Execution,
    LocalTraining,
    Loss,
    Model,
    linear,
    mlp,
    small_cnn,
)
from incrowd.learning.features import (
    FeatureMap,
    GlyphMetric,
    MomentNormalisation,
    OrientedEnergies,
    UnitNorm,
    compose,
    transform,
    transform_federated,
)
from incrowd.privacy.account.accounting import ACCOUNTANTS, Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.correlated_plan import CorrelatedPlan
from incrowd.privacy.plan.plan import SAMPLING, PlanConfig
from incrowd.privacy.plan.promise import Promise
from incrowd.privacy.plan.schedule import Schedule, constant, growing
from incrowd.privacy.release import PrivateRun
from incrowd.runs.config import (
    CnnSection,
    CommonSections,
    Config,
    DealtData,
    DigitsData,
    EnergyFeatures,
    MlpSection,
    MnistData,
    NoFeatures,
    TableData,
    UnitFeatures,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Federation:
    """Everything that a run needs but its ledger."""

    data: Clients
    engine: CohortEngine
    plan: Promise
    server: ServerStep
    randomness: Randomness

    def algorithm(self, config: Config, ledger: Ledger, *, label: str) -> FedAvg:
        """DP-FedAvg that is paid from this ledger, where it reserves the whole plan under this label."""
        size = self.engine.model.size
        private = PrivateRun(self.plan, ledger=ledger, randomness=self.randomness, size=size, label=label)
        with section("run"):
            return FedAvg(
                engine=self.engine,
                private=private,
                server=self.server,
                start=config.model.start,
                dropout=config.run.dropout,
                diagnose=config.run.diagnose,
            )


def assemble(
    config: Config,
    *,
    schedule: Schedule | None = None,
    chunk: int | None = None,
    data: Clients | None = None,
) -> Federation:
    """Load the data, build the model and the engine, calibrate the plan.

    A schedule and a chunk that are given, as a run that goes on does, are taken as they are; so are data, which are
    then those of this config with its features.

    Edge cases: correlated noise has no schedule; this and whatever else cannot be used is a `ConfigError` that names
    the section and the key, or a `DataError`.
    """
    data = featured(config, federated_data(config)) if data is None else data
    with section("local"):
        loss = loss_of(config.local.loss, data)
        local = LocalTraining(**config.local.model_dump(exclude={"loss"}), loss=loss)
    with section("model"):
        model = model_of(config, data, loss)
    engine = _engine(config, ClientTensors.of(data), model, local, chunk)
    with section("privacy"):
        plan = _plan(config, data.clients, model, schedule)
        _check_local(config, data)
    with section("server"):
        server = ServerStep(**config.server.model_dump())
    return Federation(data=data, engine=engine, plan=plan, server=server, randomness=randomness(config))


def federated_data(config: CommonSections) -> Clients:
    """The clients and their examples."""
    section_of = config.data
    with section("data"):
        if isinstance(section_of, TableData):
            return _table(section_of)
        split = _split(section_of)
        return Clients.of(split, _dealt(section_of, split.train.labels))


def _split(data: DigitsData | MnistData) -> Split:
    """What is dealt out, and what the server holds: the test examples, or some of the others, declared public."""
    split = load_digits() if data.name == "digits" else load_mnist(mnist_folder(data.folder))
    if data.validation is None:
        return split
    _validate.fraction(validation=data.validation)
    held_out = max(1, round(data.validation * len(split.train)))
    # Which ones they are does not depend on how the others are dealt, so that runs are compared on the same.
    return hold_out(split.train, name=split.name, test_examples=held_out, randomness=SeededRandomness(seed=0))


def whole_split(data: DigitsData | MnistData) -> Split:
    """The examples as they are, whatever is held out for validation."""
    return _split(data.model_copy(update={"validation": None}))


def untouched_test(config: Config) -> Examples | None:
    """The test examples, with features, of a config that holds examples out for validation; of others None."""
    if isinstance(config.data, TableData) or config.data.validation is None:
        return None
    with section("data"):
        test = whole_split(config.data).test
    wanted = config.features
    if test is None or isinstance(wanted, NoFeatures):
        return test
    with section("features"):
        return transform(_feature_map(wanted, test.shape), test, alone=not config.data.public)


def featured(config: CommonSections, data: Clients) -> Clients:
    """The same clients with features in place of their examples: each client's own work, which costs no privacy."""
    wanted = config.features
    if isinstance(wanted, NoFeatures):
        return data
    with section("features"):
        cache = None if wanted.cache is None else Path(wanted.cache)
        return transform_federated(
            _feature_map(wanted, data.examples.shape), data, cache=cache, alone=not config.data.public
        )


def randomness(config: CommonSections) -> Randomness:
    """Where noise, cohorts and first weights come from."""
    return SystemRandomness() if config.run.seed is None else _seeded("run", config.run.seed)


@contextmanager
def section(name: str) -> Iterator[None]:
    """Put the section's name before the field that an error names."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(field=f"{name}.{error.field}", value=error.value, remedy=error.remedy) from error


def _seeded(name: str, seed: int) -> SeededRandomness:
    with section(name):
        return SeededRandomness(seed=seed)


def _feature_map(wanted: UnitFeatures | EnergyFeatures, shape: tuple[int, ...]) -> FeatureMap:
    if isinstance(wanted, UnitFeatures):
        return UnitNorm(centred=wanted.centred)
    if len(shape) != 2:
        raise ConfigError(field="name", value="energies", remedy=f"they need grey images, these examples are {shape}")
    energies = OrientedEnergies(octave=wanted.octave, stride=wanted.stride)
    base = compose(MomentNormalisation(), energies) if wanted.upright else energies
    if wanted.dimensions is None:
        return compose(base, UnitNorm(centred=True))
    return GlyphMetric(base=base, shape=(shape[0], shape[1]), dimensions=wanted.dimensions)


def mnist_folder(folder: str | None) -> Path:
    """Where the four files are."""
    if folder is None:
        raise ConfigError(field="folder", value=None, remedy="name the folder that holds mnist/, or give --data DIR")
    inner = Path(folder) / "mnist"
    return inner if inner.is_dir() else Path(folder)


def _dealt(data: DealtData, labels: Labels) -> Partition:
    source = SeededRandomness(seed=data.seed)
    if data.partition == "shards":
        return sorted_shards(labels, clients=data.clients, per_client=data.per_client, randomness=source)
    if data.alpha is not None:
        return dirichlet(labels, clients=data.clients, alpha=data.alpha, randomness=source)
    if data.sigma is not None:
        sizes = lognormal_sizes(clients=data.clients, examples=len(labels), sigma=data.sigma, randomness=source)
        return by_sizes(labels, sizes=sizes, randomness=source)
    return iid(labels, clients=data.clients, randomness=source)


def _table(data: TableData) -> Clients:
    folder = Path(data.folder or ".")
    return load_table(
        folder / data.file,
        columns=data.meaning(),
        test=None if data.test_file is None else folder / data.test_file,
        clients=data.clients,
        public=data.public,
        test_clients=data.test_clients,
        holdout_clients=data.holdout_clients,
        names=data.names,
    )


def loss_of(name: str | None, data: Clients) -> Loss:
    """The loss of this name, or the one that the labels suggest."""
    classes = data.examples.classes
    if name is None:
        return SQUARED if classes is None else CROSS_ENTROPY
    if classes is not None and name in ("squared", "poisson"):
        raise ConfigError(
            field="loss", value=name, remedy="it is for labels that are numbers, and these are classes: leave it out"
        )
    return LOSSES[name]


def model_of(config: CommonSections, data: Clients, loss: Loss) -> Model:
    """The model, for these examples and labels."""
    shape, wanted = data.examples.shape, config.model
    outputs = (data.examples.classes or 1) if loss is CROSS_ENTROPY else 1
    if isinstance(wanted, CnnSection):
        if len(shape) not in (2, 3) or shape[-1] != shape[-2]:
            raise ConfigError(field="kind", value="cnn", remedy=f"it needs square images, these examples are {shape}")
        return small_cnn(side=shape[-1], channels=shape[0] if len(shape) == 3 else 1, outputs=outputs)
    if isinstance(wanted, MlpSection):
        return mlp((math.prod(shape), *wanted.hidden, outputs), bias=wanted.bias)
    return linear(math.prod(shape), outputs, bias=wanted.bias)


def _engine(
    config: Config, tensors: ClientTensors, model: Model, local: LocalTraining, chunk: int | None
) -> CohortEngine:
    wanted = config.run
    with section("run"):
        execution = Execution(
            device=wanted.device,
            threads=_processors() if wanted.threads is None else wanted.threads,
            chunk=wanted.chunk if chunk is None else chunk,
        )
    return CohortEngine(model, tensors, local, execution)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _plan(config: Config, clients: int, model: Model, schedule: Schedule | None) -> Promise:
    wanted = config.privacy
    budget = Budget(epsilon=wanted.epsilon, delta=wanted.delta)
    if wanted.groups is not None:
        if schedule is not None:
            raise ConfigError(field="schedule", value=schedule, remedy="correlated noise has none: leave it out")
        return CorrelatedPlan(
            clients=clients,
            rounds=wanted.rounds,
            groups=wanted.groups,
            budget=budget,
            clip=wanted.clip.clip(model.parts, clients / wanted.groups),
            buffers=wanted.buffers,
        )
    cohort = _cohort(config, clients)
    plan = PlanConfig(
        clients=clients,
        schedule=_schedule(config, cohort) if schedule is None else schedule,
        sampling=SAMPLING[wanted.sampling],
        place=wanted.place,
        clip=wanted.clip.clip(model.parts, cohort),
        accountants=ACCOUNTANTS if wanted.accountant == "tightest" else (wanted.accountant.upper(),),
    )
    return plan.calibrate(budget) if schedule is None else plan.plan(budget)


def _check_local(config: Config, data: Clients) -> None:
    """Clients that noise for themselves are all there, or the noise of their mean would tell how many are."""
    if config.privacy.place == "local" and data.present != data.clients:
        remedy = f"every client sends something, and data.clients = {data.clients} is not how many there are"
        raise ConfigError(field="place", value="local", remedy=remedy)


def _cohort(config: Config, clients: int) -> float:
    wanted = config.privacy
    if wanted.cohort is not None:
        return wanted.cohort
    if wanted.sampling != "everyone":
        raise ConfigError(field="cohort", value=None, remedy="say how many clients take part in a round")
    return float(clients)


def _schedule(config: Config, cohort: float) -> Schedule:
    wanted = config.privacy
    if wanted.grow_from is None:
        return constant(rounds=wanted.rounds, cohort=cohort)
    return growing(rounds=wanted.rounds, first_cohort=wanted.grow_from, last_cohort=cohort)
