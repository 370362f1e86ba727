"""What the residual test computes of an answer, in NumPy: the slow twin of `residual_kernels`, equal to the last bit.

Sums of floats depend on their order, so both add up in the same one: value i goes to lane i modulo `LANES`, each lane
adds up in double precision from the first value to the last, and the lanes are added up in their order.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from incrowd._random import Floats, Integers
from incrowd.drawdiscard.pool import Instance

LANES = 16
"""So many partial sums: a few vector registers."""

SHORTEST = 1e-9
"""A direction of which less is left is not made as long as the others: it would be rounding."""


class Verdict(IntEnum):
    """What is found of an answer."""

    BEYOND = 0
    """It is not within the fixed limits."""
    UNUSUAL = 1
    USUAL = 2


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
    found: Floats,
) -> None:
    """Into `found` the projections on each direction of r = (parent - answer) * inverse at these places.

    Each row of `pulled` gains r times the projection on its direction: what a power iteration adds to directions.
    """
    there = (parent[where].astype(np.float64) - answer[where].astype(np.float64)) * inverse
    found[:] = [in_lanes(direction * there) for direction in directions]
    for row, projection in zip(pulled, found.tolist(), strict=True):
        np.add(row, projection * there, out=row)


def weigh(
    answer: Instance,
    parent: Instance,
    inverses: tuple[float, float],
    bounds: Floats,
    where: Integers,
    directions: Floats,
    pulled: Floats,
    found: Floats,
) -> int:
    """A `Verdict`, and into `found` the mean |r| and r^2 and the projections, unless it is `BEYOND`.

    `inverses` make residuals of the difference, first for the means and then for the projections. Each row of `bounds`
    is a lower and an upper one: the fixed ones of mean |r|, mean r^2 and max |r|, then what is usual of what is found.
    """
    total, squares, most = measures(answer, parent, inverses[0])
    fixed = np.array([total / len(answer), squares / len(answer), most])
    if not _between(fixed, bounds[:3]):
        return Verdict.BEYOND
    found[:2] = fixed[:2]
    project(answer, parent, inverses[1], where, directions, pulled, found[2:])
    return Verdict.USUAL if _between(found, bounds[3:]) else Verdict.UNUSUAL


def _between(values: Floats, bounds: Floats) -> bool:
    return bool(((bounds[:, 0] <= values) & (values <= bounds[:, 1])).all())


def straighten(directions: Floats) -> None:
    """Make directions orthogonal to those before them, and of length 1, in place.

    Edge cases: what hardly has a length left is not made longer.
    """
    for place, direction in enumerate(directions):
        for other in directions[:place]:
            np.subtract(direction, in_lanes(direction * other) * other, out=direction)
        length = math.sqrt(in_lanes(direction * direction))
        np.multiply(direction, 1 / max(length, SHORTEST), out=direction)


_Measures = Callable[[Instance, Instance, float], tuple[float, float, float]]
_Weigh = Callable[[Instance, Instance, tuple[float, float], Floats, Integers, Floats, Floats, Floats], int]


@dataclass(frozen=True)
class ResidualCode:
    """What a residual test computes, compiled or not: the same to the last bit."""

    measures: _Measures
    weigh: _Weigh
    straighten: Callable[[Floats], None]


CODE = ResidualCode(measures, weigh, straighten)
