"""Small silos: a few records each, and batches of all of them unless said otherwise, whose price takes no time."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from incrowd._random import Floats, Randomness, SeededRandomness, Stream
from incrowd.algorithms.silos import Silo
from incrowd.learning import linear
from incrowd.learning.dpsgd.engine import BatchedRecords, Records, StepNoise, Trained
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.grid import RecordTraining
from incrowd.privacy.paid import Owner, RecordRun
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.settings import Descent

BUDGET = Budget(epsilon=4.0, delta=1e-5)
RECORDS, FEATURES, CLASSES, ROUNDS = 40, 5, 3, 4
MODEL = linear(FEATURES, CLASSES)
SEEDED = SeededRandomness(seed=3)
CENTRES = np.random.default_rng(8).normal(size=(CLASSES, FEATURES)) * 2


def records(place: int = 0, *, count: int = RECORDS) -> Records:
    """Records of three separable classes."""
    generator = np.random.default_rng(place)
    labels = generator.integers(0, CLASSES, count)
    features = CENTRES[labels] + generator.normal(size=(count, FEATURES))
    return Records(features=torch.from_numpy(features.astype(np.float32)), labels=torch.from_numpy(labels))


def a_few() -> Records:
    """Records that say what others look like."""
    return records(count=2)


def plan(*, budget: Budget = BUDGET, noise: float | None = None, **changes: Any) -> Plan:
    """Four rounds of two steps, each about all records: calibrated, unless the noise is given."""
    given: dict[str, Any] = {"records": RECORDS, "rounds": ROUNDS, "clip_norm": 1.0, "epochs": 2} | changes
    if noise is None:
        return PlanConfig.of_records(**given).calibrate(budget)
    return PlanConfig.of_records(**given, noise_multiplier=noise).plan(budget)


def ledger(budget: Budget = BUDGET) -> Ledger:
    """One that nobody keeps."""
    return Ledger.in_memory(budget=budget, relation=Relation.ADD_OR_REMOVE_ONE)


def paying(
    its_plan: Plan | None = None,
    its_ledger: Ledger | None = None,
    *,
    randomness: Randomness = SEEDED,
    place: int = 0,
    label: str = "run",
    owner: Owner | None = None,
) -> RecordRun:
    """Rounds that are paid from a ledger of the plan's budget, unless one is given."""
    its_plan = plan() if its_plan is None else its_plan
    its_ledger = ledger(its_plan.budget) if its_ledger is None else its_ledger
    return RecordRun(its_plan, ledger=its_ledger, randomness=randomness, label=label, place=place, owner=owner)


def silo(run: RecordRun | None = None, *, engine: Any = None, name: str = "north") -> Silo:
    """A silo that learns a linear model."""
    run = paying() if run is None else run
    engine = BatchedRecords(MODEL, records(run.place), Descent(learning_rate=0.5)) if engine is None else engine
    return Silo(name, run, engine=engine)


def right(weights: Floats, held: Records) -> float:
    """The share of some records that weights get right."""
    return float((MODEL.with_weights(weights)(held.features).argmax(1) == held.labels).double().mean())


def zeros() -> Floats:
    """Weights to begin with."""
    return np.zeros(MODEL.size)


@dataclass
class Curious:
    """An engine that watches what it is given, and sends the mean of the noised sums."""

    ledger: Ledger
    calls: int | None = None
    seen: list[tuple[RecordTraining, float]] = field(default_factory=list)
    sums: list[Floats] = field(default_factory=list)
    threads: int = 0
    size: int = MODEL.size
    held: int = RECORDS
    third_party: str = ""

    def rehearsal(self, records: int) -> BatchedRecords:
        """One that is not watched."""
        return BatchedRecords(MODEL, a_few().made_up(records), Descent(learning_rate=0.5))

    def train(
        self, weights: ArrayLike | torch.Tensor, training: RecordTraining, *, noise: StepNoise, batches: Stream
    ) -> Trained:
        """Note what is on the ledger already, and ask for noise."""
        self.seen.append((training, self.ledger.spent().epsilon))
        self.threads = torch.get_num_threads()
        for _ in range(training.steps if self.calls is None else self.calls):
            self.sums.append(noise(torch.zeros(MODEL.size, dtype=torch.float64)).numpy())
        return Trained(weights=torch.as_tensor(np.mean(self.sums, axis=0), dtype=torch.float32), dropped=0)
