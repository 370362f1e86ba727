"""What a few clients learnt, kept where it was computed: only norms and sums need to cross over."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.learning.deltas import WeightDelta, norms, segments


class Contributions:
    """The contributions of `clients`: their weights after local training minus the server's.

    Guarantee: a norm is never below the real one, and at most one part in 2^15 above it; a contribution that is not
    finite has a norm that is not finite. What the methods give is the caller's own and outlives the chunk.

    Edge cases: parts that cut the weight of a wide first layer in two are refused, and so is a chunk that a `Total` has
    used up.
    """

    def __init__(self, clients: tuple[int, ...], deltas: Sequence[WeightDelta]) -> None:
        self.clients = clients
        self._deltas: Sequence[WeightDelta] | None = deltas

    @property
    def deltas(self) -> Sequence[WeightDelta]:
        """The contributions in deltas."""
        if self._deltas is None:
            remedy = "its numbers have been used up by a sum; look at them before"
            raise ConfigError(field="chunk", value=self.clients, remedy=remedy)
        return self._deltas

    def take(self) -> Sequence[WeightDelta]:
        """The deltas, for someone who overwrites their numbers; the chunk has none afterwards."""
        deltas, self._deltas = self.deltas, None
        return deltas

    def finish(self) -> None:
        """Compute what has been put off until somebody asks for it."""
        for delta in self.deltas:
            delta.changes  # noqa: B018  # it is computed when it is asked for

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def size(self) -> int:
        """How many numbers a contribution has."""
        return sum(delta.size for delta in self.deltas)

    def norms(self, parts: tuple[int, ...] | None = None) -> Floats:
        """The L2 norm of each part of each contribution, [c, parts]; `parts` are sizes, None is the whole as one."""
        return norms(self.deltas, segments(self.deltas, parts), clients=len(self))

    def add_to(self, total: Floats, factors: Floats) -> None:
        """Add every contribution times its factor, [c, 1], in float64.

        A factor of 0 leaves a contribution out, whatever it holds.
        """
        if factors.shape != (len(self), 1) or total.shape != (self.size,):
            remedy = f"give [{len(self)}, 1] factors and a total of {self.size} numbers"
            raise ConfigError(field="factors", value=(factors.shape, total.shape), remedy=remedy)
        self.finish()
        begin = 0
        for delta in self.deltas:
            added = delta.empty_total(torch.float64)
            for j in np.flatnonzero(factors).tolist():
                one = delta.part(slice(j, j + 1))
                one.add_to(added, one.changes.double().mul_(factors[j, 0]))
            place = total[begin : begin + delta.size].reshape(added.t().shape)  # a view
            np.add(place, added.t().cpu().numpy(), out=place)
            begin += delta.size

    def rows(self) -> NDArray[np.float32]:
        """The contributions themselves, [c, size], a copy."""
        self.finish()
        rows = np.empty((len(self), self.size), np.float32)
        for j, row in enumerate(rows):
            places = torch.from_numpy(row).split_with_sizes([delta.size for delta in self.deltas])
            for delta, place in zip(self.deltas, places, strict=True):
                total = delta.empty_total(torch.float32)
                one = delta.part(slice(j, j + 1))
                one.add_to(total, one.changes)
                place.copy_(total.t().reshape(-1))
        return rows
