"""A sampler of your own: a client takes part if it is in the round's block of five, and its coin falls right.

Run: python examples/extensions/sampler.py
"""

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent

import incrowd
from incrowd.testing import check_sampler
from incrowd.types import ThirdPartySampling, register


class Blocks:
    """Poisson sampling by two draws: every client's block is drawn anew in every round, and then a coin is tossed."""

    relation = NeighboringRelation.ADD_OR_REMOVE_ONE

    def event(self, noise_multiplier: float, *, clients: int, cohort: float) -> DpEvent:
        """The clients are independent, so this is a Poisson sample."""
        return PoissonSampledDpEvent(cohort / clients, GaussianDpEvent(noise_multiplier))

    def sample(self, stream: incrowd.types.Stream, *, clients: int, cohort: float, round: int) -> np.ndarray:
        """One block in five, and a coin for the rest of the probability."""
        block, coin = stream.bits(clients), stream.bits(clients)
        rest = min(1.0, 5 * cohort / clients)
        return np.flatnonzero((block < 2**64 // 5) & (coin < rest * (2**64 - 1)))


check_sampler(Blocks())
register("samplers", "blocks", Blocks())

config = incrowd.PlanConfig(
    members=100, schedule=incrowd.constant(rounds=2, cohort=10), sampling=ThirdPartySampling(name="blocks")
)
plan = config.calibrate(incrowd.Budget(epsilon=2, delta=1e-3))
ledger = incrowd.Ledger.in_memory(budget=plan.budget, relation=plan.relation)
run = incrowd.PrivateRun(plan, ledger=ledger, randomness=incrowd.SeededRandomness(seed=1), size=3)
opened, cohort = run.round(0), run.cohort(0)
opened.add(np.ones((len(cohort), 3)), clients=cohort)
print("mean", opened.release().mean)
print(run.statement().text())
