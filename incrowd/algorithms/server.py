"""Server optimizers: the server's step along a released mean. It is post-processing, so it costs no privacy.

An optimizer is a pair of functions: `init` gives named arrays, `update` takes a mean and the arrays to a direction and
the next arrays. `incrowd.types.ServerOptimizer` is the protocol for one of your own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from incrowd import _extensions
from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.settings import ServerOptimizer
from incrowd.types import ServerOptimizer as Optimizer

Memory = Mapping[str, Floats]

SECOND_MOMENT = 0.99
"""The decay of the second moment in Adam and Yogi (beta_2)."""


def optimizer_of(settings: ServerOptimizer) -> Optimizer:
    """The optimizer that settings name: a built-in one, or a registered one of another package."""
    if settings.built_in:
        return _BuiltIn(settings)
    made: Optimizer = _extensions.found("server_optimizers", settings.kind)(settings)
    return made


def stepped(settings: ServerOptimizer, mean: Floats, memory: Memory) -> tuple[Floats, Memory]:
    """The direction of one step for a learning rate of 1, and the next memory.

    Edge cases: a third-party optimizer that changes sizes or names, or gives numbers that are not finite, is refused.
    """
    direction, after = optimizer_of(settings).update(mean, memory)
    if not settings.built_in:
        shapes = {name: np.shape(array) for name, array in memory.items()}
        right = np.shape(direction) == mean.shape and {name: np.shape(one) for name, one in after.items()} == shapes
        if not right or not all(np.isfinite(one).all() for one in (direction, *after.values())):
            remedy = f"return {mean.size} finite numbers, and the arrays {shapes}, finite too"
            raise ConfigError(field="server.kind", value=settings.kind, remedy=remedy)
    return direction, after


@dataclass(frozen=True)
class _BuiltIn:
    """A pair of functions of the settings. Yogi's second moment starts at the square of the adaptivity."""

    settings: ServerOptimizer

    def init(self, size: int) -> Memory:
        """See `incrowd.types.ServerOptimizer.init`."""
        start = self.settings.adaptivity**2 if self.settings.kind == "yogi" else 0.0
        return {name: np.full(size, start if name == "second" else 0.0) for name in _BUILT_IN[self.settings.kind][0]}

    def update(self, mean: Floats, state: Memory) -> tuple[Floats, Memory]:
        """See `incrowd.types.ServerOptimizer.update`."""
        return _BUILT_IN[self.settings.kind][1](self.settings, mean, state)


def _sgd(_: ServerOptimizer, mean: Floats, memory: Memory) -> tuple[Floats, Memory]:
    return mean, memory


def _momentum(settings: ServerOptimizer, mean: Floats, memory: Memory) -> tuple[Floats, Memory]:
    velocity = settings.momentum * memory["velocity"] + mean
    return velocity, {"velocity": velocity}


def _adam(settings: ServerOptimizer, mean: Floats, memory: Memory) -> tuple[Floats, Memory]:
    second = SECOND_MOMENT * memory["second"] + (1 - SECOND_MOMENT) * mean**2
    return _adaptive(settings, mean, memory, second)


def _yogi(settings: ServerOptimizer, mean: Floats, memory: Memory) -> tuple[Floats, Memory]:
    square, before = mean**2, memory["second"]
    return _adaptive(settings, mean, memory, before - (1 - SECOND_MOMENT) * square * np.sign(before - square))


def _adaptive(settings: ServerOptimizer, mean: Floats, memory: Memory, second: Floats) -> tuple[Floats, Memory]:
    first = settings.momentum * memory["first"] + (1 - settings.momentum) * mean
    return first / (np.sqrt(second) + settings.adaptivity), {"first": first, "second": second}


_BUILT_IN = {
    "sgd": ((), _sgd),
    "momentum": (("velocity",), _momentum),
    "adam": (("first", "second"), _adam),
    "yogi": (("first", "second"), _yogi),
}
