"""Random words of the operating system's generator, which `_keystream` gives less to do."""

import os

import numpy as np
from numpy.typing import NDArray


def bits(size: int) -> NDArray[np.uint64]:
    """Whole numbers of 64 bits."""
    return np.frombuffer(os.urandom(8 * size), np.uint64)
