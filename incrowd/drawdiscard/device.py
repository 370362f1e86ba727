"""A device: it keeps its examples, and answers a server with noise of its own, within limits of its own.

There is one way from its table to a released number: table -> features -> gradient -> clip -> charge -> noise. The
server's part is data, which is read strictly and refused where the device's policy does not allow it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import date
from os import PathLike

import numpy as np
from dp_accounting import LaplaceDpEvent
from numpy.typing import ArrayLike

from incrowd import _validate
from incrowd._random import Floats, Randomness, SystemRandomness
from incrowd.drawdiscard.glm import FlatModel
from incrowd.drawdiscard.specification import Specification
from incrowd.drawdiscard.table import ExampleTable
from incrowd.errors import ConfigError, SpecificationRefused
from incrowd.privacy.account.accounting import Budget, price
from incrowd.privacy.allowance import Allowance, utc_today
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.device import RELATION, Contribution, Mechanism, Unit


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a device allows any server to ask of it; set by its owner, never by a server.

    `unit` says what the three limits on epsilon count: all numbers of a contribution together (``model``), or each on
    its own (``feature``, which is much less: see `Specification.describe`). `epsilon` limits one contribution,
    `daily_epsilon` those of a day, `budget` those of all time. `fields` are the columns that a model may use, by
    default every column.
    """

    epsilon: float
    daily_epsilon: float
    budget: Budget
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


@dataclass(frozen=True, kw_only=True)
class Device:
    """A table of examples, a policy and a ledger: what answers a server.

    Guarantee: a contribution is charged to the device's ledger, on disk, before its noise is drawn (from the operating
    system unless a simulation asks otherwise); when it is refused, by the policy or for lack of budget, nothing is
    spent and nothing released. A server sends plain data only; no part of it is run. What is released depends on the
    table through one noised gradient, whatever model and weights the server sends.

    Edge cases: with no example that fits, the device answers all the same, with noise alone: silence would tell that
    its table is empty. Weights that are not finite, or of another number, are refused.
    """

    table: ExampleTable
    policy: Policy
    ledger: Ledger
    randomness: Randomness = field(default_factory=SystemRandomness)
    today: Callable[[], date] = utc_today

    @classmethod
    def open(cls, *, table: ExampleTable, ledger: str | PathLike[str], policy: Policy) -> "Device":
        """A device whose ledger is a file, begun with the policy's budget if it is not there yet.

        Edge cases: a ledger that counts in another unit, or has another budget, is refused (`LedgerMismatch`).
        """
        identity = f"a device's examples, per {policy.unit}"
        opened = Ledger.open(ledger, budget=policy.budget, relation=RELATION, data_identity=identity)
        return cls(table=table, policy=policy, ledger=opened)

    @property
    def allowance(self) -> Allowance:
        """What is spent, and what may still be."""
        return Allowance(
            ledger=self.ledger,
            daily_epsilon=self.policy.daily_epsilon,
            exclusive=self.table.exclusive,
            unit=self.policy.unit,
            today=self.today,
        )

    def contribute(self, specification: str | bytes, weights: ArrayLike) -> Floats:
        """The instance that a server sent, updated: what goes back to it.

        Edge cases: `SpecificationRefused` or `BudgetExceeded`, and nothing was spent or released.
        """
        try:
            asked = Specification.from_json(specification)
        except ConfigError as error:
            raise SpecificationRefused(f"the server's specification makes no sense: {error}") from error
        self.policy.check(asked, self.table.columns)
        instance, model = _instance(weights, asked.size), _model(asked)
        contribution = Contribution(asked.mechanism, self._gradient(asked, model, instance))
        note = {"specification": asked.fingerprint}
        noised = contribution.release(
            charge=lambda mechanism: self.allowance.charge(mechanism, randomness=self.randomness, note=note)
        )
        with np.errstate(over="ignore"):  # a server may ask for steps beyond every number
            return instance - asked.gamma * noised

    def _gradient(self, asked: Specification, model: FlatModel, instance: Floats) -> Floats:
        """The mean gradient over some of the device's examples. Private."""
        stream = self.randomness.stream("examples", int(self.ledger.head[:12], 16))  # other examples every time
        features, responses = asked.encode(self.table.sample(asked.names, most=asked.examples, stream=stream))
        with np.errstate(all="ignore"):  # what is not finite in the end counts as zero, without a word
            gradient: Floats = model.gradient(instance, features, responses).astype(np.float64)
        return gradient


def _model(asked: Specification) -> FlatModel:
    try:
        return asked.model
    except ImportError as error:
        raise SpecificationRefused(f"this device cannot compute such a model: {error}") from error


def _instance(weights: ArrayLike, size: int) -> Floats:
    try:
        instance = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise SpecificationRefused(f"the server's instance is not numbers: {error}") from error
    if instance.shape != (size,) or not np.isfinite(instance).all():
        raise SpecificationRefused(f"the server's instance is not {size} finite weights")
    return instance
