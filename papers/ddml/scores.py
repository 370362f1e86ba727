"""How well numbers tell two classes apart: the six measures of Pihur et al. (2018), section VI-A."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from harness import checks
from incrowd import DataError

Numbers = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class BinaryScores:
    """Two areas over all thresholds, and four measures at one threshold.

    `roc_auc` is the probability that a positive example gets more than a negative one, ties counting half; `pr_auc` is
    the average precision, the mean over the positive examples of the precision at their own number.
    """

    roc_auc: float
    pr_auc: float
    accuracy: float
    precision: float
    recall: float
    f1: float

    @classmethod
    def of(cls, labels: NDArray[np.int64], numbers: Numbers, *, threshold: float) -> "BinaryScores":
        """Those of numbers for examples with these labels, 1 being positive.

        Edge cases: without examples of both kinds there is nothing to tell apart (`DataError`), and so it is with
        numbers that are not finite. Where nothing reaches the threshold, precision, recall and F1 are 0.
        """
        positive = labels == 1
        if not 0 < positive.sum() < len(labels):
            raise DataError(f"{positive.sum()} of {len(labels)} examples are positive: both kinds are needed")
        if not np.isfinite(numbers).all():
            raise DataError("numbers to rank by must be finite")
        predicted = numbers >= threshold
        hits = int((predicted & positive).sum())
        precision, recall = hits / max(1, int(predicted.sum())), hits / int(positive.sum())
        return cls(
            roc_auc=_roc_auc(positive, numbers),
            pr_auc=_average_precision(positive, numbers),
            accuracy=float((predicted == positive).mean()),
            precision=precision,
            recall=recall,
            f1=2 * precision * recall / (precision + recall) if hits else 0.0,
        )

    def to_json(self) -> dict[str, float]:
        """As plain data."""
        return asdict(self)


def _roc_auc(positive: NDArray[np.bool_], numbers: Numbers) -> float:
    """From the sum of the ranks of the positive examples (Mann and Whitney 1947)."""
    count = int(positive.sum())
    above = rankdata(numbers)[positive].sum() - count * (count + 1) / 2
    return float(above / (count * (len(positive) - count)))


def _average_precision(positive: NDArray[np.bool_], numbers: Numbers) -> float:
    order = np.argsort(-numbers, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(numbers[order]) != 0, True))  # equal numbers come in at once
    hits = np.cumsum(positive[order])[ends]
    return float((np.diff(hits, prepend=0) * hits / (ends + 1)).sum() / positive.sum())


def precision_elsewhere(labels: NDArray[np.int64], numbers: Numbers, *, recall: float, share: float) -> float:
    """The precision at the threshold of this recall, were the positive examples such a share of all.

    Precision depends on how frequent positive examples are, so those of two sets compare at one share only.

    Edge cases: as `BinaryScores.of`; a recall or share that is not between 0 and 1 is refused.
    """
    checks.fraction(recall=recall, share=share)
    threshold = float(np.quantile(numbers[labels == 1], 1 - recall, method="lower")) if (labels == 1).any() else 0.0
    reached = BinaryScores.of(labels, numbers, threshold=threshold).recall
    false = float((numbers[labels != 1] >= threshold).mean())
    return reached * share / (reached * share + false * (1 - share))


def share_behind(*, accuracy: float, precision: float, recall: float) -> float:
    """The share of positive examples that these three measures, of one set at one threshold, imply."""
    checks.fraction(accuracy=accuracy, precision=precision, recall=recall)
    return (1 - accuracy) / (recall * (1 / precision - 1) + 1 - recall)
