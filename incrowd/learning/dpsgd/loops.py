"""A compiled loop over gradients of records: their squared norms in float64, in one pass over memory."""

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats
from incrowd.learning.machine_code import kept

_compiled = kept(__file__)


@_compiled
def add_squares(gradients: NDArray[np.float32], squares: Floats) -> None:
    """Add the squared norm of each row to its number."""
    for row in range(gradients.shape[0]):
        square = 0.0
        for column in range(gradients.shape[1]):
            value = np.float64(gradients[row, column])
            square += value * value
        squares[row] += square
