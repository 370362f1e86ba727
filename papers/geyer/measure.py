"""Table 1 of Geyer, Klein and Nabi (2017): its rows, and one private federation for each seed.

The data set is sorted by label and cut into shards of 300; every client holds two. All that is released is paid for:
contributions are clipped, summed, charged and noised by the same code as in any other run.
"""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.seeds import Say, repeated, silent, spread
from incrowd import Budget, ConfigError, DataError, Ledger, Plan, PrivateRun, SeededRandomness
from incrowd.algorithms import ClientCohort, FedAvg, RoundReport, State, score
from incrowd.data import Clients, Examples, Split, sorted_shards
from incrowd.learning import ClientTensors, CohortEngine, Execution, Model
from papers.geyer.paper import PaperSetup
from papers.geyer.setup import Setup

PER_CLIENT = 600
EPSILON = 8.0

AnySetup = Setup | PaperSetup


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

PLAIN_ROW = Row(clients=100, delta=1.0, accuracy=0.97, rounds=380, communications=38_000)
"""The row without privacy, which delta = 1 says, too."""


def check_rows(rows: Sequence[int]) -> None:
    """Refuse a number of clients that is no row of the paper."""
    for clients in rows:
        if clients not in ROWS:
            raise ConfigError(field="rows", value=clients, remedy=f"give some of {', '.join(map(str, ROWS))}")


@dataclass(frozen=True, kw_only=True)
class Point:
    """The accuracy of the released model after so many rounds."""

    round: int
    accuracy: float


Curve = list[Point]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one setup reached: the accuracy of the released model for each seed, what it took, and what is claimed."""

    plan: Plan
    accuracies: tuple[float, ...]
    weights: int
    seconds: float
    claim: Mapping[str, object]

    @property
    def accuracy(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.accuracies)

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds; None for one seed."""
        return spread(self.accuracies)


def measure(
    setup: AnySetup, split: Split, *, clients: int, budget: Budget, seeds: Sequence[int], say: Say = silent
) -> Measured:
    """Run a federation for each seed, which redraws partition, cohorts and noise. `split` is as the model sees it."""
    plan = setup.promise(clients, budget)

    def follow(seed: int) -> Curve:
        return curve(setup, plan, split, seed=seed, every=plan.rounds)

    claim, weights = setup.stated(plan, budget), shaped(setup.model, split).size
    return followed(follow, plan=plan, claim=claim, weights=weights, seeds=seeds, say=say)


def followed(
    follow: Callable[[int], Curve],
    *,
    plan: Plan,
    claim: Mapping[str, object],
    weights: int,
    seeds: Sequence[int],
    say: Say = silent,
) -> Measured:
    """What came out at the end of the curve of each seed."""
    repeats = repeated(lambda seed: follow(seed)[-1].accuracy, seeds=seeds, told="accuracy {:.4f}".format, say=say)
    return Measured(plan=plan, accuracies=tuple(repeats.runs), weights=weights, seconds=repeats.seconds, claim=claim)


def curve(setup: AnySetup, plan: Plan, split: Split, *, seed: int, every: int = 1) -> Curve:
    """The accuracy of the released model after every so many rounds of a federation, and at its end."""
    model, test, points = shaped(setup.model, split), tested_on(split), []
    for state, _ in learn(setup, plan, split, seed=seed):
        if state.round % every == 0 or state.round == plan.rounds:
            accuracy = score(model, state.published, test).accuracy or 0.0
            points.append(Point(round=state.round, accuracy=accuracy))
    return points


def learn(setup: AnySetup, plan: Plan, split: Split, *, seed: int) -> Iterator[tuple[State, RoundReport]]:
    """One federation: its state after each round, and what happened in it."""
    model, randomness = shaped(setup.model, split), SeededRandomness(seed=seed)
    data = partitioned(split, clients=plan.config.members, seed=seed)
    engine = CohortEngine(model, ClientTensors.of(data), setup.local, Execution(threads=processors()))
    with Ledger.in_memory(budget=plan.budget, relation=plan.relation) as ledger:
        private = PrivateRun(plan, ledger=ledger, randomness=randomness, size=model.size)
        cohort = ClientCohort(engine=engine, private=private)
        algorithm = FedAvg(cohort, server=setup.server, init_scale=setup.init_scale)
        state = algorithm.init()
        for _ in range(plan.rounds):
            state, report = algorithm.apply(state)
            yield state, report


def shaped(make: Callable[[int, int], Model], split: Split) -> Model:
    """The model for these examples."""
    if split.train.classes is None:
        raise DataError("accuracies are stated: give labels that are classes")
    return make(int(np.prod(split.train.shape)), split.train.classes)


def tested_on(split: Split) -> Examples:
    """The examples that accuracies are of."""
    if split.test is None:
        raise DataError("accuracies are stated: give test examples")
    return split.test


def partitioned(split: Split, *, clients: int, seed: int) -> Clients:
    """Two shards of 300 examples of one label for every client; a small data set is repeated."""
    partition = sorted_shards(
        split.train.labels, clients=clients, per_client=PER_CLIENT, randomness=SeededRandomness(seed=seed)
    )
    return Clients.of(split, partition)


def processors() -> int:
    """How many processors there are for this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
