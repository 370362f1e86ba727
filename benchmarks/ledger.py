"""How long a charge takes until it is on disk: of a planned round, and of processes that race for one budget.

python benchmarks/ledger.py [--events 2000] [--steps 20] [--processes 4] [--each 48] [--folder FOLDER] [--json]
"""

import argparse
import json
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from incrowd import Budget, Ledger, Relation
from incrowd.privacy.account import compose, price

SAMPLED = PoissonSampledDpEvent(0.02, GaussianDpEvent(1.1))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=2000, help="charges to measure")
    parser.add_argument("--steps", type=int, default=20, help="different events in the plan")
    parser.add_argument("--processes", type=int, default=4, help="processes that charge one ledger, without a plan")
    parser.add_argument("--each", type=int, default=48, help="charges of each of these processes")
    parser.add_argument("--folder", type=Path, help="where the ledger lies meanwhile: the disk to measure")
    parser.add_argument("--json", action="store_true", help="figures for a program")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="incrowd-benchmark-", dir=arguments.folder) as folder:
        figures = measure(Path(folder) / "run.ledger", events=arguments.events, steps=arguments.steps)
        figures |= race(Path(folder) / "raced.ledger", processes=arguments.processes, each=arguments.each)
    if arguments.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:24} {value:10.3f}" for name, value in figures.items()))


def measure(path: Path, *, events: int, steps: int) -> dict[str, float]:
    """Milliseconds for a charge (median, 99th percentile, longest), and for opening the ledger afterwards."""
    runs = [(GaussianDpEvent(1000.0 + step), events // steps) for step in range(steps)]
    budget = Budget(epsilon=10.0, delta=1e-5)
    durations = []
    with Ledger.open(path, budget=budget, relation=Relation.ADD_OR_REMOVE_ONE, data_identity="none") as ledger:
        reservation = ledger.reserve(runs, label="run")
        for number, event in enumerate(event for event, count in runs for _ in range(count)):
            start = time.perf_counter()
            ledger.charge(event, reservation=reservation.label, note={"round": number})
            durations.append(1000 * (time.perf_counter() - start))
    start = time.perf_counter()
    Ledger.open(path).close()
    return {
        "charge_median_ms": statistics.median(durations),
        "charge_p99_ms": statistics.quantiles(durations, n=100)[98],
        "charge_max_ms": max(durations),
        "open_ms": 1000 * (time.perf_counter() - start),
        "events": float(len(durations)),
    }


def race(path: Path, *, processes: int, each: int) -> dict[str, float]:
    """Seconds for charges that fit the budget exactly, until all are on disk, and for the longest of them."""
    relation, delta = Relation.ADD_OR_REMOVE_ONE, 1e-5
    epsilon = price(compose([(SAMPLED, processes * each)]), delta=delta, relation=relation).epsilon
    Ledger.open(path, budget=Budget(epsilon=epsilon, delta=delta), relation=relation, data_identity="none").close()
    start = time.perf_counter()
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        longest = list(pool.map(partial(charge, path), [each] * processes))
    return {"race_s": time.perf_counter() - start, "race_longest_charge_s": max(longest)}


def charge(path: Path, times: int) -> float:
    """Seconds of the longest of so many charges."""
    durations = []
    with Ledger.open(path) as ledger:
        for _ in range(times):
            start = time.perf_counter()
            ledger.charge(SAMPLED)
            durations.append(time.perf_counter() - start)
    return max(durations)


if __name__ == "__main__":
    main()
