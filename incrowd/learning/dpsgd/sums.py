"""Sums of clipped gradients over the records of all silos, for noise that somebody else adds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from incrowd._random import Randomness, Stream
from incrowd.errors import ConfigError
from incrowd.learning.arithmetic import with_threads
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.privacy.mechanism.clipped_sum import ClientNumbers, Observed, Part
from incrowd.privacy.mechanism.clipping import Clip, FixedClip
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.mechanism.noise import RecordTraining


def descent_sum(
    engine: BatchedRecords, weights: ArrayLike | Tensor, training: RecordTraining, *, batches: Stream
) -> Whole:
    """Minus the clipped sum of one silo's batch, in whole steps of the noise's grid. Private.

    Guarantee: one record moves it by at most `RecordTraining.sensitivity`; `GaussianNoise` covers the rounding.
    """
    total, step = engine.clipped_sum(weights, training, batches=batches).numpy(), training.grid_step(engine.size)
    return Whole(steps=np.rint(total / -step).astype(np.int64), step=step)


@dataclass(frozen=True, kw_only=True, eq=False)
class SiloSums:
    """The silos of a simulation, which train in the rounds of one plan. Torch trains with so many `threads`.

    Calling it with the weights of a round gives the trainer of that round (`incrowd.privacy.release.Trainer`).
    """

    engines: Sequence[BatchedRecords]
    training: RecordTraining
    randomness: Randomness
    threads: int = 1

    def __call__(self, weights: ArrayLike | Tensor) -> "RoundOfSilos":
        """The trainer of the round that starts with these weights."""
        return RoundOfSilos(self, weights)


@dataclass(frozen=True, eq=False)
class RoundOfSilos:
    """All silos in a round that starts with these weights."""

    silos: SiloSums
    weights: ArrayLike | Tensor

    def cohort(self, clients: ClientNumbers, *, round: int) -> "SumOfSilos":
        """The sum of the silos of these numbers."""
        return SumOfSilos(self.silos, self.weights, clients, round)


@dataclass(frozen=True, eq=False)
class SumOfSilos:
    """The sum of some silos in a round: see `incrowd.privacy.mechanism.clipped_sum.Elsewhere`."""

    silos: SiloSums
    weights: ArrayLike | Tensor
    clients: ClientNumbers
    round: int

    def collected(self, clip: Clip) -> Part:
        """The sum, exact in any order of the silos.

        Edge cases: another clip than that of the plan is refused.
        """
        silos = self.silos
        if clip != FixedClip(clip_norm=silos.training.clip_norm):
            raise ConfigError(field="clip", value=clip, remedy=f"use the plan's bound, {silos.training.clip_norm:g}")
        total = np.zeros(silos.engines[0].size, np.int64)
        with with_threads(silos.threads):
            for place in map(int, self.clients):
                batches = silos.randomness.stream("batches", self.round, place)
                total += descent_sum(silos.engines[place], self.weights, silos.training, batches=batches).steps
        step = silos.training.grid_step(total.size)
        return Part(total=Whole(steps=total, step=step), observed=Observed(contributions=0, dropped=0, unclipped=0))
