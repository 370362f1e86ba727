"""What the residual test computes of an answer, in NumPy: the slow twin of `residual_kernels`, equal to the last bit.

Sums of floats depend on their order, so both add up in the same one: value i goes to lane i modulo `LANES`, each lane
adds up in double precision from the first value to the last, and the lanes are added up in their order.
"""

import math

import numpy as np

from incrowd._random import Floats, Integers
from incrowd.drawdiscard.pool import Instance

LANES = 16
"""So many partial sums: a few vector registers."""

SHORTEST = 1e-9
"""A direction of which less is left is not made as long as the others: it would be rounding."""


def in_lanes(values: Floats) -> float:
    """The sum of these values, lane by lane."""
    padded = np.zeros((-(-len(values) // LANES), LANES))
    padded.reshape(-1)[: len(values)] = values
    total = 0.0
    for lane in np.add.reduce(padded, axis=0).tolist():  # along the first axis NumPy adds row after row
        total += lane
    return total


def measures(answer: Instance, parent: Instance, inverse: float) -> tuple[float, float, float]:
    """The sum of |r|, the sum of r^2 and the largest |r|, of r = (parent - answer) * inverse."""
    with np.errstate(all="ignore"):  # what is not a number fails every limit
        sizes = np.abs((parent.astype(np.float64) - answer.astype(np.float64)) * inverse)
        return in_lanes(sizes), in_lanes(sizes * sizes), float(sizes.max())


def project(
    answer: Instance,
    parent: Instance,
    inverse: float,
    where: Integers,
    directions: Floats,
    pulled: Floats,
) -> Floats:
    """The projections on each direction of r = (parent - answer) * inverse at these places.

    Each row of `pulled` gains r times the projection on its direction: what a power iteration adds to directions.
    """
    there = (parent[where].astype(np.float64) - answer[where].astype(np.float64)) * inverse
    found = np.array([in_lanes(direction * there) for direction in directions])
    for row, projection in zip(pulled, found.tolist(), strict=True):
        np.add(row, projection * there, out=row)
    return found


def straighten(directions: Floats) -> None:
    """Make directions orthogonal to those before them, and of length 1, in place.

    Edge cases: what hardly has a length left is not made longer.
    """
    for place, direction in enumerate(directions):
        for other in directions[:place]:
            np.subtract(direction, in_lanes(direction * other) * other, out=direction)
        length = math.sqrt(in_lanes(direction * direction))
        np.multiply(direction, 1 / max(length, SHORTEST), out=direction)
