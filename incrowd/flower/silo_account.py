"""The account of one plan on the ledger that a silo keeps for all plans of all servers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dp_accounting import DpEvent

from incrowd.errors import BudgetExceeded, SpecificationRefused
from incrowd.flower.brake import Brake
from incrowd.privacy.account.accounting import price
from incrowd.privacy.account.events import RepeatedEvent, canonical, compose, event_from_json
from incrowd.privacy.permit import Account, Note
from incrowd.privacy.plan.silo_plan import RELATION, SiloPlan


@dataclass
class _PlanInLedger:
    """What was found of the plan in a ledger's first entries."""

    entries: int = 0
    spent: dict[str, RepeatedEvent] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class PartyAccount(Account):
    """Where a plan is charged whose ledger is its owner's: of the owner's budget, and shared with other plans.

    The label is the offer's fingerprint.

    Guarantee: what is charged under the label costs at most the plan's budget, all that is charged to the ledger at
    most its own, and that of a day at most the policy's; no round has less noise than the policy asks for. The noise of
    a round is solved for as if the ledger held this plan alone.

    Edge cases: a budget for more than the ledger's, or for another delta, is refused.
    """

    brake: Brake = field(repr=False)
    _own: _PlanInLedger = field(default_factory=_PlanInLedger, init=False, repr=False)

    def check(self, plan: SiloPlan) -> None:
        """See `Account.check`; `SpecificationRefused`, for it is a server's plan."""
        owned, asked = self.ledger.budget, plan.budget
        if self.ledger.relation is not RELATION or asked.delta != owned.delta or asked.epsilon > owned.epsilon:
            raise SpecificationRefused(
                f"a plan for epsilon = {asked.epsilon:g} at delta = {asked.delta:g}: this party allows at most "
                f"{owned.epsilon:g} at {owned.delta:g}"
            )

    def commitments(self, plan: SiloPlan) -> Sequence[RepeatedEvent]:
        """What was charged under the label, equal events counted together, and its report where that is reserved."""
        for entry in self.ledger.entries(start=self._own.entries):
            if entry.kind == "charge":
                content = entry.content()
                if self.label in (content["note"].get("run"), content["note"].get("report")):
                    _add(self._own.spent, (event_from_json(content["event"]), 1))
            self._own.entries = entry.position + 1
        total = dict(self._own.spent)
        reserved = (each for each in self.ledger.reservations() if each.label == self.report)
        if any(not each.charged and not each.released for each in reserved):
            for run in plan.report_runs:
                _add(total, run)
        return list(total.values())

    def reserve_report(self, plan: SiloPlan) -> bool:
        """See `Account.reserve_report`; it has to have room in the plan's own budget, too."""
        if plan.report_runs and not any(each.label == self.report for each in self.ledger.reservations()):
            try:
                self._check_own(plan, plan.report_runs)
            except BudgetExceeded:
                return False
        return super().reserve_report(plan)

    def admit(self, plan: SiloPlan, event: DpEvent, *, multiplier: float | None) -> None:
        """See `Account.admit`."""
        least = self.brake.policy.least_noise
        if multiplier is not None:
            if multiplier < least:
                raise SpecificationRefused(
                    f"a noise multiplier of {multiplier:.6g} is less than this party asks for, {least:g}"
                )
            self._check_own(plan, [(event, 1)])
        self.brake.check_day(self.ledger, [(event, 1)])

    def note(self, plan: SiloPlan, number: int) -> Note:
        """See `Account.note`."""
        noise = plan.report_noise if number == plan.rounds else None
        return {
            "plan": self.label,
            "what": "training" if number < plan.rounds else "report",
            "round": number,
            "server": self.brake.identity.server_name,
            "noise_multiplier": None if noise is None else noise.noise_multiplier,
            "day": self.brake.day(self.ledger),
        }

    def _check_own(self, plan: SiloPlan, runs: Sequence[RepeatedEvent]) -> None:
        event = compose([*self.commitments(plan), *runs])
        cost = price(event, delta=plan.budget.delta, relation=RELATION).epsilon
        if not cost <= plan.budget.epsilon:
            raise BudgetExceeded(
                f"with this the plan would cost epsilon = {cost:.6g}, and its budget is {plan.budget.epsilon:g}"
            )


def _add(total: dict[str, RepeatedEvent], run: RepeatedEvent) -> None:
    event, count = run
    key = canonical(event)
    total[key] = event, count + total.get(key, (event, 0))[1]
