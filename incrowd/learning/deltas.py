"""What a few clients changed in neighbouring parameters, their norms, and their sums, in the order that suits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from incrowd._random import Floats
from incrowd.errors import ConfigError

RUN = 256  # numbers whose squares are added up in float32; 128 take longer, more gain little
_RAISED = 1 + (RUN + 8) * 2.0**-24
_SURE = 2.0**-70  # of smaller squared norms in float32 too much may have vanished


class Loops(Protocol):
    """Compiled loops for what torch needs several passes over memory for."""

    def run_squares(self, delta: "WeightDelta", place: slice) -> Floats:
        """As the function `run_squares`."""
        ...

    def add_steps(self, total: Tensor, delta: "WeightDelta", place: slice, factors: Floats) -> None:
        """Add this place of each contribution times its factor, rounded towards zero to whole numbers, to a sum.

        A factor of 0 leaves a contribution out, whatever it holds.
        """
        ...


class WeightDelta(Protocol):
    """What c clients changed in some neighbouring parameters."""

    @property
    def loops(self) -> Loops | None:
        """Compiled loops, if whoever made the delta has some."""
        ...

    @property
    def changes(self) -> Tensor:
        """The changes [c, ...], contiguous client by client."""
        ...

    @property
    def size(self) -> int:
        """How many numbers the parameters have."""
        ...

    @property
    def inputs(self) -> int | None:
        """How many inputs a weight has that is stored by input; None if the changes are in flat order."""
        ...

    @property
    def columns(self) -> Tensor | None:
        """Which inputs the changes [c, D, outputs] belong to; None if D is all of them."""
        ...

    def moved(self) -> "WeightDelta":
        """The same delta in memory that outlives the next training; with loops, they come along and give the same."""
        ...

    def part(self, some: slice) -> "WeightDelta":
        """The delta of some of the clients, in the same memory."""
        ...

    def empty_total(self, dtype: torch.dtype) -> Tensor:
        """A sum of nothing; its transpose has the order of the flat vector."""
        ...

    def add_to(self, total: Tensor, rows: Tensor) -> None:
        """Add rows [c, ...], into which the changes were made, to such a sum."""
        ...


@dataclass(frozen=True, eq=False)
class FlatDelta:
    """Changes [c, size] as the flat vector holds them."""

    changes: Tensor
    loops: Loops | None = None
    inputs: None = field(default=None, init=False)
    columns: None = field(default=None, init=False)

    @property
    def size(self) -> int:
        """See `WeightDelta.size`."""
        return self.changes.shape[1]

    def moved(self) -> "FlatDelta":
        """See `WeightDelta.moved`."""
        return self

    def part(self, some: slice) -> "FlatDelta":
        """See `WeightDelta.part`."""
        return FlatDelta(self.changes[some], self.loops)

    def empty_total(self, dtype: torch.dtype) -> Tensor:
        """See `WeightDelta.empty_total`."""
        return self.changes.new_zeros(self.size, dtype=dtype)

    def add_to(self, total: Tensor, rows: Tensor) -> None:
        """See `WeightDelta.add_to`."""
        total.add_(rows[0] if len(rows) == 1 else rows.sum(0))


@dataclass(frozen=True, eq=False)
class InputDelta:
    """Changes of a Linear's weight stored by input, [c, D, outputs], where the flat vector has [outputs, inputs].

    They are `values` minus what the weight was at the `start`, [inputs, outputs], which is None once that has been
    computed. Of the `inputs` features only `columns` [c, D] can have changed; None means that D is all of them. Columns
    that only fill a row up name feature 0 and hold zeros.

    Edge cases: the changes are computed when they are first asked for, in the memory of the values. Ask for those of
    the parts or of the whole, not of both.
    """

    values: Tensor
    start: Tensor | None
    columns: Tensor | None
    inputs: int
    loops: Loops | None = None

    @cached_property
    def changes(self) -> Tensor:
        """See `WeightDelta.changes`. They are large: who uses them at once finds them in the cache."""
        if self.start is None:
            return self.values
        return self.values.sub_(self.start if self.columns is None else self.start[self.columns])

    @property
    def since(self) -> Tensor | None:
        """What `values` still has to be compared with, or None if they are the changes by now."""
        return None if "changes" in self.__dict__ else self.start

    @property
    def size(self) -> int:
        """See `WeightDelta.size`."""
        return self.inputs * self.values.shape[2]

    def moved(self) -> "InputDelta":
        """See `WeightDelta.moved`."""
        return self

    def part(self, some: slice) -> "InputDelta":
        """See `WeightDelta.part`."""
        columns = None if self.columns is None else self.columns[some]
        return InputDelta(self.values[some], self.since, columns, self.inputs, self.loops)

    def empty_total(self, dtype: torch.dtype) -> Tensor:
        """See `WeightDelta.empty_total`."""
        return self.values.new_zeros(self.inputs, self.values.shape[2], dtype=dtype)

    def add_to(self, total: Tensor, rows: Tensor) -> None:
        """See `WeightDelta.add_to`."""
        if self.columns is None:
            whole = rows.view(-1, *total.shape)
            total.add_(whole[0] if len(whole) == 1 else whole.sum(0))
        else:
            total.index_add_(0, self.columns.reshape(-1), rows.view(-1, total.shape[1]))


@dataclass(frozen=True)
class Segment:
    """The numbers of a delta, or those of them at `place`, that belong to one part of a contribution."""

    delta: int
    place: slice
    part: int


def segments(deltas: Sequence[WeightDelta], parts: tuple[int, ...] | None) -> list[Segment]:
    """The deltas cut where parts of these sizes end; None is the whole contribution as one part.

    Edge cases: sizes that do not add up, and a part that ends within a weight that is stored by input: refused.
    """
    ends = np.cumsum([delta.size for delta in deltas])
    wanted = ends[-1:] if parts is None else np.cumsum(parts)
    cuts = np.union1d(ends, wanted)
    begins = np.append(0, cuts[:-1])
    found = []
    for begin, end in zip(begins.tolist(), cuts.tolist(), strict=True):
        number = int(np.searchsorted(ends, begin, side="right"))
        first = int(ends[number - 1]) if number else 0
        whole = (begin, end) == (first, ends[number])
        if wanted[-1] != ends[-1] or not (whole or isinstance(deltas[number], FlatDelta)):
            remedy = f"give sizes of whole layers, {ends[-1]} numbers in all"
            raise ConfigError(field="parts", value=parts, remedy=remedy)
        place = slice(None) if whole else slice(begin - first, end - first)
        found.append(Segment(number, place, int(np.searchsorted(wanted, begin, side="right"))))
    return found


def norms(deltas: Sequence[WeightDelta], cut: Sequence[Segment], *, clients: int) -> Floats:
    """The L2 norm of each part of each client's contribution, [c, parts]."""
    total = np.zeros((clients, 1 + cut[-1].part))
    with np.errstate(over="ignore", invalid="ignore"):
        for segment in cut:
            total[:, segment.part] += squares(deltas[segment.delta], segment.place)
        return np.sqrt(total)


