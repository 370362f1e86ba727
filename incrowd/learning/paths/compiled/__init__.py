"""The compiled path: a client's training is one call of compiled code, which touches no zero.

It is for examples that are mostly zero, and for models so small, or clients with so few examples, that calling
operations takes longer than their work.
"""

import numpy as np
from numpy.typing import NDArray

from incrowd.learning.paths.path import TrainingPath, TrainingTask
from incrowd.learning.store import ClientTensors
from incrowd.settings.local import Local

_SPARSE = 0.6  # of so many zeros compiled loops that skip them are faster than matrix products
_MANY = 64  # examples of a batch, of which matrix products of a wide first layer are faster; measured
_ROWS = 4096  # examples that are searched at a time
_MEDIUM = 2**15  # weights; of more the copy that each client starts from leaves the near caches
_LITTLE = 2**19  # examples times weights; measured: up to five times as fast for one example, even at some millions


def make(task: TrainingTask) -> TrainingPath | None:
    """The path, if the model has a program and someone's examples, or the model, are of that kind.

    Zeros count for nothing only where they are meant as zeros, and where nothing but a gradient makes a step.
    """
    program = task.program()
    if program is None or not task.local.plain or task.on_accelerator or task.data.offset != 0:
        return None
    sparse = mostly_zero(task.data, _SPARSE) & ~(program.wide & _in_large_batches(task.data, task.local))
    little = _with_little_work(task.data, program.weights)
    if not (program.small or sparse.any() or little.any()):
        return None
    from incrowd.learning.paths.compiled.training import Compiled  # numba takes a while to start

    return Compiled(task, program, sparse, little | program.small)


def _in_large_batches(data: ClientTensors, local: Local) -> NDArray[np.bool_]:
    """Who trains in batches of many examples: of each client by its own number."""
    counts = np.diff(data.offsets)
    size = counts if local.batch_size is None else np.minimum(counts, local.batch_size)
    found: NDArray[np.bool_] = (size if local.batches is None else -(-counts // local.batches)) >= _MANY
    return found


def _with_little_work(data: ClientTensors, weights: int) -> NDArray[np.bool_]:
    """Who has so few examples that a pass over them is little work: of each client by its own number."""
    counts = np.diff(data.offsets)
    found: NDArray[np.bool_] = (counts * weights <= _LITTLE) & (weights <= _MEDIUM)
    return found


def mostly_zero(data: ClientTensors, share: float) -> NDArray[np.bool_]:
    """Whose stored features are zero by at least this share: of each client by its own examples."""
    table = data.features.flatten(1).numpy()
    there = np.concatenate([np.count_nonzero(table[b : b + _ROWS], axis=1) for b in range(0, len(table), _ROWS)])
    totals = np.append(0, np.cumsum(there[data.indices]))[data.offsets]
    found: NDArray[np.bool_] = np.diff(totals) <= (1 - share) * table.shape[1] * np.diff(data.offsets)
    return found
