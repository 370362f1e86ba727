"""Draw and discard on MNIST as in Pihur et al. (2018), section V: one curve at a time.

Softmax regression on pixels in [0, 1]; the training examples are divided among devices of 10 at random; in each pass
every device comes once, in a new random order. Loss is on all training examples, accuracy on the test examples, both of
the average of the instances, over the number of examples that devices have read.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from harness import checks
from harness.arrays import Floats, Integers, Matrix
from harness.seeds import Entry, Say, means, repeated, silent, summary
from incrowd import ConfigError, DataError, SeededRandomness
from incrowd.data import Examples, Split
from incrowd.drawdiscard import (
    MULTINOMIAL,
    Coins,
    Genealogy,
    Glm,
    GlmGradients,
    Updates,
    accept_one_in,
    batch_updates,
    draw_and_discard,
    same_instance,
    seeded_noise,
    simulate,
    split_among_devices,
    stable_variance,
    with_intercept,
)
from incrowd.privacy.mechanism import Mechanism
from incrowd.types import Randomness

PER_DEVICE = 10
LEARNING_RATE = 0.001
LOOKS = (0.0, 0.1, 0.25, 0.5)
"""Where curves are looked at besides after each pass, in passes: they move fastest at the start."""

Tosses = Callable[["Case", int, Randomness], Coins]


def _discard(case: "Case", updates: int, randomness: Randomness) -> Coins:
    merge = 0.5 if case.strategy.endswith(AVERAGED) else 1.0
    return draw_and_discard(
        instances=case.instances, updates=updates, randomness=randomness, in_flight=case.in_flight, merge=merge
    )


def _same(case: "Case", updates: int, randomness: Randomness) -> Coins:
    merge = 0.5 if case.strategy.endswith(AVERAGED) else 1.0
    return same_instance(instances=case.instances, updates=updates, randomness=randomness, merge=merge)


def _accept(case: "Case", updates: int, randomness: Randomness) -> Coins:
    return accept_one_in(case.instances, updates=updates, randomness=randomness)


AVERAGED = ", averaged"
BATCHING = "batching"
STRATEGIES: Mapping[str, Tosses] = MappingProxyType(
    {
        "draw and discard": _discard,
        "accept one in k": _accept,
        "same instance": _same,
        f"draw and discard{AVERAGED}": _discard,
        f"same instance{AVERAGED}": _same,
    }
)
"""What a server may do with an update; "averaged" merges it with what it replaces. `BATCHING` has no coins to toss."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One curve. The defaults are the paper's.

    `instances` is k (for batching, how many updates a batch has). The learning rate falls to 0 as the power `decay` of
    what is left of the updates; the noise falls with it. `tail` is the share of the updates, the last ones, over which
    the released model is averaged; 0 takes the last state. Without an epsilon there is no noise, and the instances
    start as far apart as with epsilon 1. Epsilon is about each weight on its own, or with `whole` about all of them
    together; then `clip` bounds the L1 norm of a gradient. A device averages the gradient over `examples` of its ten,
    others in each pass. `in_flight` devices learn at the same time (draw and discard only).
    """

    label: str
    instances: int = 10
    epsilon: float | None = None
    learning_rate: float = LEARNING_RATE
    clip: float = 1.0
    strategy: str = "draw and discard"
    decay: float = 0.0
    tail: float = 0.0
    whole: bool = False
    examples: int = PER_DEVICE
    in_flight: int = 1

    def __post_init__(self) -> None:
        checks.count(instances=self.instances, examples=self.examples, in_flight=self.in_flight)
        checks.positive(learning_rate=self.learning_rate, clip=self.clip)
        checks.non_negative(decay=self.decay, tail=self.tail)
        checks.at_most(1.0, "all updates", tail=self.tail)
        if self.strategy not in {*STRATEGIES, BATCHING}:
            remedy = f"give one of {', '.join([*STRATEGIES, BATCHING])}"
            raise ConfigError(field="strategy", value=self.strategy, remedy=remedy)
        if self.in_flight > 1 and STRATEGIES.get(self.strategy) is not _discard:
            remedy = "only draw and discard is simulated with several devices at a time"
            raise ConfigError(field="in_flight", value=self.in_flight, remedy=remedy)
        if PER_DEVICE % self.examples:
            remedy = f"give a divisor of {PER_DEVICE}, the number of a device's examples"
            raise ConfigError(field="examples", value=self.examples, remedy=remedy)

    def mechanism(self, size: int) -> Mechanism:
        """What hides a device: Laplace noise for each weight."""
        quiet = self.epsilon is None
        return Mechanism(
            size=size,
            clip=self.clip,
            epsilon=1.0 if self.epsilon is None else self.epsilon,
            noise="none" if quiet else "laplace",
            privacy="model" if self.whole else "feature",
            bound="norm" if self.whole else "element",
        )

    def rates(self, updates: int) -> Floats:
        """The learning rate of each update."""
        rates: Floats = self.learning_rate * (1 - np.arange(updates) / updates) ** self.decay
        return rates


@dataclass(frozen=True, kw_only=True)
class Study:
    """The examples, how often they are passed over, and how often everything is repeated, all drawn anew.

    Edge cases: a set without test examples or classes, or fewer examples than a device has, is refused.
    """

    split: Split = field(repr=False)
    passes: int = 20
    seeds: int = 1
    say: Say = field(default=silent, repr=False)

    def __post_init__(self) -> None:
        checks.count(passes=self.passes, seeds=self.seeds)
        if self.split.test is None or self.split.train.classes is None:
            raise DataError("draw and discard is measured on examples with classes, some of them for testing")
        if len(self.split.train) < PER_DEVICE:
            raise DataError(f"{len(self.split.train)} training examples do not fill a device of {PER_DEVICE}")

    @property
    def devices(self) -> int:
        """How many devices there are, and updates in a pass."""
        return len(self.split.train) // PER_DEVICE

    @property
    def updates(self) -> int:
        """How many updates there are in all passes."""
        return self.passes * self.devices

    @cached_property
    def model(self) -> Glm:
        """Softmax regression."""
        train = self.split.train
        return Glm(features=math.prod(train.shape), outputs=train.classes or 0, link=MULTINOMIAL)

    @cached_property
    def moments(self) -> list[int]:
        """After how many updates curves are looked at."""
        early = {round(look * self.devices) for look in LOOKS}
        return sorted(early | {number * self.devices for number in range(1, self.passes + 1)})

    def curves(self, cases: list[Case]) -> list[Entry]:
        """One series for each case."""
        return [self.curve(case) for case in cases]

    def curve(self, case: Case) -> Entry:
        """Loss and accuracy at the moments, and over the tail: means over the seeds."""
        several = repeated(lambda seed: self._run(case, seed), seeds=self.seeds)
        runs = several.runs
        accuracies, losses = [run["accuracy"] for run in runs], [run["loss"] for run in runs]
        finals = [run["final"] for run in runs]
        curve = {
            "label": case.label,
            "strategy": case.strategy,
            "instances": case.instances,
            "epsilon": case.epsilon,
            "unit": "model" if case.whole else "feature",
            "learning_rate": case.learning_rate,
            "clip": case.clip,
            "decay": case.decay,
            "tail": case.tail,
            "examples_per_update": case.examples,
            "in_flight": case.in_flight,
            "examples": [moment * case.examples for moment in self.moments],
            "loss": means(losses),
            "accuracy": means(accuracies),
            **summary(finals, "final_accuracy"),
            "seeds": self.seeds,
            "updates": self.updates,
            "updates_computed": several.first["computed"],
            "seconds": several.seconds,
        }
        self.say(f"{case.label}: accuracy {curve['final_accuracy']:.4f} ({curve['seconds']:.1f} s)")
        return curve

    def _run(self, case: Case, seed: int) -> dict[str, Any]:
        randomness = SeededRandomness(seed)
        mechanism = case.mechanism(self.model.size)
        parts = PER_DEVICE // case.examples
        turns = np.repeat(np.arange(self.passes) % parts, self.devices)
        updates = Updates(
            gradients=self._gradients(seed, case.examples),
            mechanism=mechanism,
            devices=order_of(self.devices, self.passes, randomness) * parts + turns,
            rates=case.rates(self.updates),
            noise=seeded_noise(mechanism, randomness),
        )
        moments = self.moments + _tail(case, self.updates)
        weights, computed = self._weights(case, updates, moments, randomness)
        looks = weights[: len(self.moments)]
        final = weights[len(self.moments) :].mean(axis=0) if case.tail else looks[-1]
        return {
            "loss": [self._loss(one) for one in looks],
            "accuracy": [self.accuracy(one) for one in looks],
            "final": self.accuracy(final),
            "computed": computed,
        }

    def _weights(self, case: Case, updates: Updates, moments: list[int], randomness: Randomness) -> tuple[Matrix, int]:
        size = self.model.size
        if case.strategy == BATCHING:
            learned = batch_updates(updates, batch=case.instances, start=np.zeros(size), moments=moments)
            return learned, self.updates
        coins = STRATEGIES[case.strategy](case, self.updates, randomness)
        variance = stable_variance(coins.instances, updates.mechanism.noise_variance * case.learning_rate**2)
        normals = randomness.stream("initialisation").normals(coins.instances * size)
        start = math.sqrt(variance) * normals.reshape(coins.instances, size)
        learned = simulate(updates, coins, start=start, moments=moments)
        return learned, len(Genealogy(coins, moments).needed)

    def accuracy(self, weights: Matrix) -> float:
        """The share of the test examples that is classified rightly."""
        inputs, labels = self._test
        return float(np.mean((inputs @ weights.reshape(-1, self.model.outputs)).argmax(axis=1) == labels))

    def _loss(self, weights: Matrix) -> float:
        inputs, labels = self._train
        outputs = inputs @ weights.reshape(-1, self.model.outputs)
        return float(MULTINOMIAL.losses(outputs, np.eye(self.model.outputs, dtype=np.float32)[labels]).mean())

    def _gradients(self, seed: int, examples: int) -> GlmGradients:
        """The devices' parts, of so many examples each, one after the other."""
        if (seed, examples) not in self._kept:
            self._kept.clear()  # one order at a time: each is a copy of all training examples
            inputs, labels = self._train
            order = order_of(len(labels), 1, SeededRandomness(seed), purpose="deal")
            rows = split_among_devices(len(labels), per_device=PER_DEVICE, order=order).reshape(-1, examples)
            self._kept[seed, examples] = GlmGradients(self.model, inputs[rows], labels[rows])
        return self._kept[seed, examples]

    @cached_property
    def _kept(self) -> dict[tuple[int, int], GlmGradients]:
        return {}

    @cached_property
    def _train(self) -> tuple[Matrix, Integers]:
        return _loaded(self.split.train)

    @cached_property
    def _test(self) -> tuple[Matrix, Integers]:
        return _loaded(self.split.test or self.split.train)  # there is one: checked at the start


def _tail(case: Case, updates: int) -> list[int]:
    """A hundred moments over the tail."""
    if case.tail == 0:
        return []
    return [round(moment) for moment in np.linspace((1 - case.tail) * updates, updates, 100)]


def order_of(count: int, passes: int, randomness: Randomness, *, purpose: str = "order") -> Integers:
    """A new random order for each pass."""
    stream = randomness.stream(purpose)
    return np.concatenate([np.argsort(stream.bits(count), kind="stable") for _ in range(passes)])


def _loaded(examples: Examples) -> tuple[Matrix, Integers]:
    values = examples.values(slice(None)).reshape(len(examples), -1)
    return with_intercept(values), examples.labels.astype(np.int64)
