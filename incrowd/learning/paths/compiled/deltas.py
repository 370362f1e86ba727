"""What compiled training changed: loops over it, and a first weight that is still where it was trained."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incrowd._random import Floats
from incrowd.learning.deltas import InputDelta, Loops, WeightDelta
from incrowd.learning.paths.compiled import kernel

_ITSELF = kernel.Pairs(np.zeros(1, np.int64), np.zeros(1, np.uint32), np.zeros(1, np.float32))


class _CompiledLoops:
    """See `Loops`."""

    def run_squares(self, delta: WeightDelta, place: slice) -> Floats:
        if isinstance(delta, ApartDelta):
            return np.array([kernel.squares_of_rows(delta.space, delta.used)])
        rows = delta.changes.numpy()
        begin, end, _ = place.indices(rows.shape[1])
        sums = np.empty(len(rows))
        kernel.run_squares(rows.reshape(-1), rows.shape[1], begin, end, _ITSELF, sums)
        return sums

    def add_steps(self, total: Tensor, delta: WeightDelta, place: slice, factors: Floats) -> None:
        if isinstance(delta, ApartDelta):
            if factors[0]:
                kernel.add_steps_of_rows(delta.space, delta.used, float(factors[0]), total.numpy())
            return
        rows = delta.changes.numpy()
        kernel.add_steps(rows, *place.indices(rows.shape[1])[:2], np.ascontiguousarray(factors), total.numpy())


LOOPS = _CompiledLoops()


@dataclass(frozen=True)
class Measured:
    """Loops for what an `ApartDelta` held before it was moved, which give the same bits: its squares are known."""

    squares: float

    def run_squares(self, delta: WeightDelta, place: slice) -> Floats:
        """See `Loops.run_squares`."""
        return np.array([self.squares])

    def add_steps(self, total: Tensor, delta: WeightDelta, place: slice, factors: Floats) -> None:
        """See `Loops.add_steps`."""
        if factors[0] and delta.columns is not None:
            kernel.add_steps_at(delta.changes[0].numpy(), delta.columns[0].numpy(), float(factors[0]), total.numpy())


@dataclass(frozen=True, eq=False)
class ApartDelta:
    """What one client changed in a wide first weight, still where it was trained.

    Edge cases: it holds until the next client is trained.
    """

    space: kernel.Workspace
    used: NDArray[np.int64]
    loops: Loops = LOOPS

    @cached_property
    def _rows(self) -> InputDelta:
        inputs, outputs = self.space.layers[0, [kernel.INPUTS, kernel.OUTPUTS]].tolist()
        rows = torch.empty(1, len(self.used), outputs, dtype=torch.float32)
        kernel.copy_rows(self.space, self.used, rows[0].numpy())
        return InputDelta(rows, None, torch.from_numpy(self.used[None]), inputs)

    @property
    def changes(self) -> Tensor:
        """See `WeightDelta.changes`, a copy."""
        return self._rows.changes

    @property
    def inputs(self) -> int:
        """See `WeightDelta.inputs`."""
        return self._rows.inputs

    @property
    def columns(self) -> Tensor | None:
        """See `WeightDelta.columns`."""
        return self._rows.columns

    @property
    def size(self) -> int:
        """See `WeightDelta.size`."""
        return int(self.space.layers[0, kernel.INPUTS] * self.space.layers[0, kernel.OUTPUTS])

    def moved(self) -> InputDelta:
        """The same in memory of its own."""
        squares = float(self.loops.run_squares(self, slice(None))[0])
        rows = self._rows
        return InputDelta(rows.values, None, rows.columns, rows.inputs, Measured(squares))

    def part(self, some: slice) -> WeightDelta:
        """See `WeightDelta.part`."""
        return self if len(range(1)[some]) else self._rows.part(some)

    def empty_total(self, dtype: torch.dtype) -> Tensor:
        """See `WeightDelta.empty_total`."""
        inputs, outputs = self.space.layers[0, [kernel.INPUTS, kernel.OUTPUTS]].tolist()
        return torch.zeros(inputs, outputs, dtype=dtype)

    def add_to(self, total: Tensor, rows: Tensor) -> None:
        """See `WeightDelta.add_to`."""
        self._rows.add_to(total, rows)
