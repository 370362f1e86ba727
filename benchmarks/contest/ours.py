"""incrowd itself: whole rounds of DP-FedAvg, as a run makes them, ledger on disk and noise of the system's included."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from numpy.typing import ArrayLike
from torch import Tensor

from contest.lean import settle
from contest.works import CLIP_NORM, NOISE_MULTIPLIER, RANDOMNESS, Task
from harness.arrays import Floats
from incrowd import (
    Budget,
    Everyone,
    FixedClip,
    Ledger,
    Plan,
    PlanConfig,
    PrivateRun,
    ServerOptimizer,
    SystemRandomness,
    constant,
)
from incrowd.algorithms import ClientCohort, FedAvg, State
from incrowd.learning import ClientTensors, CohortEngine, EngineCohort, Execution
from incrowd.privacy.ledger import DataIdentity
from incrowd.privacy.mechanism import ClippedSum
from incrowd.types import Randomness, Stream

_ROUNDS = 1000  # more than anyone measures

PUBLIC = DataIdentity(name="bench", public=True)
"""Whom the work is done for: nobody."""


@dataclass(frozen=True)
class _RealNoise:
    """Everyone's first weights and batches, but noise as it is drawn in a deployment, which takes longer."""

    simulated: bool = field(default=True, init=False)
    source: str = field(default="bench", init=False)

    def stream(self, purpose: str, *indices: int) -> Stream:
        source: Randomness = SystemRandomness() if purpose == "noise" else RANDOMNESS
        return source.stream(purpose, *indices)


class Ours:
    """Our engine in whole private rounds in which everyone of the cohort takes part.

    With one thread, `overheads` holds for each round what it took beyond the same training alone, as a share of that:
    contributions are computed, and nothing is done with them.
    """

    name = "incrowd"

    def __init__(self, task: Task, *, threads: int = 1) -> None:
        self.task, self.threads = task, threads
        self.overheads: list[float] = []
        self.engine = _engine(task, threads)
        self._folder = TemporaryDirectory(prefix="incrowd-bench-")
        plan = _plan(task.work.cohort)
        self._ledger = Ledger.open(
            Path(self._folder.name) / "ledger.sqlite", budget=plan.budget, relation=plan.relation, data_identity=PUBLIC
        )
        private = PrivateRun(plan, ledger=self._ledger, randomness=_RealNoise(), size=self.engine.model.size)
        self.algorithm = FedAvg(ClientCohort(engine=self.engine, private=private), server=ServerOptimizer())
        self._state = self.algorithm.init()

    def update(self, *, round: int = 0) -> Floats:
        """The sum of the clipped contributions to the first weights in a round, without noise."""
        cohort, clip = self._cohort(self.task.start, round), FixedClip(clip_norm=CLIP_NORM)
        total = ClippedSum(self.engine.model.size, clip, contributions_bound=len(cohort.clients))
        total.add_summed(clip, cohort)
        return total.close().values

    def round(self, number: int) -> float:
        """Take the weights through a round; its seconds."""
        before, begin = self._state, time.perf_counter()
        self._state, _ = self.algorithm.apply(before)
        whole = time.perf_counter() - begin
        if self.threads == 1:
            self.overheads.append(whole / self._alone(before) - 1)
        return whole

    def _alone(self, state: State) -> float:
        """The seconds of a round's training, without all that makes it private."""
        begin = time.perf_counter()
        for _ in self._cohort(state.weights, state.round).chunks():
            pass
        settle(self.task.device)
        return time.perf_counter() - begin

    def _cohort(self, weights: ArrayLike | Tensor, number: int) -> EngineCohort:
        clients = range(self.task.work.cohort)
        return EngineCohort(engine=self.engine, weights=weights, clients=clients, randomness=RANDOMNESS, round=number)

    def close(self) -> None:
        """Remove the ledger."""
        self._ledger.close()
        self._folder.cleanup()


def _engine(task: Task, threads: int) -> CohortEngine:
    cohort = task.work.cohort
    execution = Execution(device=task.device, threads=threads, contributions=_ROUNDS * cohort, cohort=cohort)
    return CohortEngine(task.work.model(), ClientTensors.of(task.data), task.local, execution)


def _plan(cohort: int) -> Plan:
    # Before calibration a schedule's noise multiplier is 1, which is the one that is wanted.
    config = PlanConfig(
        members=cohort,
        schedule=constant(rounds=_ROUNDS, cohort=cohort).scaled(NOISE_MULTIPLIER),
        sampling=Everyone,
        clip=FixedClip(clip_norm=CLIP_NORM),
    )
    return config.plan(Budget(epsilon=1e4, delta=1e-6))
