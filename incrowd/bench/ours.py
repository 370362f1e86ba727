"""incrowd itself: whole rounds of DP-FedAvg, as a run makes them, ledger on disk and noise of the system's included."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from numpy.typing import ArrayLike
from torch import Tensor

from incrowd._random import Floats, Randomness, Stream, SystemRandomness
from incrowd.bench.works import CLIP_NORM, NOISE_MULTIPLIER, RANDOMNESS, Task
from incrowd.federated import FedAvg, ServerStep
from incrowd.learning import Chunk, ClientTensors, CohortEngine, Execution
from incrowd.learning.engine import Clients
from incrowd.privacy.accounting import Budget
from incrowd.privacy.clipped_sum import ClippedSum
from incrowd.privacy.clipping import FixedClip
from incrowd.privacy.ledger import Ledger
from incrowd.privacy.plan import Plan, PlanConfig
from incrowd.privacy.release import PrivateRun
from incrowd.privacy.sampling import Everyone
from incrowd.privacy.schedule import constant

_ROUNDS = 1000  # more than anyone measures


@dataclass(frozen=True)
class _RealNoise:
    """Everyone's first weights and batches, but noise as it is drawn in earnest, which takes longer."""

    simulated: bool = field(default=True, init=False)

    def stream(self, purpose: str, *indices: int) -> Stream:
        source: Randomness = SystemRandomness() if purpose == "noise" else RANDOMNESS
        return source.stream(purpose, *indices)


class TimedEngine(CohortEngine):
    """The engine, and how long it has been at work in all."""

    seconds = 0.0

    def train(
        self, weights: ArrayLike | Tensor, clients: Clients, *, randomness: Randomness, round: int
    ) -> Iterator[Chunk]:
        """See `CohortEngine.train`."""
        begin = time.perf_counter()
        for chunk in super().train(weights, clients, randomness=randomness, round=round):
            self.seconds += time.perf_counter() - begin
            yield chunk
            begin = time.perf_counter()
        self.seconds += time.perf_counter() - begin


class Ours:
    """Our engine in whole private rounds in which everyone of the cohort takes part.

    `overheads` holds, for each round, what it took beyond training as a share of the training.
    """

    name = "incrowd"

    def __init__(self, task: Task, *, threads: int = 1) -> None:
        self.task, self.threads = task, threads
        self.overheads: list[float] = []
        self.engine = _engine(task, threads)
        self._folder = TemporaryDirectory(prefix="incrowd-bench-")
        plan = _plan(task.work.cohort)
        self._ledger = Ledger.open(
            Path(self._folder.name) / "ledger.sqlite", budget=plan.budget, relation=plan.relation, data_identity="bench"
        )
        private = PrivateRun(plan, ledger=self._ledger, randomness=_RealNoise(), size=self.engine.model.size)
        self.algorithm = FedAvg(engine=self.engine, private=private, server=ServerStep())
        self._state = self.algorithm.init()

    def update(self, *, round: int = 0) -> Floats:
        """The sum of the clipped contributions to the first weights in a round, without noise."""
        total = ClippedSum(self.engine.model.size, FixedClip(clip_norm=CLIP_NORM))
        cohort = range(self.task.work.cohort)
        for chunk in self.engine.train(self.task.start, cohort, randomness=RANDOMNESS, round=round):
            total.add_chunk(chunk)
        return total.close()

    def round(self, number: int) -> float:
        """Take the weights through a round; its seconds."""
        self.engine.seconds = 0.0
        begin = time.perf_counter()
        self._state, _ = self.algorithm.apply(self._state)
        whole = time.perf_counter() - begin
        self.overheads.append(whole / self.engine.seconds - 1)
        return whole

    def close(self) -> None:
        """Remove the ledger."""
        self._ledger.close()
        self._folder.cleanup()


def _engine(task: Task, threads: int) -> TimedEngine:
    model, tensors = task.work.model(), ClientTensors.of(task.data)
    sample = range(min(task.work.cohort, 16))
    execution = CohortEngine(model, tensors, task.local, Execution(threads=threads)).measured(
        sample, randomness=RANDOMNESS
    )
    return TimedEngine(model, tensors, task.local, execution)


def _plan(cohort: int) -> Plan:
    # Before calibration a schedule's noise multiplier is 1, which is the one that is wanted.
    config = PlanConfig(
        clients=cohort,
        schedule=constant(rounds=_ROUNDS, cohort=cohort).scaled(NOISE_MULTIPLIER),
        sampling=Everyone,
        clip=FixedClip(clip_norm=CLIP_NORM),
    )
    return config.plan(Budget(epsilon=1e4, delta=1e-6))
