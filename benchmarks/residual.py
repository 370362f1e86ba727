"""How long the residual test takes for an answer, in microseconds, and how long to find its limits, in seconds.

    python benchmarks/residual.py
    python benchmarks/residual.py --sizes 387,50000 --json

The rows are honest answers; `fixed` is the same without what the test learns.
"""

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass

import numpy as np

from incrowd import SeededRandomness
from incrowd.drawdiscard import ResidualTest
from incrowd.drawdiscard.pool import Instance
from incrowd.privacy.mechanism import Mechanism

ROUND = 64
"""So many answers are looked at one after the other; the fastest round counts, because machines are shared."""


@dataclass(frozen=True)
class Measured:
    """One number of weights."""

    weights: int
    limits_s: float
    microseconds: float
    fixed: float


def measure(size: int, rounds: int) -> Measured:
    """The test of so many weights, each round as often."""
    mechanism = Mechanism(size=size, clip=0.1, epsilon=math.log(32), privacy="feature")
    begun = time.perf_counter()
    ResidualTest(mechanism)
    limits = time.perf_counter() - begun
    stream = SeededRandomness(1).stream("rows")
    parents = stream.normals(ROUND * size).astype(np.float32).reshape(ROUND, size)
    answers = (parents - mechanism.noise_scale * stream.laplaces(ROUND * size).reshape(ROUND, size)).astype(np.float32)
    tests = ResidualTest(mechanism), ResidualTest(mechanism, learns=False)
    return Measured(size, limits, *(fastest(test, answers, parents, rounds) for test in tests))


def fastest(test: ResidualTest, answers: Instance, parents: Instance, rounds: int) -> float:
    """Microseconds an answer, in the fastest round."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        for answer, parent in zip(answers, parents, strict=True):
            test.accepts(answer, parent, 1.0)
        times.append((time.perf_counter() - begun) / ROUND)
    return 1e6 * min(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="33,387,650,7850,50000", help="numbers of weights, commas between")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="one line of JSON for each size")
    arguments = parser.parse_args()
    for size in (int(part) for part in arguments.sizes.split(",")):
        measured = measure(size, arguments.rounds)
        if arguments.json:
            print(json.dumps(asdict(measured)))
        else:
            print(
                f"{size:>8,} weights: {measured.microseconds:6.1f} us an answer, {measured.fixed:6.1f} with fixed "
                f"limits alone; limits in {measured.limits_s:.2f} s"
            )


if __name__ == "__main__":
    main()
