"""The embedded data set: 1,797 real handwritten digits of 8 x 8 pixels that come with scikit-learn."""

import numpy as np

from incrowd._random import SeededRandomness
from incrowd.data.examples import Examples, Split, hold_out


def load_digits(*, test_examples: int = 297) -> Split:
    """The digits as [N, 8, 8] bytes whose meaning is ``byte / 16``.

    Guarantee: which digits are held out for the test is always the same.
    """
    from sklearn import datasets

    digits = datasets.load_digits()
    examples = Examples(
        features=np.ascontiguousarray(digits.images, np.uint8),
        labels=digits.target.astype(np.int64),
        classes=10,
        scale=1 / 16,
    )
    return hold_out(examples, name="digits", test_examples=test_examples, randomness=SeededRandomness(seed=0))
