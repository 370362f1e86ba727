"""What a search costs: for what it shows, and what one run and all of them would have cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.account.accounting import Budget, Price, Relation, price
from incrowd.privacy.account.events import RepeatedEvent, compose
from incrowd.privacy.account.selection import Repetitions
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.statement import Statement, rounded_up
from incrowd.runs.search import Select

FAST = ("GDP", "RDP")
"""Who is asked for figures that are only shown beside the one that counts."""

PUBLIC = "the examples were declared public: nothing was charged, and nobody's examples are protected"
HASTE = "someone who learns how many runs there were, or how long they took together, learns more than epsilon says"
ON_TEST = "settings were chosen by the test examples, so the accuracy on them is flattering"
ASSUMED = (
    "the settings to compare were fixed without looking at the clients' examples",
    "a person is at most one client in the data of each run",
)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a search over these plans, one for each candidate.

    Guarantee: `price` bounds what everything that the search shows reveals together: all runs, or, where a random
    number of attempts is made and only the best shown, that one.

    Edge cases: plans under different neighbouring relations have no common price and are refused. Where they have
    different deltas, the least is the search's.
    """

    plans: Sequence[Plan]
    select: Select
    repetitions: Repetitions | None = None

    def __post_init__(self) -> None:
        relations = sorted({plan.relation.name for plan in self.plans})
        if len(relations) > 1:
            remedy = "their neighbouring relations differ: search each sampling for itself"
            raise ConfigError(field="privacy.sampling", value=relations, remedy=remedy)

    @property
    def relation(self) -> Relation:
        """The neighbouring relation of all runs."""
        return self.plans[0].relation

    @property
    def delta(self) -> float:
        """The delta of the search."""
        return min(plan.budget.delta for plan in self.plans)

    @cached_property
    def events(self) -> list[RepeatedEvent]:
        """What a ledger reserves, in order: an event for each run, or one for the whole selection, or nothing."""
        each = [compose(plan.runs) for plan in self.plans]
        if self.select == "public":
            return []
        return [(event, 1) for event in each] if self.repetitions is None else [(self.repetitions.event(each), 1)]

    @cached_property
    def price(self) -> Price:
        """What the search costs."""
        return price(compose(self.events), delta=self.delta, relation=self.relation)

    @cached_property
    def prices(self) -> dict[str, float]:
        """What one run costs (the dearest), and what all candidates shown once do."""
        every = self.price
        if self.select != "all":
            each = [(compose(plan.runs), 1) for plan in self.plans]
            every = price(compose(each), delta=self.delta, relation=self.relation, accountants=FAST)
        return {"one_run": max(plan.price.epsilon for plan in self.plans), "every_candidate": every.epsilon}

    def budget(self, most: float | None) -> Budget:
        """The budget of the search's ledger: what it costs, unless it is stated.

        Edge cases: where it costs more than stated, `BudgetExceeded`.
        """
        epsilon = self.price.epsilon
        if most is not None and epsilon > most:
            raise BudgetExceeded(
                f"this search costs epsilon = {epsilon:.6g} at delta = {self.delta:g}, and its budget is {most:g}: "
                "search less, or give each run a smaller privacy.epsilon"
            )
        return Budget(epsilon=epsilon if most is None else most, delta=self.delta)

    def statement(self, ledger: Ledger, *, own: int, on_test: bool) -> Statement:
        """What the search promises, so many of whose own charges are on this ledger."""
        statements = [plan.statement(ledger, own=own) for plan in self.plans]
        first = statements[0]
        runs = "every run" if self.repetitions is None else "the best of a random number of runs"
        caveats = [caveat for each in statements for caveat in each.caveats] + ([ON_TEST] if on_test else [])
        return replace(
            first,
            sampler=f"{runs}, of {len(self.plans)} settings; the first: {first.sampler}",
            assumed=(*first.assumed, *ASSUMED),
            not_covered=(*first.not_covered, *(() if self.repetitions is None else (HASTE,))),
            caveats=tuple(dict.fromkeys(caveats)),
        )

    def holds(self) -> dict[str, str]:
        """In a sentence each: what holds for the selected model, and what for all that the search shows."""
        if self.select == "public":
            elsewhere = rounded_up(self.prices["every_candidate"])
            spent = f"{PUBLIC}; on clients' examples all runs together would cost epsilon = {elsewhere}"
            return {"selected": spent, "shown": spent}
        private = f"({rounded_up(self.price.epsilon)}, {self.delta:g})-differentially private"
        if self.repetitions is None:
            return {
                "selected": f"chosen by looking at every run, it has no better bound than all of them: {private}",
                "shown": f"all {len(self.plans)} models with their settings and scores are, together, {private}",
            }
        return {
            "selected": f"the model with its settings and its score is {private}",
            "shown": "the selected model alone; the other runs and their number were not kept, and must stay secret",
        }
