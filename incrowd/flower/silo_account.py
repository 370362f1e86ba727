"""What the owner of a silo's ledger allows a server's plan beside its budget."""

from dataclasses import dataclass, field

from dp_accounting import DpEvent

from incrowd.errors import SpecificationRefused
from incrowd.flower.brake import Brake
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.paid import Note
from incrowd.privacy.plan.plan import Plan


@dataclass(frozen=True, kw_only=True, eq=False)
class LedgerOwner:
    """The owner of the ledger on which a server's plan is charged, under the offer's fingerprint.

    Guarantee: what is charged on a day costs at most what the policy allows.
    """

    plan: str
    brake: Brake = field(repr=False)

    def check(self, plan: Plan, ledger: Ledger) -> None:
        """Refuse (`SpecificationRefused`) a budget for more than the ledger's, or for another delta."""
        owned, asked = ledger.budget, plan.budget
        if asked.delta != owned.delta or asked.epsilon > owned.epsilon:
            raise SpecificationRefused(
                f"a plan for epsilon = {asked.epsilon:g} at delta = {asked.delta:g}: this party allows at most "
                f"{owned.epsilon:g} at {owned.delta:g}"
            )

    def admit(self, ledger: Ledger, event: DpEvent) -> None:
        """See `Owner.admit`."""
        self.brake.daily(ledger).check([(event, 1)])

    def note(self, ledger: Ledger, plan: Plan, number: int) -> Note:
        """See `Owner.note`."""
        return {
            "plan": self.plan,
            "what": "training" if number < plan.rounds else "report",
            "server": self.brake.identity.server_name,
            "day": self.brake.daily(ledger).day(),
        }
