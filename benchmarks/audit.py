"""How small a fault an audit sees, for how much computing: noise that is short, found by canaries and by looks inside.

    python benchmarks/audit.py             about two minutes on two cores
    python benchmarks/audit.py --quick     the first two efforts alone

Everyone of 100 clients takes part in 20 rounds, at epsilon 2. Noise is made short by changing the product for as long
as an audit lasts. `canaries` is what the strongest attack proves with 95 % confidence, and whether it is sure of a
violation; `inside` whether the noise that is measured from inside gives it away.
"""

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from incrowd import Budget
from incrowd.audit.audit import Effort, strongest
from incrowd.audit.canaries import CanaryGame
from incrowd.audit.checks import noise_checks
from incrowd.privacy.mechanism.grid import GaussianNoise
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Everyone, constant

BUDGET = Budget(epsilon=2.0, delta=1e-3)
SHORT = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)
TRIALS = (1_000, 4_000, 20_000)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One audit of noise that is short by a share."""

    canaries: int
    noise_short: float
    proven: float
    canaries_sure: bool
    inside_sure: bool
    seconds: float


@contextmanager
def shortened(share: float) -> Iterator[None]:
    """Noise that is short by so much."""
    real: Any = vars(GaussianNoise)["scale"]

    def scale(self: GaussianNoise, contributions_bound: int) -> float:
        return (1 - share) * float(real(self, contributions_bound))

    setattr(GaussianNoise, "scale", scale)  # noqa: B010 - a method, replaced on purpose
    try:
        yield
    finally:
        setattr(GaussianNoise, "scale", real)  # noqa: B010 - and put back


def measured(canaries: int, share: float) -> Result:
    """One audit, timed."""
    plan = PlanConfig(members=100, schedule=constant(rounds=20, cohort=100), sampling=Everyone).calibrate(BUDGET)
    game, effort = CanaryGame(plan=plan), Effort(canaries=canaries, seed=1)
    begin = time.perf_counter()
    with shortened(share):
        plays = [game.play(number) for number in range(effort.plays(game))]
    found = strongest(game, plays)
    inside = noise_checks(game, plays)
    return Result(
        canaries=canaries,
        noise_short=share,
        proven=found.lower_bound or 0.0,
        canaries_sure=not found.holds,
        inside_sure=not all(check.holds for check in inside),
        seconds=time.perf_counter() - begin,
    )


def main() -> None:
    """Measure all, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first two efforts alone")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    efforts = TRIALS[:2] if given.quick else TRIALS
    results = (measured(trials, share) for trials in efforts for share in SHORT)
    if given.json:
        print(json.dumps([asdict(result) for result in results]))
        return
    print("| canaries | noise short by | epsilon at least | canaries are sure | inside is sure | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    for one in results:
        told = ["yes" if sure else "no" for sure in (one.canaries_sure, one.inside_sure)]
        cells = (f"{one.canaries:,}", f"{one.noise_short:.0%}", f"{one.proven:.2f}", *told, f"{one.seconds:.1f}")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
