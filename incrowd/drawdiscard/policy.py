"""What the owner of a device allows any server to ask of it."""

from collections.abc import Collection
from dataclasses import dataclass, field

from dp_accounting import LaplaceDpEvent

from incrowd import _validate
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import SpecificationRefused
from incrowd.privacy.account.accounting import Budget, price
from incrowd.privacy.mechanism.device import RELATION, Mechanism, Unit


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a device allows any server to ask of it; set by its owner, never by a server.

    `unit` says what the three limits on epsilon count: all numbers of a contribution together (``model``), or each on
    its own (``feature``, which is much less: see `Specification.describe`). `epsilon` limits one contribution,
    `daily_epsilon` those of a day, `budget` those of all time. `fields` are the columns that a model may use, by
    default every column. Without a word from the owner: one contribution of epsilon 2 a day, and ten in all.
    """

    epsilon: float = 2.0
    daily_epsilon: float = 2.0
    budget: Budget = field(default_factory=lambda: Budget(epsilon=20.0, delta=1e-9))
    unit: Unit = "model"
    fields: Collection[str] | None = None
    most_weights: int = 100_000
    most_examples: int = 100
    most_instances: int = 1_000

    def __post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon, daily_epsilon=self.daily_epsilon)
        _validate.count(
            most_weights=self.most_weights, most_examples=self.most_examples, most_instances=self.most_instances
        )

    def check(self, asked: Specification, columns: Collection[str]) -> None:
        """Refuse (`SpecificationRefused`) what this policy does not allow, for a table with these columns."""
        allowed = [name for name in columns if self.fields is None or name in self.fields]
        for name in asked.names:
            if name not in allowed:
                raise SpecificationRefused(f"the field {name} is not one that this device lets models use")
        for what, value, most in (
            ("weights", asked.size, self.most_weights),
            ("examples", asked.examples, self.most_examples),
            ("instances", asked.instances, self.most_instances),
        ):
            if value > most:
                raise SpecificationRefused(f"{value} {what} are more than this device allows, {most}")
        if asked.noise == "none":
            raise SpecificationRefused("without noise nothing leaves this device")
        cost = self.cost(asked.mechanism)
        if not cost <= self.epsilon:
            raise SpecificationRefused(
                f"a contribution would cost epsilon = {cost:.6g} per {self.unit}; this device allows {self.epsilon:g}"
            )

    def cost(self, mechanism: Mechanism) -> float:
        """The epsilon of one contribution, in the policy's unit (for Gaussian noise at the budget's delta)."""
        event = mechanism.event(self.unit)
        if isinstance(event, LaplaceDpEvent) and self.unit == mechanism.privacy:
            return mechanism.epsilon  # to the last bit
        if isinstance(event, LaplaceDpEvent):
            return float(1 / event.noise_multiplier)
        return price(event, delta=self.budget.delta, relation=RELATION).epsilon