def squares(delta: WeightDelta, place: slice = slice(None)) -> Floats:
    """The squared L2 norm of this place in each row of changes, never below the real one and at most 2^-14 of it above.

    Each row is measured on its own, so that its norm has the same bits whoever else is there.

    In any order of adding, the squared length of a run of B numbers that float32 computes is at least its real value
    times (1 - u)^(B + 2), u = 2^-24: one rounding for each square, B - 1 for the sum, two for a root (Higham 2002,
    section 3.1). Squares below 2^-126 may vanish; but n of them are less than n 2^-56 of a squared norm of 2^-70.
    `_RAISED` makes up for all that and for the float64 arithmetic. Rows with a smaller norm, or one that float32 cannot
    hold, are measured in float64 alone, where a square of a float32 number is exact.
    """
    found = _RAISED * (run_squares if delta.loops is None else delta.loops.run_squares)(delta, place)
    unsure = ~((found >= _SURE) & (found < np.inf))
    for row in np.flatnonzero(unsure) if unsure.any() else ():
        found[row] = float(delta.changes[row].flatten()[place].double().square_().sum().mul_(_RAISED))
    return found


def run_squares(delta: WeightDelta, place: slice) -> Floats:
    """The same as it comes out when runs of `RUN` numbers are measured in float32 and put together in float64.

    On an accelerator all rows are measured at once, in float64: there an operation is what takes time.
    """
    if delta.changes.device.type != "cpu":  # pragma: no cover - where there is one
        found: Floats = halved_squares(delta.changes.flatten(1)[:, place]).cpu().numpy()
        return found
    return np.array([_run_squares(row.flatten()[place]) for row in delta.changes])


def halved_squares(rows: Tensor) -> Tensor:
    """The squared L2 norm of each row: its second half is added to its first, number by number, until one is left.

    So every row is added up in the same order, however many there are; how a library adds up may depend on that.
    """
    squares = rows.double().square_()
    while (numbers := squares.shape[1]) > 1:
        half = -(-numbers // 2)
        squares[:, : numbers - half].add_(squares[:, half:])
        squares = squares[:, :half]
    return squares.sum(1)


def _run_squares(row: Tensor) -> float:
    runs = len(row) // RUN
    lengths = torch.linalg.vector_norm(row[: runs * RUN].view(runs, RUN), dim=1).cpu().numpy()
    rest = row[runs * RUN :].cpu().numpy()
    return float(np.square(lengths, dtype=np.float64).sum() + np.square(rest, dtype=np.float64).sum())
