"""The square-root schedule as the FEDn example executes it, priced honestly: where its budget breaks.

Before each round the example asks for noise with which sqrt(spent^2 + epsilon^2 / R) holds *for this round alone*, as
if nothing had been spent; then it composes the round with those before it. So the noise falls from round to round, and
the sum passes the budget. What is computed here are its noise and what all its rounds together cost, by the accountants
of this project; nothing is trained.
"""

import math
from dataclasses import dataclass

from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from harness import checks
from incrowd import Budget, Relation
from incrowd.privacy.account import compose, first_bound, smallest_noise

DELTA = 1e-5
ROUNDS = 10
BATCH = 32

_GRID = 1e-3  # coarser than where a promise is made; an upper bound all the same, a thousandth above the fine one


@dataclass(frozen=True, kw_only=True)
class Published:
    """The example's schedule for one silo: its records, its budget, and batches of 32 in one pass a round."""

    records: int
    epsilon: float
    rounds: int = ROUNDS
    batch: int = BATCH
    delta: float = DELTA

    def __post_init__(self) -> None:
        checks.count(records=self.records, rounds=self.rounds, batch=self.batch)
        checks.at_most(self.records, "the number of records", batch=self.batch)

    def event(self, noise_multiplier: float) -> DpEvent:
        """One round."""
        step = PoissonSampledDpEvent(self.batch / self.records, GaussianDpEvent(noise_multiplier))
        return compose([(step, math.ceil(self.records / self.batch))])

    def simulated(self) -> dict[str, object]:
        """Noise and epsilon after each round, and the first round (from 1) that breaks the budget, if one does."""
        noise: list[float] = []
        epsilons: list[float] = []
        spent: list[tuple[DpEvent, int]] = []
        for _ in range(self.rounds):
            before = epsilons[-1] if epsilons else 0.0
            alone = Budget(epsilon=math.hypot(before, self.epsilon / math.sqrt(self.rounds)), delta=self.delta)
            noise.append(smallest_noise(self.event, budget=alone, relation=Relation.ADD_OR_REMOVE_ONE))
            spent.append((self.event(noise[-1]), 1))
            epsilons.append(
                first_bound(compose(spent), delta=self.delta, relation=Relation.ADD_OR_REMOVE_ONE, grid=_GRID)[1]
            )
        broken = [number for number, epsilon in enumerate(epsilons, 1) if epsilon > self.epsilon]
        return {
            "records": self.records,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise_by_round": noise,
            "epsilon_by_round": epsilons,
            "first_round_over_budget": broken[0] if broken else None,
        }
