"""How a federation of table 1 learns: everything that can be chosen, stated in public before the first round."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness import checks
from harness.arrays import Matrix
from incrowd import (
    Budget,
    ConfigError,
    Everyone,
    Local,
    NormalisedClip,
    Plan,
    PlanConfig,
    Poisson,
    ServerOptimizer,
    constant,
)
from incrowd.data import Examples, Split
from incrowd.learning import Model, linear
from incrowd.learning.features import FeatureMap, UnitNorm, transform
from incrowd.privacy.mechanism import Clip, MedianClip

STEEPEST = Local(learning_rate=100.0, shuffle=False)
"""One step along the gradient of all examples. Its length is normalised away; a long one keeps more digits."""


def softmax_regression(inputs: int, outputs: int) -> Model:
    """Linear outputs without biases: where classes are equally frequent a bias learns nothing but noise."""
    return linear(inputs, outputs, bias=False)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Everything about one federation but its clients, its budget and its seed.

    The model sees the first `dimensions` of the `features`, or the examples as they are where there are none. Everyone
    takes part in every round, or a Poisson `share` of the clients. The first weights are fresh ones times `init_scale`.
    """

    rounds: int
    server: ServerOptimizer
    features: FeatureMap | None = None
    dimensions: int | None = None
    model: Callable[[int, int], Model] = softmax_regression
    local: Local = STEEPEST
    clip: Clip | MedianClip = field(default_factory=NormalisedClip)
    share: float = 1.0
    init_scale: float = 0.0

    def __post_init__(self) -> None:
        checks.count(rounds=self.rounds)
        checks.probability(share=self.share)
        checks.non_negative(init_scale=self.init_scale)

    def plan(self, clients: int) -> PlanConfig:
        """Who takes part, and how contributions are bounded; the noise is still to be calibrated."""
        cohort = self.share * clients
        return PlanConfig(
            members=clients,
            schedule=constant(rounds=self.rounds, cohort=cohort),
            sampling=Everyone if self.share == 1 else Poisson,
            clip=self.clip,
        )

    def promise(self, clients: int, budget: Budget) -> Plan:
        """The plan that spends this budget."""
        return self.plan(clients).calibrate(budget)

    def stated(self, plan: Plan, budget: Budget) -> dict[str, object]:
        """What is claimed for such a run: no more than what holds."""
        return {
            "epsilon": plan.price.epsilon,
            "budget_epsilon": budget.epsilon,
            "accountant": plan.price.accountant,
            "warnings": [],
        }

    def prepared(self, split: Split, *, cache: Path | None = None) -> Split:
        """What clients and server make of their examples, each example by itself: it costs no privacy."""
        test = None if split.test is None else self._seen(split.test, cache)
        return Split(name=split.name, train=self._seen(split.train, cache), test=test)

    def _seen(self, examples: Examples, cache: Path | None) -> Examples:
        if self.features is None:
            return examples
        mapped = transform(self.features, examples, cache=cache, alone=False)
        return (
            mapped if self.dimensions is None else transform(Leading(dimensions=self.dimensions), mapped, alone=False)
        )


@dataclass(frozen=True, kw_only=True)
class Leading:
    """The first `dimensions` features at norm 1: a metric of many directions contains those of few.

    Edge cases: fewer features than that are refused.
    """

    dimensions: int

    def __post_init__(self) -> None:
        checks.count(dimensions=self.dimensions)

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return repr(self)

    def __call__(self, values: Matrix) -> Matrix:
        """See `FeatureMap.__call__`."""
        if values.shape[1] < self.dimensions:
            remedy = f"give at most {values.shape[1]}, the number of features"
            raise ConfigError(field="dimensions", value=self.dimensions, remedy=remedy)
        return UnitNorm()(values[:, : self.dimensions])
