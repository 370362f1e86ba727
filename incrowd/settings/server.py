"""What the server does with a released mean. All of it is post-processing, which is free."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from incrowd import _validate
from incrowd._random import Floats
from incrowd.settings.section import Section

OptimizerState = Mapping[str, Floats]

SECOND_MOMENT = 0.99
"""How slowly Adam forgets the squares of earlier means."""

_MOMENTS = {"sgd": (), "momentum": ("velocity",), "adam": ("first", "second")}


class ServerOptimizer(Section):
    """How a released mean, whose norm is at most the clip's, moves the weights.

    `sgd` adds learning_rate times the mean; `momentum` adds the velocity v = momentum * v + mean; `adam` is Adam on the
    mean (Reddi et al. 2021), without bias correction and with an `adaptivity` well above 0, as they recommend. With
    `decay` "linear" the rate of round t out of T is learning_rate * (1 - t / T). With `average` "tail" the published
    weights are the mean over the last half of the rounds.

    Guarantee: nothing but released means enters, so nothing here costs privacy.
    """

    kind: Literal["sgd", "momentum", "adam"] = "sgd"
    learning_rate: float = 1.0
    momentum: float = 0.9
    adaptivity: float = 1e-3
    decay: Literal["none", "linear"] = "none"
    average: Literal["none", "tail"] = "none"

    def model_post_init(self, context: Any, /) -> None:
        """Refuse numbers that make no sense."""
        _validate.positive(**self.named("server", "learning_rate", "adaptivity"))
        _validate.below_one(**self.named("server", "momentum"))

    def rate(self, round: int, rounds: int) -> float:
        """The learning rate of a round, counted from 0."""
        return self.learning_rate * (1 - round / rounds if self.decay == "linear" else 1.0)

    def counts(self, round: int, rounds: int) -> bool:
        """Whether the weights after this round belong to the average that is published."""
        return self.average == "tail" and round >= rounds // 2

    def start(self, size: int) -> OptimizerState:
        """What the step remembers before the first round."""
        return {name: np.zeros(size) for name in _MOMENTS[self.kind]}

    def direction(self, mean: Floats, memory: OptimizerState) -> tuple[Floats, OptimizerState]:
        """Where to go for a rate of 1, and what to remember."""
        if self.kind == "sgd":
            return mean, memory
        if self.kind == "momentum":
            velocity = self.momentum * memory["velocity"] + mean
            return velocity, {"velocity": velocity}
        first = self.momentum * memory["first"] + (1 - self.momentum) * mean
        second = SECOND_MOMENT * memory["second"] + (1 - SECOND_MOMENT) * mean**2
        return first / (np.sqrt(second) + self.adaptivity), {"first": first, "second": second}
