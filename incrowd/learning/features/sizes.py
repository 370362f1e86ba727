"""Numbers of which nobody knows how large they may be, seen by their size.

A scale that is found in the rows would tell who is in them. So places are fixed, 0 and sizes of which each is 10^(1/3)
times the one before, of either sign, and a number becomes how near it is to each. A linear model is then one of pieces,
as it would be over a stated range, whatever the unit. All zeros of a row together are as loud as one number: where most
are 0, they would else be all that there is.
"""

import numpy as np
from numpy.typing import NDArray

from incrowd.learning.features.feature_map import Values

_SMALLEST, _DECADES, _A_DECADE = 1e-3, 12, 3
_SIDE = _DECADES * _A_DECADE
_SCALED = 10.0  # rows of no larger numbers are taken for standardised ones, or shares
_AROUND_0, _FEW = 30.0, 10.0  # times what is usual in a row: the largest number of one scale, whose tails may be long
_BALANCED = 0.5  # so much of what a row's sizes add up to may not cancel out, if its numbers are around 0

PLACES = 2 * _SIDE + 1
"""How many numbers one number becomes."""


def sizes(numbers: Values) -> NDArray[np.float64]:
    """How near numbers [n, columns] are to each place [n, columns * places], from 0 to 1; at most two are not 0.

    Edge cases: up to a thousandth a number is 0, from a thousand million on all are alike.
    """
    exact = numbers.astype(np.float64)
    decades = np.log10(np.maximum(np.abs(exact), _SMALLEST) / _SMALLEST)
    at = np.clip(np.sign(exact) * decades * _A_DECADE, -_SIDE, _SIDE)
    near: NDArray[np.float64] = np.maximum(0.0, 1 - np.abs(at[..., None] - np.arange(-_SIDE, _SIDE + 1)))
    near[..., _SIDE] /= np.maximum(np.linalg.norm(near[..., _SIDE], axis=1, keepdims=True), 1.0)
    return near.reshape(len(numbers), -1)


def sizes_or_numbers(numbers: Values) -> NDArray[np.float64]:
    """The sizes of a row's numbers; or, of one whose numbers are on one scale already, these: two parts, of which one
    is zeros.

    They are on one scale where none is larger than 10; where they are around 0 and none is larger than 30 times what is
    usual among them (their geometric mean); and where most are 0 and none is larger than 10 times that.

    Guarantee: of a row by itself.
    """
    scaled = _on_one_scale(numbers.astype(np.float64))[:, None]
    return np.concatenate([np.where(scaled, 0.0, sizes(numbers)), np.where(scaled, numbers, 0.0)], axis=1)


def _on_one_scale(rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    large = np.abs(rows)
    most, total, some = large.max(axis=1, initial=0.0), large.sum(axis=1), (large > 0).sum(axis=1)
    usual = np.exp(np.log(np.where(large > 0, large, 1.0)).sum(axis=1) / np.maximum(some, 1))
    around_0 = (np.abs(rows.sum(axis=1)) <= _BALANCED * total) & (most <= _AROUND_0 * usual)
    few = (2 * some < rows.shape[1]) & (most <= _FEW * usual)
    scaled: NDArray[np.bool_] = (most <= _SCALED) | around_0 | few
    return scaled
