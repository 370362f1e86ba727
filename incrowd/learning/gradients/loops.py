"""Compiled loops over gradients of records: their lengths and their sum, in float64, in one pass each."""

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats
from incrowd.learning.machine_code import kept

_compiled = kept(__file__)
_BLOCK = 1024  # numbers of a sum that stay in the cache while all records are added to them


@_compiled
def add_squares(gradients: NDArray[np.float32], squares: Floats) -> None:
    """Add the squared norm of each row to its number."""
    for row in range(gradients.shape[0]):
        square = 0.0
        for column in range(gradients.shape[1]):
            value = np.float64(gradients[row, column])
            square += value * value
        squares[row] += square


@_compiled
def add_rows(gradients: NDArray[np.float32], factors: Floats, total: Floats) -> None:
    """Add each row, times its factor; a row whose factor is 0 is not looked at, whatever it holds."""
    for begin in range(0, total.shape[0], _BLOCK):
        end = min(begin + _BLOCK, total.shape[0])
        for row in range(gradients.shape[0]):
            factor = factors[row]
            if factor != 0:
                for column in range(begin, end):
                    total[column] += factor * np.float64(gradients[row, column])
