"""Protocols of the extension points: a class that has these methods works, without inheritance."""

from collections.abc import Mapping
from typing import Protocol

from incrowd._extensions import register
from incrowd._random import Floats

__all__ = ["ServerOptimizer", "register"]


class ServerOptimizer(Protocol):
    """A server optimizer: a pair of functions over named arrays of float64. Register a function that makes it from the
    settings `incrowd.ServerOptimizer`.
    """

    def init(self, size: int) -> Mapping[str, Floats]:
        """The arrays before the first step."""
        ...

    def update(self, mean: Floats, state: Mapping[str, Floats]) -> tuple[Floats, Mapping[str, Floats]]:
        """The direction of a step along a released mean, and the next arrays, of the same names and shapes."""
        ...
