"""Table 1 of Geyer, Klein and Nabi (2017): its rows, and one private federation for each seed.

The data set is sorted by label and cut into shards of 300; every client holds two. All that is released is paid for:
contributions are clipped, summed, charged and noised by the same code as in any other run.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from incrowd._random import Floats, SeededRandomness
from incrowd.data import FederatedData, Split, sorted_shards
from incrowd.errors import DataError
from incrowd.federated import FedAvg, score
from incrowd.learning import ClientTensors, CohortEngine, Execution, Model
from incrowd.privacy.accounting import Budget
from incrowd.privacy.ledger import Ledger
from incrowd.privacy.plan import Plan
from incrowd.privacy.release import PrivateRun
from incrowd.reproduce.setup import Setup

PER_CLIENT = 600
EPSILON = 8.0

Say = Callable[[str], None]


def silent(_line: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table, as printed."""

    clients: int
    delta: float
    accuracy: float
    rounds: int
    communications: int


ROWS = {
    row.clients: row
    for row in (
        Row(clients=100, delta=1e-3, accuracy=0.78, rounds=11, communications=550),
        Row(clients=1000, delta=1e-5, accuracy=0.92, rounds=54, communications=11_880),
        Row(clients=10_000, delta=1e-6, accuracy=0.96, rounds=412, communications=209_500),
    )
}
"""The private rows of the paper by their number of clients; their epsilon is 8."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one setup reached: the accuracy of the released model for each seed, and what it took."""

    plan: Plan
    accuracies: tuple[float, ...]
    weights: int
    seconds: float

    @property
    def accuracy(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.accuracies)

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds; None for one seed."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None


def measure(
    setup: Setup, split: Split, *, clients: int, budget: Budget, seeds: Sequence[int], say: Say = silent
) -> Measured:
    """Run a federation for each seed, which redraws partition, cohorts and noise. `split` is as the model sees it."""
    if split.test is None or split.train.classes is None:
        raise DataError("table 1 states accuracies: give test examples, and labels that are classes")
    start = time.perf_counter()
    plan = setup.plan(clients).calibrate(budget)
    model = setup.model(int(np.prod(split.train.shape)), split.train.classes)
    accuracies = []
    for seed in seeds:
        released = learn(setup, plan, model, split, seed=seed)
        accuracies.append(score(model, released, split.test).accuracy or 0.0)
        say(f"  seed {seed}: accuracy {accuracies[-1]:.4f} after {time.perf_counter() - start:.0f} s")
    seconds = time.perf_counter() - start
    return Measured(plan=plan, accuracies=tuple(accuracies), weights=model.size, seconds=seconds)


def learn(setup: Setup, plan: Plan, model: Model, split: Split, *, seed: int) -> Floats:
    """One federation from its first round to its last: the weights that it releases."""
    data = dealt(split, clients=plan.config.clients, seed=seed)
    randomness = SeededRandomness(seed=seed)
    engine = CohortEngine(model, ClientTensors.of(data), setup.local, Execution(threads=processors()))
    with Ledger.in_memory(budget=plan.budget, relation=plan.relation) as ledger:
        private = PrivateRun(plan, ledger=ledger, randomness=randomness, size=model.size)
        algorithm = FedAvg(engine=engine, private=private, server=setup.server)
        state = algorithm.init()
        state = replace(state, weights=setup.start * state.weights)
        for _ in range(plan.rounds):
            state, _ = algorithm.apply(state)
    return state.published


def dealt(split: Split, *, clients: int, seed: int) -> FederatedData:
    """Two shards of 300 examples of one label for every client; a small data set is repeated."""
    partition = sorted_shards(
        split.train.labels, clients=clients, per_client=PER_CLIENT, randomness=SeededRandomness(seed=seed)
    )
    return FederatedData.of(split, partition)


def processors() -> int:
    """How many processors there are for this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
