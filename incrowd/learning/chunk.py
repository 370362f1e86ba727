"""What a few clients learnt, kept where it was computed: only norms and sums need to cross over."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incrowd._random import Floats
from incrowd.errors import ConfigError

_BLOCK = 2**15  # numbers that are squared at a time, so that their float64 copies stay in the cache


class Piece(Protocol):
    """What c clients changed in one parameter: `changes` [c, ...], in whatever order suits."""

    @property
    def changes(self) -> Tensor:
        """The changes."""
        ...

    @property
    def size(self) -> int:
        """How many numbers the parameter has."""
        ...

    def squares(self) -> Floats:
        """The squared L2 norm of each client's change, computed in float64."""
        ...

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """The sum in float64 of the changes times their float64 factors [c], without those whose factor is 0.

        In the order of the flat vector when read row by row, whatever its shape.
        """
        ...

    def row(self, j: int) -> Tensor:
        """The change of one client, as the flat vector holds it."""
        ...


@dataclass(frozen=True, eq=False)
class FlatPiece:
    """Changes [c, size] as the flat vector holds them."""

    changes: Tensor

    @property
    def size(self) -> int:
        """See `Piece.size`."""
        return self.changes.shape[1]

    def squares(self) -> Floats:
        """See `Piece.squares`."""
        return _squares(self.changes)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """See `Piece.weighted_sum`."""
        taken = factors.nonzero().view(-1)
        changes = self.changes if len(taken) == len(factors) else self.changes[taken]
        return torch.mv(changes.double().t(), factors[taken])

    def row(self, j: int) -> Tensor:
        """See `Piece.row`."""
        return self.changes[j]


@dataclass(frozen=True, eq=False)
class InputPiece:
    """Changes of a Linear's weight stored by input, [c, D, outputs], where the flat vector has [outputs, inputs].

    Of the `inputs` features only `columns` [c, D] can have changed; None means that D is all of them. Columns that only
    fill a row up name feature 0 and hold zeros.
    """

    changes: Tensor
    columns: Tensor | None
    inputs: int

    @property
    def size(self) -> int:
        """See `Piece.size`."""
        return self.inputs * self.changes.shape[2]

    def squares(self) -> Floats:
        """See `Piece.squares`."""
        return _squares(self.changes.flatten(1))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """See `Piece.weighted_sum`."""
        total = self.changes.new_zeros(self.inputs, self.changes.shape[2], dtype=torch.float64)
        for j, factor in enumerate(factors.tolist()):
            if factor != 0 and self.columns is None:
                total.add_(self.changes[j].double(), alpha=factor)
            elif factor != 0 and self.columns is not None:
                total.index_add_(0, self.columns[j], self.changes[j].double(), alpha=factor)
        return total.t()

    def row(self, j: int) -> Tensor:
        """See `Piece.row`."""
        one = torch.zeros(len(self.changes), device=self.changes.device, dtype=torch.float64)
        one[j] = 1
        return self.weighted_sum(one).reshape(-1).float()


@dataclass(eq=False)
class Chunk:
    """The contributions of `clients`: their weights after local training minus the server's.

    Guarantee: norms and sums are computed in float64 from the very same numbers, so that a sum is as exact as its noise
    assumes (`incrowd.privacy.noise.padded`); a factor of 0 leaves a contribution out, whatever it holds. A contribution
    that is not finite has a norm that is not finite. What the methods give is the caller's own and outlives the chunk.

    Edge cases: parts that cut a parameter in two are refused.
    """

    clients: tuple[int, ...]
    pieces: Sequence[Piece]
    device: torch.device = field(default=torch.device("cpu"), repr=False)
    _parts: tuple[int, ...] | None = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def size(self) -> int:
        """How many numbers a contribution has."""
        return sum(piece.size for piece in self.pieces)

    def norms(self, parts: tuple[int, ...] | None = None) -> Floats:
        """The L2 norm of each part of each contribution, [c, parts]; `parts` are sizes, None is the whole as one."""
        self._parts = parts
        with np.errstate(over="ignore", invalid="ignore"):
            squares: Floats = np.add.reduceat(self._squares, self._starts(), axis=1)
            return np.sqrt(squares)

    def add_to(self, total: Floats, factors: Floats) -> None:
        """Add every contribution times its factor, [c, parts] for the parts that `norms` was last asked for."""
        counts = np.diff([*self._starts(), len(self.pieces)])
        if factors.shape != (len(self), len(counts)) or total.shape != (self.size,):
            remedy = f"give [{len(self)}, {len(counts)}] factors and a total of {self.size} numbers"
            raise ConfigError(field="factors", value=(factors.shape, total.shape), remedy=remedy)
        by_piece = np.repeat(factors, counts, axis=1)
        places = np.split(total, np.cumsum([piece.size for piece in self.pieces])[:-1])
        for piece, place, factor in zip(self.pieces, places, by_piece.T, strict=True):
            added = piece.weighted_sum(torch.from_numpy(np.ascontiguousarray(factor)).to(self.device)).cpu().numpy()
            matrix = place.reshape(added.shape)  # a view
            np.add(matrix, added, out=matrix)

    def rows(self) -> NDArray[np.float32]:
        """The contributions themselves, [c, size], a copy."""
        rows = np.empty((len(self), self.size), np.float32)
        for j, row in enumerate(rows):
            places = torch.from_numpy(row).split_with_sizes([piece.size for piece in self.pieces])
            for piece, place in zip(self.pieces, places, strict=True):
                place.copy_(piece.row(j))
        return rows

    @cached_property
    def _squares(self) -> Floats:
        return np.stack([piece.squares() for piece in self.pieces], axis=1)

    def _starts(self) -> list[int]:
        """The first piece of each part."""
        ends = np.cumsum([piece.size for piece in self.pieces])
        wanted = np.cumsum((self.size,) if self._parts is None else self._parts)
        if wanted[-1] != self.size or not np.isin(wanted, ends).all():
            remedy = f"give sizes that group whole parameters, which are {[piece.size for piece in self.pieces]}"
            raise ConfigError(field="parts", value=self._parts, remedy=remedy)
        return [0, *(int(np.searchsorted(ends, end)) + 1 for end in wanted[:-1])]


def _squares(changes: Tensor) -> Floats:
    """The squared norm of each row, in float64."""
    if changes[0].numel() <= _BLOCK // 8:
        return changes.double().square_().sum(1).cpu().numpy()
    return np.array(
        [sum(float(exact.dot(exact)) for exact in map(Tensor.double, row.split(_BLOCK))) for row in changes]
    )
