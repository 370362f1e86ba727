"""How long the check before a planned round takes: a charge on a reservation, on disk when it returns.

python benchmarks/ledger.py [--events 2000] [--steps 20] [--folder FOLDER] [--json]
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from dp_accounting import GaussianDpEvent

from incrowd import Budget, Ledger, Relation


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=2000, help="charges to measure")
    parser.add_argument("--steps", type=int, default=20, help="different events in the plan")
    parser.add_argument("--folder", type=Path, help="where the ledger lies meanwhile: the disk to measure")
    parser.add_argument("--json", action="store_true", help="figures for a program")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="incrowd-benchmark-", dir=arguments.folder) as folder:
        figures = measure(Path(folder) / "run.ledger", events=arguments.events, steps=arguments.steps)
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


if __name__ == "__main__":
    main()
