"""What a plan has cost so far, cheaply enough to be shown after every round."""

from dataclasses import dataclass

from incrowd.privacy.account.accountants import GaussianCurve, RenyiCurve
from incrowd.privacy.account.events import RepeatedEvent, compose, mechanisms
from incrowd.privacy.plan.plan import Plan


@dataclass(frozen=True)
class SpentSoFar:
    """An upper bound on the epsilon of a plan's first rounds, at the budget's delta.

    Guarantee: never below what these rounds cost, never above the price of the whole plan, and exactly that after the
    last round. Where everyone takes part in every round the bound is exact (GDP); elsewhere it is by RDP, which takes
    well under a millisecond where the tight figure takes most of a second.

    Edge cases: before the first round 0.
    """

    plan: Plan

    def after(self, rounds: int) -> float:
        """The epsilon of the first so many rounds."""
        if rounds == 0:
            return 0.0
        if rounds >= self.plan.rounds:
            return self.plan.price.epsilon
        runs = mechanisms(compose(_first(self.plan.runs, rounds)))
        curve = GaussianCurve(runs) if GaussianCurve.supports(runs) else RenyiCurve(runs, self.plan.relation)
        return min(curve.epsilon(self.plan.budget.delta), self.plan.price.epsilon)

    def communications(self, rounds: int) -> float:
        """How many contributions the first so many rounds expect."""
        return sum(self.plan.round(number).sampler.expected_cohort for number in range(rounds))


def _first(runs: list[RepeatedEvent], rounds: int) -> list[RepeatedEvent]:
    first: list[RepeatedEvent] = []
    for event, count in runs:
        taken = min(count, rounds)
        if taken > 0:
            first.append((event, taken))
        rounds -= taken
    return first
