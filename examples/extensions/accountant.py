"""An accountant of your own: a second opinion with a margin, say the one that your board trusts.

Run: python examples/extensions/accountant.py
"""

from dp_accounting import DpEvent, NeighboringRelation
from dp_accounting.rdp import RdpAccountant

import incrowd
from incrowd.testing import check_accountant
from incrowd.types import register


class Cautious:
    """dp_accounting's RDP accountant, and a tenth more."""

    def epsilon(self, event: DpEvent, delta: float, *, relation: NeighboringRelation) -> float:
        """An upper bound at this delta."""
        return 1.1 * float(self._of(event, relation).get_epsilon(delta))

    def delta(self, event: DpEvent, epsilon: float, *, relation: NeighboringRelation) -> float:
        """An upper bound at this epsilon."""
        return min(1.0, 1.1 * float(self._of(event, relation).get_delta(epsilon)))

    def _of(self, event: DpEvent, relation: NeighboringRelation) -> RdpAccountant:
        return RdpAccountant(neighboring_relation=relation).compose(event)


check_accountant(Cautious())
register("accountants", "cautious", Cautious())

config = incrowd.PlanConfig(
    members=100, schedule=incrowd.constant(rounds=5, cohort=20), accountants=("PLD", "cautious")
)
plan = config.calibrate(incrowd.Budget(epsilon=2, delta=1e-3))
print(f"noise multiplier {plan.noise_multiplier:.3f}; {dict(plan.price.by_accountant)}")
ledger = incrowd.Ledger.in_memory(budget=plan.budget, relation=plan.relation)
run = incrowd.PrivateRun(plan, ledger=ledger, randomness=incrowd.SeededRandomness(seed=1), size=3)
run.round(0).release()
print(run.statement().text())
