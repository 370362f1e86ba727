"""What a few clients learnt, kept where it was computed: only norms and sums need to cross over."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.learning.pieces import Piece, norms, segments


class Chunk:
    """The contributions of `clients`: their weights after local training minus the server's.

    Guarantee: a norm is never below the real one, and at most one part in 2^15 above it; a contribution that is not
    finite has a norm that is not finite. What the methods give is the caller's own and outlives the chunk.

    Edge cases: parts that cut the weight of a wide first layer in two are refused, and so is a chunk that a `Total` has
    used up.
    """

    def __init__(self, clients: tuple[int, ...], pieces: Sequence[Piece]) -> None:
        self.clients = clients
        self._pieces: Sequence[Piece] | None = pieces

    @property
    def pieces(self) -> Sequence[Piece]:
        """The contributions in pieces."""
        if self._pieces is None:
            remedy = "its numbers have been used up by a sum; look at them before"
            raise ConfigError(field="chunk", value=self.clients, remedy=remedy)
        return self._pieces

    def take(self) -> Sequence[Piece]:
        """The pieces, for someone who overwrites their numbers; the chunk has none afterwards."""
        pieces, self._pieces = self.pieces, None
        return pieces

    def finish(self) -> None:
        """Compute what has been put off until somebody asks for it."""
        for piece in self.pieces:
            piece.changes  # noqa: B018  # it is computed when it is asked for

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def size(self) -> int:
        """How many numbers a contribution has."""
        return sum(piece.size for piece in self.pieces)

    def norms(self, parts: tuple[int, ...] | None = None) -> Floats:
        """The L2 norm of each part of each contribution, [c, parts]; `parts` are sizes, None is the whole as one."""
        return norms(self.pieces, segments(self.pieces, parts), clients=len(self))

    def add_to(self, total: Floats, factors: Floats) -> None:
        """Add every contribution times its factor, [c, 1], in float64.

        A factor of 0 leaves a contribution out, whatever it holds.
        """
        if factors.shape != (len(self), 1) or total.shape != (self.size,):
            remedy = f"give [{len(self)}, 1] factors and a total of {self.size} numbers"
            raise ConfigError(field="factors", value=(factors.shape, total.shape), remedy=remedy)
        self.finish()
        begin = 0
        for piece in self.pieces:
            added = piece.empty_total(torch.float64)
            for j in np.flatnonzero(factors).tolist():
                one = piece.part(slice(j, j + 1))
                one.add_to(added, one.changes.double().mul_(factors[j, 0]))
            place = total[begin : begin + piece.size].reshape(added.t().shape)  # a view
            np.add(place, added.t().cpu().numpy(), out=place)
            begin += piece.size

    def rows(self) -> NDArray[np.float32]:
        """The contributions themselves, [c, size], a copy."""
        self.finish()
        rows = np.empty((len(self), self.size), np.float32)
        for j, row in enumerate(rows):
            places = torch.from_numpy(row).split_with_sizes([piece.size for piece in self.pieces])
            for piece, place in zip(self.pieces, places, strict=True):
                total = piece.empty_total(torch.float32)
                one = piece.part(slice(j, j + 1))
                one.add_to(total, one.changes)
                place.copy_(total.t().reshape(-1))
        return rows
