"""How much time of a processor one noised release takes, rounding to the grid and adding included.

    python benchmarks/noise.py                  532,000 numbers, as the paper's network has
    python benchmarks/noise.py --size 7850 --json

The last row is what unsafe code pays: NumPy's float noise, added as floats.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import count

import numpy as np

from harness.arrays import Floats
from incrowd import Budget, Ledger, Relation, SeededRandomness, SystemRandomness
from incrowd.privacy.account import compose
from incrowd.privacy.ledger import Receipt
from incrowd.privacy.mechanism import CorrelatedNoise, GaussianNoise
from incrowd.types import Randomness

CLIENTS = 1000
SOURCES: dict[str, Randomness] = {"operating system": SystemRandomness(), "seeded": SeededRandomness(1)}


@dataclass(frozen=True, kw_only=True)
class Result:
    """The times of one kind of release, in milliseconds."""

    noise: str
    source: str
    size: int
    median_ms: float
    fastest_ms: float


def paid(noise: GaussianNoise | CorrelatedNoise, source: Randomness) -> Receipt:
    """A receipt for as many draws as anybody measures."""
    ledger = Ledger.in_memory(budget=Budget(epsilon=1e9, delta=1e-6), relation=Relation.ADD_OR_REMOVE_ONE)
    times = 10**5
    return ledger.charge(compose([(noise.event(), times)]), pays_for=[(noise, times)], randomness=source)


def independent(noise: GaussianNoise, total: Floats, source: Randomness) -> Callable[[], object]:
    """A release with fresh noise each time."""
    receipt, number = paid(noise, source), count()
    return lambda: noise.add(total, receipt=receipt, at=("noise", next(number)), contributions_bound=CLIENTS)


def correlated(total: Floats, source: Randomness) -> Callable[[], object]:
    """One round's release after enough rounds to fill the memory."""
    noise = CorrelatedNoise(noise_multiplier=1.0, clip_norm=1.0, contributions_bound=CLIENTS, rounds=1000, groups=20)
    receipt, number, state = paid(noise, source), count(), noise.init(total.size)
    for _ in range(30):
        _, state = noise.add(total, state=state, receipt=receipt, at=("noise", next(number)))
    return lambda: noise.add(total, state=state, receipt=receipt, at=("noise", next(number)))


def unsafe(total: Floats) -> Callable[[], object]:
    """Float noise on a float sum."""
    generator = np.random.default_rng(1)
    return lambda: total + generator.normal(size=total.size)


def milliseconds(release: Callable[[], object], repeats: int) -> list[float]:
    """How long each of so many releases takes, after one to warm up."""
    release()
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        release()
        times.append((time.process_time() - begin) * 1e3)
    return times


def measure(size: int, repeats: int) -> list[Result]:
    """Every kind of noise from every source."""
    total = np.full(size, 1 / size)
    releases = {}
    for name, source in SOURCES.items():
        releases["Gaussian", name] = independent(GaussianNoise(noise_multiplier=1.0, clip_norm=1.0), total, source)
        releases["correlated, 20 bands", name] = correlated(total, source)
    releases["floats (unsafe)", "NumPy"] = unsafe(total)
    results = []
    for (noise, name), release in releases.items():
        times = milliseconds(release, repeats)
        row = {"median_ms": statistics.median(times), "fastest_ms": min(times)}
        results.append(Result(noise=noise, source=name, size=size, **row))
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=532_000, help="how many numbers one release has")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="one line of JSON for each result")
    arguments = parser.parse_args()
    results = measure(arguments.size, arguments.repeats)
    if arguments.json:
        for result in results:
            print(json.dumps(asdict(result)))
        return
    print(f"{'noise':<24}{'source':<18}{'median':>10}{'fastest':>10}   (ms, {arguments.size:,} numbers)")
    for result in results:
        print(f"{result.noise:<24}{result.source:<18}{result.median_ms:>10.1f}{result.fastest_ms:>10.1f}")


if __name__ == "__main__":
    main()
