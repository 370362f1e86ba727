"""The measures against what they are defined as, counted one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.ddml.scores import BinaryScores

EXAMPLES = st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=30).filter(
    lambda examples: len({label for label, _ in examples}) == 2
)


def score(pairs: list[tuple[bool, int]], threshold: float = 0.5) -> BinaryScores:
    labels = np.array([int(label) for label, _ in pairs])
    return BinaryScores.of(labels, np.array([float(number) for _, number in pairs]), threshold=threshold)


@pytest.mark.slow
@given(EXAMPLES)
def test_roc_auc_is_the_share_of_pairs_in_the_right_order(pairs: list[tuple[bool, int]]) -> None:
    positive = [number for label, number in pairs if label]
    negative = [number for label, number in pairs if not label]
    wins = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    assert score(pairs).roc_auc == pytest.approx(wins / (len(positive) * len(negative)))


@given(EXAMPLES)
def test_pr_auc_is_the_mean_precision_at_the_positive_examples(pairs: list[tuple[bool, int]]) -> None:
    def precision(threshold: int) -> float:
        found = [label for label, number in pairs if number >= threshold]
        return sum(found) / len(found)

    expected = np.mean([precision(number) for label, number in pairs if label])
    assert score(pairs).pr_auc == pytest.approx(expected)
