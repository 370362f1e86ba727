"""Numbers of which nobody knows how large they may be, seen by their size.

A scale that is found in the rows would tell who is in them. So places are fixed, 0 and sizes of which each is 10^(1/3)
times the one before, of either sign, and a number becomes how near it is to each. A linear model is then one of pieces,
as it would be over a stated range, whatever the unit.
"""

import numpy as np
from numpy.typing import NDArray

from incrowd.learning.features.feature_map import Values

_SMALLEST, _DECADES, _A_DECADE = 1e-3, 9, 3
_SCALED = 10.0  # rows of no larger numbers are taken for standardised ones, or shares
_SIDE = _DECADES * _A_DECADE

PLACES = 2 * _SIDE + 1
"""How many numbers one number becomes."""


def near_sizes(numbers: Values) -> NDArray[np.float64]:
    """How near numbers [n, columns] are to each place [n, columns, places], from 0 to 1; at most two are not 0.

    Edge cases: up to a thousandth a number counts as 0, beyond a million as a million.
    """
    exact = numbers.astype(np.float64)
    decades = np.log10(np.maximum(np.abs(exact), _SMALLEST) / _SMALLEST)
    at = np.clip(np.sign(exact) * decades * _A_DECADE, -_SIDE, _SIDE)
    near: NDArray[np.float64] = np.maximum(0.0, 1 - np.abs(at[..., None] - np.arange(-_SIDE, _SIDE + 1)))
    return near


def sizes(numbers: Values) -> NDArray[np.float64]:
    """`near_sizes` of rows [n, columns], flat, less the mean of a place."""
    return (near_sizes(numbers) - 1 / PLACES).reshape(len(numbers), -1)


def sizes_or_numbers(numbers: Values) -> NDArray[np.float64]:
    """The sizes of a row in which a number is larger than 10; others, on one scale already, as they are: two parts, of
    which one is zeros.

    Guarantee: of a row by itself.
    """
    scaled = (np.abs(numbers) <= _SCALED).all(axis=1, keepdims=True)
    return np.concatenate([np.where(scaled, 0.0, sizes(numbers)), np.where(scaled, numbers, 0.0)], axis=1)
