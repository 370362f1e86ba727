"""Loops over what a first weight that is stored by input has changed, without computing the changes first."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from incrowd._random import Floats
from incrowd.learning.deltas import FlatDelta, InputDelta, WeightDelta


class ChangedLoops:
    """See `Loops`. Once the changes have been computed, by whoever asked for them, it gives the same bits."""

    def run_squares(self, delta: WeightDelta, place: slice) -> Floats:
        """See `Loops.run_squares`."""
        from incrowd.learning.paths.fused import first_loops as loops  # numba takes a while to start

        values, start, columns, _ = _arrays(delta, place)
        sums = np.empty(len(values))
        loops.changed_squares(values, start, columns, sums)
        return sums

    def add_steps(self, total: Tensor, delta: WeightDelta, place: slice, factors: Floats) -> None:
        """See `Loops.add_steps`."""
        from incrowd.learning.paths.fused import first_loops as loops  # as above

        rows = total if isinstance(delta, InputDelta) else total[None, place]
        loops.add_changed(*_arrays(delta, place), np.ascontiguousarray(factors), rows.numpy())


LOOPS = ChangedLoops()
_Changes = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]


def _arrays(delta: WeightDelta, place: slice) -> _Changes:
    """Values, what they started from, which row of that is whose, and to which row of a total they belong."""
    if isinstance(delta, InputDelta):
        values, since = delta.values, delta.since
    else:
        values, since = delta.changes[:, None, place].contiguous(), None
    several, rows, width = values.shape
    if isinstance(delta, FlatDelta):
        first = np.zeros((several, 1), np.int64)
        return values.numpy(), np.zeros((1, width), np.float32), first, first
    itself = np.tile(np.arange(rows), (several, 1)) if delta.columns is None else delta.columns.numpy()
    if since is None:
        return values.numpy(), np.zeros((1, width), np.float32), np.zeros((several, rows), np.int64), itself
    return values.numpy(), since.numpy(), itself, itself
