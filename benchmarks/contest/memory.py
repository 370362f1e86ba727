"""How much memory a large round needs, measured in a process that does nothing else."""

import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from contest.works import CLIP_NORM, RANDOMNESS, Task, Work
from incrowd import Budget, FixedClip, Ledger, PlanConfig, PrivateRun, ServerOptimizer, constant
from incrowd.algorithms import ClientCohort, FedAvg
from incrowd.learning import ClientTensors, CohortEngine

LARGE = Work(name="large", widths=(784, 600, 100, 10), cohort=10_000)
"""The paper's network and its largest number of clients: all of them are there, a cohort of them takes part."""


def large_round(folder: Path | None, *, work: Work = LARGE, cohort: int = 500) -> dict[str, float]:
    """One private round over a Poisson cohort, images included; the most resident memory that its process had."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_round, Task(work=work, batch_size=10, folder=folder), cohort).result()


def _round(task: Task, cohort: int) -> dict[str, float]:
    clients = task.work.cohort
    engine = CohortEngine(task.work.model(), ClientTensors.of(task.data), task.local)
    config = PlanConfig(
        members=clients, schedule=constant(rounds=1, cohort=cohort), clip=FixedClip(clip_norm=CLIP_NORM)
    )
    plan = config.plan(Budget(epsilon=1e3, delta=1e-6))
    with Ledger.in_memory(budget=plan.budget, relation=plan.relation) as ledger:
        private = PrivateRun(plan, ledger=ledger, randomness=RANDOMNESS, size=engine.model.size)
        algorithm = FedAvg(ClientCohort(engine=engine, private=private), server=ServerOptimizer())
        begin = time.perf_counter()
        algorithm.apply(algorithm.init())
        seconds = time.perf_counter() - begin
    return {
        "megabytes": _most_resident() / 1e6,
        "seconds": seconds,
        "clients": clients,
        "cohort": cohort,
        "weights": engine.model.size,
    }


def _most_resident() -> float:
    """The most resident memory of this process, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would give what the parent had when it started this process, if that was more
        (line,) = [line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM")]
        return 1024.0 * int(line.split()[1])
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most if sys.platform == "darwin" else 1024 * most)
