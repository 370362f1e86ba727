from collections.abc import Callable

import numpy as np
import pytest

from incrowd import Local, ServerOptimizer
from incrowd._random import Randomness, SeededRandomness
from incrowd.algorithms import ClientCohort, FedAvg
from incrowd.data import Clients, Examples, Partition
from incrowd.learning import ClientTensors, CohortEngine, Execution, linear
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, constant
from incrowd.privacy.release import PrivateRun

CLIENTS, FEATURES, CLASSES = 12, 5, 3
BUDGET = Budget(epsilon=50.0, delta=1e-5)


@pytest.fixture(scope="session")
def data() -> Clients:
    """Twelve clients of 3 to 14 examples of three separable classes, and a test set."""
    generator = np.random.Generator(np.random.PCG64(8))
    centres = generator.normal(size=(CLASSES, FEATURES)) * 2

    def examples(count: int) -> Examples:
        labels = generator.integers(0, CLASSES, count)
        features = centres[labels] + generator.normal(size=(count, FEATURES))
        return Examples(features=features.astype(np.float32), labels=labels, classes=CLASSES)

    train, test = examples(sum(range(3, 15))), examples(200)
    lists = np.split(np.arange(len(train)), np.cumsum(range(3, 14)))
    return Clients(examples=train, partition=Partition.of(lists), test=test)


@pytest.fixture(scope="session")
def plan() -> Plan:
    config = PlanConfig(members=CLIENTS, schedule=constant(rounds=6, cohort=CLIENTS), sampling=Everyone)
    return config.calibrate(BUDGET)


Maker = Callable[..., FedAvg[ClientCohort]]


@pytest.fixture
def make(data: Clients, plan: Plan) -> Maker:
    """A federation over the data; arguments replace what it is made of."""

    def made(
        *,
        plan: Plan = plan,
        server: ServerOptimizer | None = None,
        randomness: Randomness | None = None,
        local: Local | None = None,
        ledger: Ledger | None = None,
        init_scale: float = 1.0,
        **rest: float | bool,
    ) -> FedAvg[ClientCohort]:
        model = linear(FEATURES, CLASSES)
        local = local or Local(learning_rate=0.1, batch_size=4)
        engine = CohortEngine(model, ClientTensors.of(data), local, Execution(chunk=3))
        ledger = ledger or Ledger.in_memory(budget=BUDGET, relation=plan.relation)
        source = randomness or SeededRandomness(2)
        private = PrivateRun(plan, ledger=ledger, randomness=source, size=engine.size)
        cohort = ClientCohort(engine=engine, private=private, **rest)  # type: ignore[arg-type]  # by name
        return FedAvg(cohort, server=server or ServerOptimizer(), init_scale=init_scale)

    return made
