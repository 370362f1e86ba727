"""The embedded data set: 1,797 real handwritten digits of 8 x 8 pixels that come with scikit-learn."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from incrowd._random import SeededRandomness
from incrowd.data.examples import Examples, Split, hold_out


def load_digits(*, test_examples: int = 297) -> Split:
    """The digits as [N, 8, 8] bytes whose meaning is ``byte / 16``.

    Guarantee: which digits are held out for the test is always the same.
    """
    images, labels = _read()  # copied, so that nobody's changes reach the next
    examples = Examples(features=images.copy(), labels=labels.copy(), classes=10, scale=1 / 16)
    return hold_out(examples, name="digits", test_examples=test_examples, randomness=SeededRandomness(seed=0))


@cache
def _read() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images and labels, whose text takes longer to read than many a round takes."""
    from sklearn import datasets

    digits = datasets.load_digits()
    return np.ascontiguousarray(digits.images, np.uint8), digits.target.astype(np.int64)
