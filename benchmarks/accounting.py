"""How long the price of a plan and its calibration take, on one core and for the first time in a process.

python benchmarks/accounting.py            a table
python benchmarks/accounting.py --json     one line of JSON for each row
python benchmarks/accounting.py --tight    how far the price of a cohort of a fixed size is above a lower bound
"""

import argparse
import json
import os
import time
from collections.abc import Callable

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy reads it

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from incrowd import Budget, Relation
from incrowd.privacy.account import most_rounds, price, smallest_noise

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
    "noise of 400 rounds in 20 steps": (lambda: smallest_noise(schedule, budget=BUDGET, relation=ADD_OR_REMOVE), 30.0),
    "noise of 54 rounds of fixed size": (
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


# Clients, cohort, noise on the sum in clip bounds, rounds, delta.
FIXED_SIZES = (
    (1000, 220, 2.5, 1, 1e-5),
    (1000, 220, 2.5, 54, 1e-5),
    (1000, 500, 10.0, 500, 1e-5),
    (1000, 10, 1.0, 100, 1e-5),
    (1000, 10, 2.0, 1000, 1e-5),
    (10**6, 1000, 1.0, 1000, 1e-8),
    (10**6, 1000, 2.0, 5000, 1e-8),
)


def tightness() -> None:
    """The prices of cohorts of a fixed size beside what one client among others at the far end reveals for certain."""
    print("  clients  cohort  noise  rounds   delta  at least      PLD      RDP  ratio")
    for clients, cohort, noise, count, delta in FIXED_SIZES:
        once = SampledWithoutReplacementDpEvent(clients, cohort, GaussianDpEvent(noise / 2))
        cost = price(SelfComposedDpEvent(once, count), delta=delta, relation=Relation.REPLACE_ONE).by_accountant
        # One order of that client's two values, all rounds alike: the losses of a Poisson sample at twice its
        # sensitivity.
        least = price(rounds(cohort / clients, noise / 2, count), delta=delta, relation=ADD_OR_REMOVE)
        lower = least.by_accountant["PLD"]
        print(
            f"{clients:>9}{cohort:>8}{noise:>7}{count:>8}{delta:>8}{lower:>10.4f}{cost['PLD']:>9.4f}{cost['RDP']:>9.4f}"
            f"{cost['PLD'] / lower:>7.3f}"
        )


def main() -> None:
    """Measure every row once: nothing here is faster the second time but what was kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one line of JSON for each row")
    parser.add_argument("--tight", action="store_true", help="print the price of cohorts of a fixed size instead")
    arguments = parser.parse_args()
    if arguments.tight:
        tightness()
        return
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
