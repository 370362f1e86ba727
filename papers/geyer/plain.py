"""Federated averaging without any privacy, for comparison: no clip, no noise, and nothing is paid."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from harness import checks
from harness.arrays import Floats
from incrowd import Local, SeededRandomness
from incrowd.algorithms import Diagnostics, Watch, score
from incrowd.data import Split
from incrowd.learning import ClientTensors, CohortEngine, Execution, Model
from papers.geyer.measure import partitioned, processors, shaped, tested_on
from papers.geyer.paper import INIT_SCALE, paper_network


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Everyone takes part in every round, and the server adds the mean of what they learnt to the paper's network."""

    rounds: int = 100
    clients: int = 100
    local: Local = field(default_factory=lambda: Local(learning_rate=0.2, batches=60))
    init_scale: float = INIT_SCALE

    def __post_init__(self) -> None:
        checks.count(rounds=self.rounds, clients=self.clients)
        checks.non_negative(init_scale=self.init_scale)

    def model(self, split: Split) -> Model:
        """The paper's network for these examples."""
        return shaped(paper_network, split)


@dataclass(frozen=True, kw_only=True, eq=False)
class PlainRound:
    """The weights after a round, and how alike the clients' updates in it were. Not private."""

    round: int
    weights: Floats
    seen: Diagnostics
    accuracy: float


def learn_plainly(plain: Plain, split: Split, *, seed: int) -> Iterator[PlainRound]:
    """One federation, round by round; the seed divides the examples and draws the first weights and the batches."""
    model, test = plain.model(split), tested_on(split)
    data, randomness = partitioned(split, clients=plain.clients, seed=seed), SeededRandomness(seed=seed)
    engine = CohortEngine(model, ClientTensors.of(data), plain.local, Execution(threads=processors()))
    weights = model.initial(randomness, init_scale=plain.init_scale).numpy().astype(np.float64)
    for number in range(plain.rounds):
        watch, total = Watch(model.size), np.zeros(model.size)
        for chunk in engine.train(weights, range(plain.clients), randomness=randomness, round=number):
            watch.see(chunk)
            chunk.add_to(total, np.ones((len(chunk), 1)))
        weights = weights + total / plain.clients
        accuracy = score(model, weights, test).accuracy or 0.0
        yield PlainRound(round=number + 1, weights=weights, seen=watch.diagnostics(), accuracy=accuracy)
