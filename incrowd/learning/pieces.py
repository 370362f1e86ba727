"""What a few clients changed in neighbouring parameters, their norms, and their sums, in the order that suits."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from incrowd._random import Floats
from incrowd.errors import ConfigError

_RUN = 256  # numbers whose squares are added up in float32; 128 take longer, more gain little
_RAISED = 1 + (_RUN + 8) * 2.0**-24
_SURE = 2.0**-70  # of smaller squared norms in float32 too much may have vanished


class Piece(Protocol):
    """What c clients changed in some neighbouring parameters."""

    @property
    def changes(self) -> Tensor:
        """The changes [c, ...], contiguous client by client."""
        ...

    @property
    def size(self) -> int:
        """How many numbers the parameters have."""
        ...

    def part(self, some: slice) -> "Piece":
        """The piece of some of the clients, in the same memory."""
        ...

    def empty_total(self, dtype: torch.dtype) -> Tensor:
        """A sum of nothing; its transpose has the order of the flat vector."""
        ...

    def add_to(self, total: Tensor, rows: Tensor) -> None:
        """Add rows [c, ...], into which the changes were made, to such a sum."""
        ...


@dataclass(frozen=True, eq=False)
class FlatPiece:
    """Changes [c, size] as the flat vector holds them."""

    changes: Tensor

    @property
    def size(self) -> int:
        """See `Piece.size`."""
        return self.changes.shape[1]

    def part(self, some: slice) -> "FlatPiece":
        """See `Piece.part`."""
        return FlatPiece(self.changes[some])

    def empty_total(self, dtype: torch.dtype) -> Tensor:
        """See `Piece.empty_total`."""
        return self.changes.new_zeros(self.size, dtype=dtype)

    def add_to(self, total: Tensor, rows: Tensor) -> None:
        """See `Piece.add_to`."""
        total.add_(rows[0] if len(rows) == 1 else rows.sum(0))


@dataclass(frozen=True, eq=False)
class InputPiece:
    """Changes of a Linear's weight stored by input, [c, D, outputs], where the flat vector has [outputs, inputs].

    They are `values` minus `start`, which is None once that has been computed. Of the `inputs` features only `columns`
    [c, D] can have changed; None means that D is all of them. Columns that only fill a row up name feature 0 and hold
    zeros.

    Edge cases: the changes are computed when they are first asked for, in the memory of the values. Ask for those of
    the parts or of the whole, not of both.
    """

    values: Tensor
    start: Tensor | None
    columns: Tensor | None
    inputs: int

    @cached_property
    def changes(self) -> Tensor:
        """See `Piece.changes`. They are large: who uses them at once finds them in the cache."""
        return self.values if self.start is None else self.values.sub_(self.start)

    @property
    def size(self) -> int:
        """See `Piece.size`."""
        return self.inputs * self.values.shape[2]

    def part(self, some: slice) -> "InputPiece":
        """See `Piece.part`."""
        begun = self.start is None or "changes" in self.__dict__
        start = None if begun or self.start is None else self.start.expand_as(self.values)[some]
        return InputPiece(self.values[some], start, None if self.columns is None else self.columns[some], self.inputs)

    def empty_total(self, dtype: torch.dtype) -> Tensor:
        """See `Piece.empty_total`."""
        return self.values.new_zeros(self.inputs, self.values.shape[2], dtype=dtype)

    def add_to(self, total: Tensor, rows: Tensor) -> None:
        """See `Piece.add_to`."""
        if self.columns is None:
            total.add_(rows.view(-1, *total.shape).sum(0))
        else:
            total.index_add_(0, self.columns.reshape(-1), rows.view(-1, total.shape[1]))


@dataclass(frozen=True)
class Segment:
    """The numbers of a piece, or those of them at `place`, that belong to one part of a contribution."""

    piece: int
    place: slice
    part: int


def segments(pieces: Sequence[Piece], parts: tuple[int, ...] | None) -> list[Segment]:
    """The pieces cut where parts of these sizes end; None is the whole contribution as one part.

    Edge cases: sizes that do not add up, and a part that ends within a weight that is stored by input: refused.
    """
    ends = np.cumsum([piece.size for piece in pieces])
    wanted = ends[-1:] if parts is None else np.cumsum(parts)
    cuts = np.union1d(ends, wanted)
    begins = np.append(0, cuts[:-1])
    found = []
    for begin, end in zip(begins.tolist(), cuts.tolist(), strict=True):
        number = int(np.searchsorted(ends, begin, side="right"))
        first = int(ends[number - 1]) if number else 0
        whole = (begin, end) == (first, ends[number])
        if wanted[-1] != ends[-1] or not (whole or isinstance(pieces[number], FlatPiece)):
            remedy = f"give sizes of whole layers, {ends[-1]} numbers in all"
            raise ConfigError(field="parts", value=parts, remedy=remedy)
        place = slice(None) if whole else slice(begin - first, end - first)
        found.append(Segment(number, place, int(np.searchsorted(wanted, begin, side="right"))))
    return found


def norms(pieces: Sequence[Piece], cut: Sequence[Segment]) -> Floats:
    """The L2 norm of each part of each client's contribution, [c, parts]."""
    rows = [piece.changes.flatten(1) for piece in pieces]
    total = np.zeros((len(rows[0]), 1 + cut[-1].part))
    with np.errstate(over="ignore", invalid="ignore"):
        for segment in cut:
            total[:, segment.part] += squares(rows[segment.piece][:, segment.place])
        return np.sqrt(total)


def squares(rows: Tensor) -> Floats:
    """The squared L2 norm of each row of float32 numbers, never below the real one and at most 2^-14 of it above.

    Runs of B numbers are measured in float32, and their lengths put together in float64. In any order of adding, the
    squared length of a run that float32 computes is at least its real value times (1 - u)^(B + 2), u = 2^-24: one
    rounding for each square, B - 1 for the sum, two for the root (Higham 2002, section 3.1). Squares below 2^-126 may
    vanish; but n of them are less than n 2^-56 of a squared norm of 2^-70. `_RAISED` makes up for all that and for the
    float64 arithmetic. Rows with a smaller norm, or one that float32 cannot hold, are measured in float64 alone, where
    a square of a float32 number is exact.
    """
    runs = rows.shape[1] // _RUN
    lengths = torch.linalg.vector_norm(rows[:, : runs * _RUN].view(len(rows), runs, _RUN), dim=2).cpu().numpy()
    rest = rows[:, runs * _RUN :].cpu().numpy()
    found: Floats = _RAISED * (
        np.square(lengths, dtype=np.float64).sum(axis=1) + np.square(rest, dtype=np.float64).sum(axis=1)
    )
    unsure = ~((found >= _SURE) & (found < np.inf))
    for row in np.flatnonzero(unsure):
        found[row] = float(rows[row].double().square_().sum().mul_(_RAISED))
    return found
