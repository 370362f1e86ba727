"""What stacks of Linear layers gain by their own way to train, in time of the processor, which others may use, too.

    python benchmarks/stacks.py --data DIR               the works normed and dense, in batches of 10 and 100
    python benchmarks/stacks.py --work mlp --data DIR

Our engine, our engine without that way, and the lean loop take turns at training, clipping and summing the same clients
from the same weights, without noise, on one thread. Figures are medians, in milliseconds a client.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from contest.lean import Lean
from contest.ours import Ours
from contest.peak import matrix_peak
from contest.works import WORKS, Task
from incrowd.learning import ClientTensors, CohortEngine, one_thread
from incrowd.learning.paths import PATHS, fused


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default="normed,dense")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{'work':<10}{'batch':>6}{'incrowd':>10}{'without':>10}{'lean':>10}{'against lean':>14}{'and without':>14}")
    with one_thread():
        for name in arguments.work.split(","):
            for size in (10, 100):
                work = replace(WORKS[name], cohort=arguments.cohort)
                ours, without, lean = _measured(
                    Task(work=work, batch_size=size, folder=arguments.data), arguments.turns
                )
                taken = f"{ours:>10.2f}{without:>10.2f}{lean:>10.2f}"
                print(f"{name:<10}{size:>6}{taken}{lean / ours:>14.2f}{lean / without:>14.2f}", flush=True)
        print(f"the best matrix product of one thread: {matrix_peak() / 1e9:.0f} GFLOP/s")


def _measured(task: Task, turns: int) -> list[float]:
    """Milliseconds a client: ours, ours without the way, lean."""
    ours, without, lean = Ours(task), Ours(task), Lean(task)
    others = [make for make in PATHS if make is not fused.make]
    engine = ours.engine
    without.engine = CohortEngine(engine.model, ClientTensors.of(task.data), task.local, engine.execution, paths=others)
    updates: list[Callable[[], object]] = [ours.update, without.update, lean.update]
    taken: list[list[float]] = [[] for _ in updates]
    for turn in range(turns + 1):
        for update, times in zip(updates, taken, strict=True):
            begin = time.process_time()
            update()
            if turn:  # in the first all see the clients for the first time
                times.append(1e3 * (time.process_time() - begin) / task.work.cohort)
    ours.close()
    without.close()
    return [statistics.median(times) for times in taken]


if __name__ == "__main__":
    main()
