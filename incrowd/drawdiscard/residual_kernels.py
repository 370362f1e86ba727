"""What the residual test computes of an answer, compiled: what `residual_numpy` computes, to the last bit.

No operation may be reordered or fused, or the two would decide differently; lanes are what makes it fast all the same.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

from incrowd._random import Floats, Integers
from incrowd.drawdiscard.pool import Instance
from incrowd.drawdiscard.residual_numpy import LANES, SHORTEST, ResidualCode, Verdict

BEYOND, UNUSUAL, USUAL = (int(verdict) for verdict in Verdict)

_Function = TypeVar("_Function", bound=Callable[..., object])


def compiled(function: _Function) -> _Function:
    """Machine code, kept on disk if there is a folder for it."""
    compile_: Any = numba.njit
    settings = {"error_model": "numpy", "nogil": True}
    try:
        loop: _Function = compile_(function, cache=True, **settings)
    except RuntimeError:  # there is no folder that can be written to
        loop = compile_(function, **settings)
    return loop


@compiled
def measures(answer: Instance, parent: Instance, inverse: float) -> tuple[float, float, float]:
    """See `residual_numpy.measures`."""
    sums, squares, most = np.zeros(LANES), np.zeros(LANES), np.zeros(LANES)
    whole = answer.size // LANES * LANES
    for start in range(0, whole, LANES):
        mine, its = answer[start : start + LANES], parent[start : start + LANES]
        for lane in range(LANES):
            size = abs((np.float64(its[lane]) - np.float64(mine[lane])) * inverse)
            sums[lane] += size
            squares[lane] += size * size
            most[lane] = most[lane] if most[lane] >= size else size
    for place in range(whole, answer.size):
        size = abs((np.float64(parent[place]) - np.float64(answer[place])) * inverse)
        sums[place - whole] += size
        squares[place - whole] += size * size
        most[place - whole] = most[place - whole] if most[place - whole] >= size else size
    total = total_square = largest = 0.0
    for lane in range(LANES):
        total += sums[lane]
        total_square += squares[lane]
        largest = largest if largest >= most[lane] else most[lane]
    return total, total_square, largest


@compiled
def _product(first: Floats, second: Floats) -> float:
    """The sum of products, lane by lane: `residual_numpy.in_lanes` of them."""
    lanes = np.zeros(LANES)
    whole = first.size // LANES * LANES
    for start in range(0, whole, LANES):
        one, other = first[start : start + LANES], second[start : start + LANES]
        for lane in range(LANES):
            lanes[lane] += one[lane] * other[lane]
    for place in range(whole, first.size):
        lanes[place - whole] += first[place] * second[place]
    total = 0.0
    for lane in range(LANES):
        total += lanes[lane]
    return total


@compiled
def project(
    answer: Instance,
    parent: Instance,
    inverse: float,
    where: Integers,
    directions: Floats,
    pulled: Floats,
    found: Floats,
) -> None:
    """See `residual_numpy.project`."""
    there = np.empty(where.size)
    for place in range(where.size):
        at = where[place]
        there[place] = (np.float64(parent[at]) - np.float64(answer[at])) * inverse
    for number in range(len(directions)):
        projection = _product(directions[number], there)
        found[number] = projection
        row = pulled[number]
        for place in range(row.size):
            row[place] += projection * there[place]


@compiled
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
    """See `residual_numpy.weigh`."""
    total, squares, most = measures(answer, parent, inverses[0])
    mean, square = total / answer.size, squares / answer.size
    within = bounds[0, 0] <= mean <= bounds[0, 1] and bounds[1, 0] <= square <= bounds[1, 1]
    if not (within and bounds[2, 0] <= most <= bounds[2, 1]):
        return BEYOND
    found[0], found[1] = mean, square
    project(answer, parent, inverses[1], where, directions, pulled, found[2:])
    for place in range(found.size):
        if not bounds[3 + place, 0] <= found[place] <= bounds[3 + place, 1]:
            return UNUSUAL
    return USUAL


@compiled
def straighten(directions: Floats) -> None:
    """See `residual_numpy.straighten`."""
    for number in range(len(directions)):
        direction = directions[number]
        for earlier in range(number):
            other = directions[earlier]
            along = _product(direction, other)
            for place in range(direction.size):
                direction[place] -= along * other[place]
        length = math.sqrt(_product(direction, direction))
        factor = 1 / max(length, SHORTEST)
        for place in range(direction.size):
            direction[place] *= factor


CODE = ResidualCode(measures, weigh, straighten)
