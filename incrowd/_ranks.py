"""How well numbers rank: the area under the curve of the receiver's operating characteristic."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def roc_auc(positive: NDArray[np.bool_], numbers: NDArray[np.floating[Any]]) -> float | None:
    """How often one that is positive has a larger number than one that is not, equal ones counted by half.

    By the ranks of the positive ones (Mann and Whitney 1947), which takes one sorting.
    """
    positives = int(positive.sum())
    if positives in (0, len(positive)):
        return None
    _, place, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    above = float(ranks[positive].sum()) - positives * (positives + 1) / 2
    return above / (positives * (len(positive) - positives))
