"""The contributions of a few clients, on the device that computed them: only norms and sums need to leave it."""

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.learning.deltas import Delta, norms


class Contributions:
    """The contributions of `clients`: their weights after local training minus the server's.

    Guarantee: a norm is never below the real one, and at most one part in 2^15 above it; a contribution that is not
    finite has a norm that is not finite. The methods' results are the caller's and outlive the chunk.

    Edge cases: parts that do not add up are refused, and so is a chunk that a `Total` has used up.
    """

    def __init__(self, clients: tuple[int, ...], delta: Delta) -> None:
        self.clients = clients
        self._delta: Delta | None = delta

    @property
    def delta(self) -> Delta:
        """The contributions as they were computed."""
        if self._delta is None:
            remedy = "its numbers have been used up by a sum; look at them before"
            raise ConfigError(field="chunk", value=self.clients, remedy=remedy)
        return self._delta

    def take(self) -> Delta:
        """The delta, for someone who overwrites its numbers; the chunk has none afterwards."""
        delta, self._delta = self.delta, None
        return delta

    def moved(self) -> "Contributions":
        """The same in memory that outlives the next training."""
        return Contributions(self.clients, self.delta.moved())

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def size(self) -> int:
        """The length of a contribution."""
        return self.delta.size

    def norms(self, parts: tuple[int, ...] | None = None) -> Floats:
        """The L2 norm of each part of each contribution, [c, parts]; `parts` are sizes, None is the whole as one."""
        return norms(self.delta, parts)

    def add_to(self, total: Floats, factors: Floats) -> None:
        """Add every contribution times its factor, [c, 1], in float64.

        A factor of 0 leaves a contribution out, whatever it holds.
        """
        if factors.shape != (len(self), 1) or total.shape != (self.size,):
            remedy = f"give [{len(self)}, 1] factors and a total of {self.size} numbers"
            raise ConfigError(field="factors", value=(factors.shape, total.shape), remedy=remedy)
        rows = self.rows()
        for j in np.flatnonzero(factors).tolist():
            total += rows[j].astype(np.float64) * factors[j, 0]

    def rows(self) -> NDArray[np.float32]:
        """The contributions themselves, [c, size], a copy."""
        rows: NDArray[np.float32] = self.delta.changes.numpy(force=True).astype(np.float32)
        return rows
