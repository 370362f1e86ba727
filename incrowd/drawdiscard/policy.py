"""The policy of a device's owner for all servers."""

from collections.abc import Collection
from dataclasses import dataclass, field

from dp_accounting import LaplaceDpEvent

from incrowd import _validate
from incrowd.drawdiscard.fields import AnyTableField, CountField, ListField, TextField, WordsField
from incrowd.drawdiscard.specification import Specification
from incrowd.drawdiscard.texts import LONGEST_TEXT
from incrowd.errors import SpecificationRefused
from incrowd.privacy.account.accounting import Budget, price
from incrowd.privacy.account.events import PureDpEvent
from incrowd.privacy.mechanism.device import RELATION, Mechanism, Unit


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The limits of a device for the specification of any server.

    `epsilon` limits one contribution, `daily_epsilon` a day's, `budget` all. They count all numbers of a contribution
    together (unit ``model``) or each number alone (unit ``feature``, a weaker promise). In both units all numbers
    together cost at most `whole_epsilon`, by default ten times `epsilon`. A model may use the columns in `fields`, by
    default all. `most_work` limits the pieces of text in a contribution, for texts of the largest length: a server can
    see how long the work takes.

    Guarantee: per feature, a column in several numbers, by several fields, crosses or classes, costs its epsilon as
    often (`Specification.repeats`). The response is in every number, within `whole_epsilon`.
    """

    epsilon: float = 2.0
    daily_epsilon: float = 2.0
    budget: Budget = field(default_factory=lambda: Budget(epsilon=20.0, delta=1e-9))
    unit: Unit = "model"
    whole_epsilon: float | None = None
    fields: Collection[str] | None = None
    most_weights: int = 100_000
    most_examples: int = 100
    most_instances: int = 1_000
    most_work: int = 4_000_000

    def __post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon, daily_epsilon=self.daily_epsilon)
        if self.whole_epsilon is not None:
            _validate.positive(whole_epsilon=self.whole_epsilon)
        _validate.count(
            most_weights=self.most_weights,
            most_examples=self.most_examples,
            most_instances=self.most_instances,
            most_work=self.most_work,
        )

    def check(self, asked: Specification, columns: Collection[str]) -> None:
        """Refuse a specification beyond these limits (`SpecificationRefused`), for a table with these columns."""
        allowed = [name for name in columns if self.fields is None or name in self.fields]
        for name in asked.names:
            if name not in allowed:
                raise SpecificationRefused(f"the field {name} is not one that this device lets models use")
        for what, value, most in (
            ("weights", asked.size, self.most_weights),
            ("examples", asked.examples, self.most_examples),
            ("instances", asked.instances, self.most_instances),
            ("pieces of text", asked.examples * sum(_pieces(one) for _, one in asked.used.values()), self.most_work),
        ):
            if value > most:
                raise SpecificationRefused(f"{value} {what} are more than this device allows, {most}")
        if asked.noise == "none":
            raise SpecificationRefused("without noise nothing leaves this device")
        cost, whole = self.cost(asked.mechanism), self.cost(asked.mechanism, "model")
        if not cost <= self.epsilon:
            raise SpecificationRefused(
                f"a contribution would cost epsilon = {cost:.6g} per {self.unit}; this device allows {self.epsilon:g}"
            )
        together = 10 * self.epsilon if self.whole_epsilon is None else self.whole_epsilon
        if not whole <= together:
            raise SpecificationRefused(
                f"all {asked.size} numbers of a contribution together would cost epsilon = {whole:.6g}; this device "
                f"allows {together:g}"
            )

    def cost(self, mechanism: Mechanism, unit: Unit | None = None) -> float:
        """The epsilon of a contribution, in the policy's unit by default; Gaussian noise takes the budget's delta."""
        event = mechanism.event(unit or self.unit)
        if isinstance(event, PureDpEvent):
            return float(event.epsilon)
        if isinstance(event, LaplaceDpEvent):
            own = event.noise_multiplier == mechanism.multiplier
            return mechanism.epsilon if own else float(1 / event.noise_multiplier)  # its own without rounding
        return price(event, delta=self.budget.delta, relation=RELATION).epsilon


def _pieces(described: AnyTableField) -> int:
    """The most pieces of text in one example: an n-gram is a piece; words and characters take a hundredth."""
    if isinstance(described, TextField):
        return LONGEST_TEXT * (1 + described.longest - described.shortest)
    if isinstance(described, ListField):
        return LONGEST_TEXT
    if isinstance(described, WordsField):
        return LONGEST_TEXT // 100 * len(described.words)
    if isinstance(described, CountField):
        return LONGEST_TEXT // 100 * len(described.characters or "a")
    return 1
