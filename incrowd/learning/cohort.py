"""Clients who are to train, and what can be had of them: contributions chunk by chunk, or their sum alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from numpy.typing import ArrayLike
from torch import Tensor

from incrowd._random import Floats, Randomness
from incrowd.learning.chunk import Chunk
from incrowd.learning.engine import Clients, CohortEngine
from incrowd.learning.total import Shortening, Summed, summed


@dataclass(frozen=True, kw_only=True, eq=False)
class Cohort:
    """Clients of an engine's data, trained in a round from these weights as soon as their contributions are asked for.

    `see` is shown every chunk on its way, which a simulation may.
    """

    engine: CohortEngine
    weights: ArrayLike | Tensor
    clients: Clients
    randomness: Randomness
    round: int
    see: Callable[[Chunk], object] | None = None

    def chunks(self) -> Iterator[Chunk]:
        """See `CohortEngine.train`."""
        chunks = self.engine.train(self.weights, self.clients, randomness=self.randomness, round=self.round)
        for chunk in chunks:
            if self.see is not None:
                self.see(chunk)
            yield chunk

    def summed(self, *, bound: float, parts: tuple[int, ...] | None, factors: Callable[[Floats], Floats]) -> Summed:
        """The contributions times factors of their norms, added up where they are computed; see `Shortening`."""
        how = Shortening(bound=bound, parts=parts, factors=factors)
        if self.see is not None:
            return summed(self.chunks(), how, size=self.engine.model.size)
        return self.engine.train_and_sum(self.weights, self.clients, how, randomness=self.randomness, round=self.round)
