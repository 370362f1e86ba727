"""Kinds of arrays, by name."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Matrix = NDArray[np.float32]
