"""How long the price of a plan and its calibration take, on one core and with an empty cache.

python benchmarks/accounting.py            a table
python benchmarks/accounting.py --json     one line of JSON for each row
"""

import argparse
import json
import os
import time
from collections.abc import Callable

os.environ |= {"INCROWD_CACHE": "off", "OMP_NUM_THREADS": "1"}  # before NumPy reads it

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from incrowd.privacy.account.accounting import Budget, Relation, price
from incrowd.privacy.account.calibration import most_rounds, smallest_noise

BUDGET = Budget(epsilon=8.0, delta=1e-5)
ADD_OR_REMOVE = Relation.ADD_OR_REMOVE_ONE


def rounds(sampling_prob: float, noise_multiplier: float, count: int) -> DpEvent:
    """Equal rounds over Poisson samples."""
    return SelfComposedDpEvent(PoissonSampledDpEvent(sampling_prob, GaussianDpEvent(noise_multiplier)), count)


def schedule(factor: float) -> DpEvent:
    """400 rounds in 20 steps, each with a cohort and noise of its own."""
    return ComposedDpEvent([rounds(0.05 + 0.02 * step, factor * (0.6 + 0.05 * step), 20) for step in range(20)])


def fixed_size(noise_multiplier: float) -> DpEvent:
    """54 rounds over cohorts of a fixed size."""
    once = SampledWithoutReplacementDpEvent(1000, 220, GaussianDpEvent(noise_multiplier))
    return SelfComposedDpEvent(once, 54)


# What is done, how, and how long it may take.
ROWS: dict[str, tuple[Callable[[], float], float | None]] = {
    "noise of 54 equal rounds": (
        lambda: smallest_noise(lambda z: rounds(0.22, z, 54), budget=BUDGET, relation=ADD_OR_REMOVE),
        None,
    ),
    "noise of 1,000 equal rounds": (
        lambda: smallest_noise(lambda z: rounds(0.22, z, 1000), budget=BUDGET, relation=ADD_OR_REMOVE),
        3.0,
    ),
    "noise of 400 rounds in 20 steps": (
        lambda: smallest_noise(schedule, budget=BUDGET, relation=ADD_OR_REMOVE),
        30.0,
    ),
    "noise of 54 rounds of fixed size (RDP)": (
        lambda: smallest_noise(fixed_size, budget=BUDGET, relation=Relation.REPLACE_ONE),
        None,
    ),
    "number of equal rounds": (
        lambda: most_rounds(lambda n: rounds(0.22, 1.25, n), budget=BUDGET, relation=ADD_OR_REMOVE),
        None,
    ),
    "price of 54 equal rounds (PLD and RDP)": (
        lambda: price(rounds(0.22, 1.3, 54), delta=1e-5, relation=ADD_OR_REMOVE).epsilon,
        None,
    ),
    "price of 400 rounds in 20 steps (PLD and RDP)": (
        lambda: price(schedule(2.8), delta=1e-5, relation=ADD_OR_REMOVE).epsilon,
        None,
    ),
}


def main() -> None:
    """Measure every row once: nothing here is faster the second time but what was kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one line of JSON for each row")
    arguments = parser.parse_args()
    if not arguments.json:
        print(f"{'what':<48}{'seconds':>8}{'target':>8}{'answer':>12}")
    for what, (work, target) in ROWS.items():
        begin = time.perf_counter()
        answer = work()
        seconds = time.perf_counter() - begin
        if arguments.json:
            print(json.dumps({"what": what, "seconds": seconds, "target": target, "answer": answer}))
        else:
            print(f"{what:<48}{seconds:>8.2f}{target or '':>8}{answer:>12.5g}")


if __name__ == "__main__":
    main()
