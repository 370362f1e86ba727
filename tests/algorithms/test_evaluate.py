import numpy as np
import pytest

from incrowd.algorithms import score
from incrowd.data import Examples
from incrowd.learning import LOGISTIC, SQUARED, linear


def test_classes_are_scored_by_loss_and_accuracy() -> None:
    features = np.eye(3, dtype=np.float32)[np.arange(4500) % 3]
    labels = (np.arange(4500) % 3).astype(np.int64)
    labels[:450] = (labels[:450] + 1) % 3
    weights = np.concatenate([np.eye(3).ravel() * 5, np.zeros(3)])
    found = score(linear(3, 3), weights, Examples(features=features, labels=labels, classes=3))
    assert found.accuracy == pytest.approx(0.9)
    right = -np.log(np.exp(5) / (np.exp(5) + 2))
    wrong = -np.log(1 / (np.exp(5) + 2))
    assert found.loss == pytest.approx(0.9 * right + 0.1 * wrong, rel=1e-5)


def test_one_output_says_yes_above_zero() -> None:
    features = np.array([[1.0], [2.0], [-1.0]], np.float32)
    examples = Examples(features=features, labels=np.array([1, 1, 1]), classes=2)
    assert score(linear(1, 1), np.array([1.0, 0.0]), examples, loss=LOGISTIC).accuracy == pytest.approx(2 / 3)


def test_numbers_are_scored_by_loss_alone() -> None:
    examples = Examples(features=np.ones((4, 1), np.float32), labels=np.array([1, 2, 3, 4], np.float32))
    found = score(linear(1, 1), np.array([2.0, 0.0]), examples, loss=SQUARED)
    assert found.accuracy is None
    assert found.loss == pytest.approx(0.5 * np.mean([1, 0, 1, 4]))
