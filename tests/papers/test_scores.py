"""The measures against what they are defined as, counted one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from incrowd.errors import DataError
from papers.ddml.scores import BinaryScores, precision_elsewhere, share_behind

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


@given(EXAMPLES)
def test_the_share_behind_three_measures_is_the_one_that_they_were_measured_at(pairs: list[tuple[bool, int]]) -> None:
    found = score(pairs)
    if all(0 < measure < 1 for measure in (found.accuracy, found.precision, found.recall)):
        share = sum(label for label, _ in pairs) / len(pairs)
        implied = share_behind(accuracy=found.accuracy, precision=found.precision, recall=found.recall)
        assert implied == pytest.approx(share)


def test_precision_elsewhere_is_what_it_is_where_positive_examples_are_so_frequent() -> None:
    generator = np.random.Generator(np.random.SFC64(1))
    labels = (np.arange(4_000) < 2_000).astype(np.int64)
    numbers = generator.standard_normal(4_000) + 2 * labels
    rare = np.append(np.arange(0, 2_000, 10), np.arange(2_000, 4_000))  # every tenth positive one
    threshold = np.quantile(numbers[:2_000], 0.1, method="lower")
    there = BinaryScores.of(labels[rare], numbers[rare], threshold=float(threshold)).precision
    found = precision_elsewhere(labels, numbers, recall=0.9, share=200 / 2_200)
    assert found == pytest.approx(there, abs=0.03)
    assert found < BinaryScores.of(labels, numbers, threshold=float(threshold)).precision - 0.1
    with pytest.raises(DataError):
        precision_elsewhere(np.zeros(2, np.int64), np.zeros(2), recall=0.9, share=0.1)
