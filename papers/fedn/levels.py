"""Accuracy against epsilon on the same data, for three promises: a whole client, locally or centrally, and one record.

| level          | protected      | who adds the noise                  |
| -------------- | -------------- | ----------------------------------- |
| `local`        | a whole client | every client, before it sends       |
| `central`      | a whole client | the server, once a round            |
| `record`       | one record     | every client, in its own DP-SGD     |

The three figures of epsilon are not the same promise: a client is more than one of its records. What the curves compare
is what each promise leaves of the accuracy.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import checks
from harness.pictures import axes, dress
from harness.seeds import Entry, Say, repeated, silent
from incrowd import Budget, Everyone, Ledger, Local, PlanConfig, PrivateRun, SeededRandomness, ServerOptimizer, constant
from incrowd.algorithms import ClientCohort, FedAvg, score
from incrowd.data import Clients, Split, iid
from incrowd.learning import ClientTensors, CohortEngine, Execution, Model
from incrowd.privacy.plan import NoiseBy
from papers.fedn.schedule import DELTA
from papers.fedn.silos import NETWORKS, Silos

ROUNDS = 20
STEEPEST = Local(learning_rate=100.0, shuffle=False)
"""One step along the gradient of all examples, whose length is normalised away."""

UNITS = {"local": "client", "central": "client", "record": "record"}
LABELS = {
    "local": "a whole client, local noise",
    "central": "a whole client, central noise",
    "record": "one record, DP-SGD in each client",
}


@dataclass(frozen=True, kw_only=True)
class Levels:
    """What to measure, and on which data: examples divided evenly among clients, and a linear model on fixed features.

    Edge cases: an unknown level, and numbers that are not positive, are refused before anything is computed.
    """

    split: Split
    clients: int = 100
    epsilons: Sequence[float] = (0.5, 1.0, 2.0, 4.0, 8.0)
    levels: Sequence[str] = tuple(UNITS)
    seeds: int = 1
    cache: Path | None = None
    say: Say = field(default=silent, repr=False)

    def __post_init__(self) -> None:
        checks.count(clients=self.clients, seeds=self.seeds)
        for epsilon in self.epsilons:
            checks.positive(epsilon=epsilon)
        for level in self.levels:
            checks.known(UNITS, level=level)

    def points(self) -> list[Entry]:
        """One point for each level and epsilon."""
        silos = Silos(split=self.split, silos=(self.clients,), networks=("best",), seeds=self.seeds, cache=self.cache)
        ways: dict[str, Callable[[float], list[float]]] = {
            "local": lambda epsilon: self._of_clients(epsilon, "party"),
            "central": lambda epsilon: self._of_clients(epsilon, "server"),
            "record": lambda epsilon: list(replace(silos, epsilons=(epsilon,)).runs()[0]["accuracies"]),
        }
        return [self._point(level, epsilon, ways[level](epsilon)) for level in self.levels for epsilon in self.epsilons]

    def _point(self, level: str, epsilon: float, accuracies: Sequence[float]) -> Entry:
        accuracy = statistics.fmean(accuracies)
        self.say(f"{LABELS[level]}, epsilon {epsilon:g}: accuracy {accuracy:.4f}")
        return {
            "level": level,
            "unit": UNITS[level],
            "clients": self.clients,
            "epsilon": epsilon,
            "delta": DELTA,
            "accuracy": accuracy,
            "accuracies": list(accuracies),
        }

    def _of_clients(self, epsilon: float, noise_by: NoiseBy) -> list[float]:
        """Client-level privacy: everyone sends one normalised gradient a round."""
        schedule = constant(rounds=ROUNDS, cohort=self.clients)
        config = PlanConfig(members=self.clients, schedule=schedule, sampling=Everyone, noise_by=noise_by)
        plan = config.calibrate(Budget(epsilon=epsilon, delta=DELTA))
        data, model = self._seen()

        def learn(seed: int) -> float:
            randomness = SeededRandomness(seed=seed)
            partitioned = Clients.of(data, iid(data.train.labels, clients=self.clients, randomness=randomness))
            ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
            cohort = ClientCohort(
                engine=CohortEngine(model, ClientTensors.of(partitioned), STEEPEST, Execution()),
                private=PrivateRun(plan, ledger=ledger, randomness=randomness, size=model.size),
            )
            server = ServerOptimizer(learning_rate=32.0, decay="linear")
            federation = FedAvg(cohort, server=server, init_scale=0.0)
            state = federation.init()
            for _ in range(ROUNDS):
                state, _ = federation.apply(state)
            return score(model, state.published, data.test).accuracy or 0.0 if data.test else 0.0

        return list(repeated(learn, seeds=self.seeds).runs)

    def _seen(self) -> tuple[Split, Model]:
        network = NETWORKS["best"]
        train = network.seen(self.split.train, self.cache)
        test = None if self.split.test is None else network.seen(self.split.test, self.cache)
        model = network.model(math.prod(train.shape), train.classes or 1)
        return Split(name=self.split.name, train=train, test=test), model


def plot_levels(path: Path, points: Sequence[Entry]) -> None:
    """Accuracy over epsilon, a curve a level."""
    with axes(path, height=4.5) as (panel,):
        for level, label in LABELS.items():
            curve = sorted((point["epsilon"], point["accuracy"]) for point in points if point["level"] == level)
            if curve:
                panel.plot(*zip(*curve, strict=True), marker="o", label=label)
        budgets = sorted({point["epsilon"] for point in points})
        panel.set_xscale("log")
        panel.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
        panel.set_xticks([], minor=True)
        dress(panel, f"epsilon, at delta = {DELTA:g}", "accuracy on the test examples", loc="center left")
