"""What a feature map is, and how several become one."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from incrowd.errors import ConfigError

Values = NDArray[np.float32]


class FeatureMap(Protocol):
    """A fixed function from examples [n, ...] to their features [n, d], or to [n, ...] for a map that comes after.

    A client applies it to its own examples at home, before it contributes anything. It was fixed before anyone looked
    at the data: nothing is learnt from them, nothing leaves the client, so it costs no privacy. What the model learns
    from the features is clipped, noised and charged, as what it learns from the examples would be.

    Guarantee: an example's features depend on that example alone (up to the rounding of float32). A map that breaks
    this, say by subtracting the mean of a batch, would let one example change others; `transform` looks for it.
    """

    @property
    def name(self) -> str:
        """Says all that the features depend on: two maps of the same name compute the same."""
        ...

    def __call__(self, values: Values) -> Values:
        """Features of a few examples, given as they are meant. Called from several threads at once."""
        ...


@dataclass(frozen=True)
class Composed:
    """Maps one after the other."""

    stages: tuple[FeatureMap, ...]

    @property
    def name(self) -> str:
        """The names of all, in order."""
        return " > ".join(stage.name for stage in self.stages)

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        for stage in self.stages:
            values = stage(values)
        return values


def compose(*stages: FeatureMap) -> FeatureMap:
    """One map that applies several, the first one first."""
    if not stages:
        raise ConfigError(field="stages", value=stages, remedy="give at least one feature map")
    return Composed(stages)
