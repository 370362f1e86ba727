"""Draw and discard, and what it is compared with (Pihur et al. 2018, section V), behind one interface.

| strategy         | models | an update                                     |
| ---------------- | ------ | --------------------------------------------- |
| `DrawAndDiscard` | k      | replaces a random instance                    |
| `SameInstance`   | k      | replaces the instance that was drawn          |
| `AcceptOneIn`    | 1      | replaces the model with a probability of 1/k  |
| `Batching`       | 1      | waits until a batch can be averaged           |

A single model that every update replaces is `DrawAndDiscard` over a pool of one. The first two may `average` an update
with the instance that it replaces instead of overwriting it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from incrowd import _validate
from incrowd._random import Floats, Randomness
from incrowd.drawdiscard.pool import Instance, Picks, Pool

Merge = Callable[[Instance, Instance], Instance]


@dataclass(frozen=True, eq=False)
class Handout:
    """An instance on its way to a device, and which one it was (only `SameInstance` and `Batching` look at that)."""

    weights: Instance | Floats
    instance: int


class Strategy(Protocol):
    """What a server does with updates. One thread at a time, but any number of handouts may be under way."""

    def draw(self) -> Handout:
        """The weights for one device to update."""
        ...

    def discard(self, handout: Handout, weights: Floats | Instance) -> None:
        """Take the updated weights in."""
        ...

    def weights(self) -> Floats:
        """The weights to predict with."""
        ...


def overwrite(_held: Instance, arrived: Instance) -> Instance:
    """The update itself."""
    return arrived


def average(held: Instance, arrived: Instance) -> Instance:
    """Half of the update, half of what it replaces."""
    return (held + arrived) / np.float32(2)


class DrawAndDiscard:
    """The strategy of the paper: see `Pool`."""

    def __init__(self, pool: Pool, *, merge: Merge = overwrite) -> None:
        self.pool = pool
        self._merge = merge

    def draw(self) -> Handout:
        """See `Strategy.draw`."""
        index, weights = self.pool.draw_index()
        return Handout(weights, index)

    def discard(self, handout: Handout, weights: Floats | Instance) -> None:
        """Replace a random instance, whichever was drawn."""
        _replace(self.pool, self.pool.choose(), weights, self._merge)

    def weights(self) -> Floats:
        """The average of the instances."""
        return self.pool.weights()


class SameInstance:
    """Always replace the instance that was drawn: nothing is lost, and nothing is gained by that (section V-B)."""

    def __init__(self, pool: Pool, *, merge: Merge = overwrite) -> None:
        self.pool = pool
        self._merge = merge

    def draw(self) -> Handout:
        """See `Strategy.draw`."""
        index, weights = self.pool.draw_index()
        return Handout(weights, index)

    def discard(self, handout: Handout, weights: Floats | Instance) -> None:
        """Replace the instance of the handout."""
        _replace(self.pool, handout.instance, weights, self._merge)

    def weights(self) -> Floats:
        """The average of the instances."""
        return self.pool.weights()


class AcceptOneIn:
    """One model; an update counts with a probability of 1 / `updates`, and is thrown away otherwise."""

    def __init__(self, start: ArrayLike, *, updates: int, randomness: Randomness) -> None:
        _validate.count(updates=updates)
        self._model = np.array(start, dtype=np.float64)
        self._updates = updates
        self._picks = Picks(randomness, "accept")

    def draw(self) -> Handout:
        """See `Strategy.draw`."""
        return Handout(self._model.copy(), 0)

    def discard(self, handout: Handout, weights: Floats | Instance) -> None:
        """Replace the model, or do nothing."""
        if self._picks.among(self._updates) == 0:
            self._model = weights.astype(np.float64)

    def weights(self) -> Floats:
        """The model's."""
        return self._model.copy()


class Batching:
    """One model; the changes of a batch of updates wait on the server and are averaged into one update.

    Edge cases: a handout that was drawn before the last batch ended still counts, by what its device changed.
    """

    def __init__(self, start: ArrayLike, *, batch: int) -> None:
        _validate.count(batch=batch)
        self._model = np.array(start, dtype=np.float64)
        self._batch = batch
        self._empty()

    def draw(self) -> Handout:
        """See `Strategy.draw`."""
        return Handout(self._model.copy(), 0)

    def discard(self, handout: Handout, weights: Floats | Instance) -> None:
        """Put the change aside, or move the model by the average change of the batch."""
        self._changes += weights - handout.weights
        self._waiting += 1
        if self._waiting == self._batch:
            self._model += self._changes / self._batch
            self._empty()

    def weights(self) -> Floats:
        """The model's; what waits is not in it."""
        return self._model.copy()

    def _empty(self) -> None:
        self._changes = np.zeros_like(self._model)
        self._waiting = 0


def _replace(pool: Pool, index: int, weights: Floats | Instance, merge: Merge) -> None:
    row = np.asarray(weights, np.float32)
    pool.replace(index, row if merge is overwrite else merge(pool.instance(index), row))
