"""The clients of a round, and their results: contributions chunk by chunk, or their sum alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from incrowd._random import Floats, Randomness
from incrowd.learning.contributions import Contributions
from incrowd.learning.engine import CohortEngine
from incrowd.learning.mean_query import VectorCohort
from incrowd.learning.total import ShortenedSum, Shortening, summed


@dataclass(frozen=True, eq=False)
class EngineTrainer:
    """The engine of this machine as who trains: see `incrowd.privacy.release.Trainer`. With a label query the first
    round asks clients for their label distribution instead.

    `see` is shown every chunk on its way, which a simulation may.
    """

    engine: CohortEngine
    weights: ArrayLike | Tensor
    randomness: Randomness = field(kw_only=True)
    see: Callable[[Contributions], object] | None = field(kw_only=True, default=None)

    def cohort(self, clients: Sequence[int] | NDArray[np.int64], *, round: int) -> "EngineCohort | VectorCohort":
        """The contributions of these clients to a round that starts with the weights."""
        its, query = [int(client) for client in clients], self.engine.label_query
        if query is not None and round == 0:
            return query.trainer(self.engine.data, width=self.engine.model.size).cohort(its, round=round)
        return EngineCohort(
            engine=self.engine,
            weights=self.weights,
            clients=its,
            randomness=self.randomness,
            round=round,
            see=self.see,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineCohort:
    """Clients of an engine's data, trained in a round from these weights as soon as their contributions are asked for.

    `see` is shown every chunk on its way, which a simulation may.
    """

    engine: CohortEngine
    weights: ArrayLike | Tensor
    clients: Sequence[int]
    randomness: Randomness
    round: int
    see: Callable[[Contributions], object] | None = None

    def chunks(self) -> Iterator[Contributions]:
        """See `CohortEngine.train`."""
        chunks = self.engine.train(self.weights, self.clients, randomness=self.randomness, round=self.round)
        for chunk in chunks:
            if self.see is not None:
                self.see(chunk)
            yield chunk

    def summed(
        self, *, bound: float, parts: tuple[int, ...] | None, factors: Callable[[Floats], Floats]
    ) -> ShortenedSum:
        """The contributions times factors of their norms, added up where they are computed; see `Shortening`."""
        how = Shortening(bound=bound, parts=parts, factors=factors)
        if self.see is not None:
            return summed(self.chunks(), how, size=self.engine.model.size)
        return self.engine.train_and_sum(self.weights, self.clients, how, randomness=self.randomness, round=self.round)
