"""How long a contribution takes on a device: its noise, and its payment, at first and after ten years of them.

python benchmarks/device.py [--days 3650] [--weights 387 50000] [--folder FOLDER] [--json]

A device charges once a day; the ledger of each figure has that many charges already. `goes_on` is a contribution of a
device that stays open, `starts` one that opens its ledger first, which reads every entry and checks the whole chain.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import numpy as np

from incrowd import Budget, Device, Ledger, Relation, Specification
from incrowd.drawdiscard import Policy
from incrowd.privacy.mechanism import Contribution, Mechanism

ASKED = Specification.from_formula(
    "y ~ x",
    fields={"y": {"type": "boolean"}, "x": {"type": "number", "low": 0, "high": 1}},
    name="benchmark",
    gamma=0.05,
    clip=0.2,
    epsilon=0.01,
    noise="laplace",
)
POLICY = Policy(epsilon=0.01, daily_epsilon=0.01, budget=Budget(epsilon=100.0, delta=1e-9))
ROWS = [{"y": number % 2, "x": number / 20} for number in range(20)]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, nargs="+", default=[0, 365, 3650], help="charges before the measurement")
    parser.add_argument("--weights", type=int, nargs="+", default=[387, 50_000], help="numbers to draw noise for")
    parser.add_argument("--folder", type=Path, help="where the ledger lies meanwhile: the disk to measure")
    parser.add_argument("--json", action="store_true", help="figures for a program")
    arguments = parser.parse_args()
    figures = {f"noise_us_a_number_{weights}": noise(weights) for weights in arguments.weights}
    for days in arguments.days:
        with tempfile.TemporaryDirectory(prefix="incrowd-benchmark-", dir=arguments.folder) as folder:
            figures |= {f"{name}_ms_{days}": value for name, value in payments(Path(folder) / "ledger", days).items()}
    if arguments.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:28} {value:10.3f}" for name, value in figures.items()))


def noise(weights: int) -> float:
    """Microseconds for a number of a release, the charge on a ledger in memory included."""
    mechanism, nothing = Mechanism(size=weights, clip=0.2, epsilon=1.0, privacy="feature"), np.zeros(weights)
    ledger = Ledger.in_memory(budget=Budget(epsilon=1e9, delta=1e-9), relation=Relation.REPLACE_ONE)

    def release() -> None:
        Contribution(mechanism, nothing).release(
            charge=lambda each: ledger.charge(each.event("feature"), pays_for=each.pays_for, note={"per": "feature"})
        )

    return 1000 * _milliseconds(release) / weights


def payments(ledger: Path, days: int) -> dict[str, float]:
    """Milliseconds for a contribution of a device that contributed on so many days before."""
    day = date(2020, 1, 1)

    def today() -> date:
        nonlocal day
        day += timedelta(days=1)
        return day

    def contribute(own: Device) -> None:
        own.answer(ASKED.to_json(), np.zeros(2))

    with Device(ROWS, ledger=ledger, policy=POLICY, today=today) as own:
        for _ in range(days):  # as a device notes it, without the table, to get there sooner
            note = {"day": today().isoformat(), "per": POLICY.unit}
            own.ledger.charge(ASKED.mechanism.event(POLICY.unit), note=note)
        goes_on = _milliseconds(lambda: contribute(own))

    def start() -> None:
        with Device(ROWS, ledger=ledger, policy=POLICY, today=today) as again:
            contribute(again)

    return {"goes_on": goes_on, "starts": _milliseconds(start)}


def _milliseconds(measured: Callable[[], object], times: int = 7) -> float:
    durations = []
    for _ in range(times):
        start = time.perf_counter()
        measured()
        durations.append(1000 * (time.perf_counter() - start))
    return statistics.median(durations)


if __name__ == "__main__":
    main()
