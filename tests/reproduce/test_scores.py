"""The measures against what they are defined as, counted one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from incrowd.errors import DataError
from incrowd.reproduce.scores import BinaryScores

EXAMPLES = st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=30).filter(
    lambda examples: len({label for label, _ in examples}) == 2
)


def score(pairs: list[tuple[bool, int]], threshold: float = 0.5) -> BinaryScores:
    labels = np.array([int(label) for label, _ in pairs])
    return BinaryScores.of(labels, np.array([float(number) for _, number in pairs]), threshold=threshold)


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


def test_the_measures_at_a_threshold_count_as_one_would() -> None:
    # Found: two positive, one negative; missed: one positive.
    found = score([(True, 3), (True, 2), (False, 1), (True, 0), (False, -1), (False, -2)])
    assert found.precision == pytest.approx(2 / 3)
    assert found.recall == pytest.approx(2 / 3)
    assert found.f1 == pytest.approx(2 / 3)
    assert found.accuracy == pytest.approx(4 / 6)
    assert list(found.to_json()) == ["roc_auc", "pr_auc", "accuracy", "precision", "recall", "f1"]


def test_nothing_above_the_threshold_gives_zeros() -> None:
    found = score([(True, 1), (False, 0)], threshold=9)
    assert (found.precision, found.recall, found.f1, found.accuracy) == (0, 0, 0, 0.5)


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [([1, 1], [0.0, 1.0]), ([0, 0], [0.0, 1.0]), ([0, 1], [0.0, np.nan]), ([0, 1], [0.0, np.inf])],
)
def test_what_cannot_be_scored_is_refused(labels: list[int], numbers: list[float]) -> None:
    given_labels: NDArray[np.int64] = np.array(labels)
    with pytest.raises(DataError):
        BinaryScores.of(given_labels, np.array(numbers), threshold=0.5)
