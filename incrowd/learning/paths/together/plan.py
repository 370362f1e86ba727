"""Whose batches are how wide, and which examples are in them: decided by each client's own number of examples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Integers
from incrowd.learning.batches import Batches
from incrowd.learning.store import ClientTensors
from incrowd.settings.local import Local

_PARTS = 4  # widths between a power of two and the next: filling up takes less than a quarter more


@dataclass(frozen=True, eq=False)
class Wide:
    """The batches of several clients, all equally wide, and as many as the one with most of them has.

    In step t client j has the examples `rows[t, j]`, each with its share of the mean over the batch: those that only
    fill up have none.
    """

    rows: Integers  # [steps, c, width]
    shares: NDArray[np.float32]  # [steps, c, width]


def steps_of(examples: int, local: Local) -> int:
    """How many steps a client with so many examples takes."""
    batches = -(-examples // _largest(examples, local)) if local.batches is None else min(local.batches, examples)
    return local.epochs * batches


def width_of(examples: int, local: Local) -> int:
    """How wide the batches of a client with so many examples are: as its largest, or a little more."""
    largest = _largest(examples, local)
    if largest == local.batch_size:
        return largest
    step = max(1, (1 << largest.bit_length() - 1) // _PARTS)
    return -(-largest // step) * step


def _largest(examples: int, local: Local) -> int:
    if local.batches is not None:
        return -(-examples // min(local.batches, examples))
    return examples if local.batch_size is None else min(local.batch_size, examples)


def widened(data: ClientTensors, clients: Sequence[int], batches: Sequence[Batches], *, width: int) -> Wide:
    """The batches of these clients, filled up with examples of their own that count for nothing."""
    steps = max(one.steps for one in batches)
    rows = np.empty((steps, len(clients), width), np.int64)
    shares = np.zeros((steps, len(clients), width), np.float32)
    for j, (client, own) in enumerate(zip(clients, batches, strict=True)):
        examples = data.examples(client)
        rows[:, j] = examples[0]
        # With one of the batch's own, which brings nothing into it that is not there.
        rows[: own.steps, j] = examples[own.positions[:, :1]]
        rows[: own.steps, j, : own.width] = examples[own.positions]
        counted = np.arange(own.width) < own.sizes[:, None]
        shares[: own.steps, j, : own.width] = counted / np.maximum(own.sizes, 1)[:, None]
    return Wide(rows, shares)
