"""Metrics against slow references that are obviously right."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from incrowd.algorithms import evaluate
from incrowd.algorithms.metrics import BINS, metrics, of_several, probabilities, scalars
from incrowd.data import Examples
from incrowd.data.examples import IGNORED
from incrowd.learning import LOGISTIC, POISSON, SQUARED, linear


def slow_auc(labels: list[int], chances: list[float]) -> float | None:
    """How often one who is is above one who is not; half of the ties."""
    ones = [chance for label, chance in zip(labels, chances, strict=True) if label]
    zeros = [chance for label, chance in zip(labels, chances, strict=True) if not label]
    if not ones or not zeros:
        return None
    wins = sum(1.0 if one > zero else 0.5 if one == zero else 0.0 for one in ones for zero in zeros)
    return wins / len(ones) / len(zeros)


def share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def slow_rows(labels: list[int], predicted: list[int], classes: int) -> list[tuple[float, float, float]]:
    rows = []
    for one in range(classes):
        pairs = list(zip(labels, predicted, strict=True))
        hit = sum(label == one and said == one for label, said in pairs)
        said, there = predicted.count(one), labels.count(one)
        rows.append((share(hit, said), share(hit, there), share(2 * hit, said + there)))
    return rows


def slow_calibration(chances: list[list[float]], labels: list[int]) -> float:
    total = 0.0
    for place in range(BINS):
        inside = [
            (max(row), row.index(max(row)) == label)
            for row, label in zip(chances, labels, strict=True)
            if min(int(max(row) * BINS), BINS - 1) == place
        ]
        if inside:
            sure = sum(one for one, _ in inside) / len(inside)
            right = sum(one for _, one in inside) / len(inside)
            total += len(inside) / len(labels) * abs(sure - right)
    return total


SAMPLES = st.tuples(st.integers(2, 5), st.integers(1, 30), st.integers(0, 2**32 - 1))


@given(SAMPLES)
def test_classes_are_measured_as_slowly(sample: tuple[int, int, int]) -> None:
    classes, size, seed = sample
    dice = np.random.default_rng(seed)
    logits, labels = dice.normal(size=(size, classes)).round(1), dice.integers(0, classes, size)
    chances = probabilities(logits)
    assert chances.sum(axis=1) == pytest.approx(1)
    found = metrics(logits, labels, classes=classes)
    said, truth = [row.index(max(row)) for row in chances.tolist()], labels.tolist()
    rows = slow_rows(truth, said, classes)
    aucs = [slow_auc([int(label == one) for label in truth], chances[:, one].tolist()) for one in range(classes)]
    known = [auc for auc in aucs if auc is not None]
    assert found["accuracy"] == pytest.approx(np.mean([a == b for a, b in zip(said, truth, strict=True)]))
    assert found["balanced_accuracy"] == pytest.approx(np.mean([rows[one][1] for one in sorted(set(truth))]))
    assert found["macro_f1"] == pytest.approx(np.mean([rows[one][2] for one in sorted(set(truth) | set(said))]))
    assert found["auc"] == (pytest.approx(aucs[1] if classes == 2 else np.mean(known)) if known else None)
    assert found["calibration_error"] == pytest.approx(slow_calibration(chances.tolist(), truth))
    pairs = zip(chances.tolist(), truth, strict=True)
    squares = [sum((p - (label == one)) ** 2 for one, p in enumerate(row)) for row, label in pairs]
    assert found["brier"] == pytest.approx(np.mean(squares) / (2 if classes == 2 else 1))
    for one, row in enumerate(found["per_class"]):
        assert (row["precision"], row["recall"], row["f1"]) == pytest.approx(rows[one])
        assert row["support"] == truth.count(one)
        assert row["auc"] == (None if aucs[one] is None else pytest.approx(aucs[one]))
    assert found["baseline"]["accuracy"] == max(map(truth.count, truth)) / size
    assert found["baseline"]["balanced_accuracy"] == 1 / len(set(truth))


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(-30, 30), st.integers(0, 1)), min_size=1, max_size=30))
def test_one_logit_is_measured_as_two(sample: list[tuple[float, int]]) -> None:
    logits, labels = np.array([one for one, _ in sample]), np.array([label for _, label in sample])
    pair = np.stack([np.zeros(len(logits)), logits], axis=1)
    expected = scalars(metrics(pair, labels, classes=2))
    for shaped in (logits, logits[:, None]):
        found = scalars(metrics(shaped, labels, classes=2))
        for name, value in expected.items():
            if name not in ("accuracy", "balanced_accuracy", "macro_f1", "auc"):  # these may turn on a rounding
                assert found[name] == pytest.approx(value, abs=1e-6)
    assert probabilities(logits)[:, 1] == pytest.approx([1 / (1 + math.exp(-one)) for one in logits])


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_has_no_figures_and_no_warnings(wrong: float) -> None:
    labels = np.array([0, 1, 1])
    for outputs in (np.array([[0.0, wrong], [1, 2], [0, 1]]), np.array([wrong, 1.0, 0.0])):
        if outputs.ndim == 1 and math.isinf(wrong):
            assert metrics(outputs, labels, classes=2)["accuracy"] is not None  # it is quite sure
            continue
        if wrong == -math.inf:
            assert metrics(outputs, labels, classes=2)["accuracy"] is not None
            continue
        found = metrics(outputs, labels, classes=2)
        assert {value for name, value in found.items() if name != "baseline"} == {None}
        assert found["baseline"]["accuracy"] == pytest.approx(2 / 3)
    numbers = metrics(np.array([wrong, 1.0, 0.0]), labels.astype(np.float32), classes=None)
    assert (numbers["mse"], numbers["rmse"], numbers["mae"], numbers["r2"]) == (None, None, None, None)
    several = of_several(np.full((2, 2), math.nan), np.array([[0, 1], [1, 0]]))
    assert several["micro_f1"] is None


def test_the_places_of_a_sequence_that_count_are_measured() -> None:
    dice = np.random.default_rng(1)
    logits, labels = dice.normal(size=(4, 3, 5)), dice.integers(0, 5, (4, 3))
    labels[0, 1:] = labels[3] = IGNORED
    flat = [
        (logits[one, place], labels[one, place]) for one in range(4) for place in range(3) if labels[one, place] >= 0
    ]
    expected = metrics(np.array([row for row, _ in flat]), np.array([label for _, label in flat]), classes=5)
    assert metrics(logits, labels, classes=5) == expected
    nothing = metrics(logits[3:], labels[3:], classes=5)
    assert nothing["accuracy"] is None
    assert nothing["baseline"]["accuracy"] is None


def examples(features: Any, labels: NDArray[Any], classes: int | None) -> Examples:
    return Examples(features=np.array(features, np.float32), labels=labels, classes=classes)


def test_weights_are_evaluated() -> None:
    two = examples([[1.0], [-1.0], [2.0]], np.array([1, 0, 0]), 2)
    found = evaluate(linear(1, 1), np.array([1.0, 0.0]), two, loss=LOGISTIC)
    assert found is not None
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert [row["support"] for row in found["per_class"]] == [2, 1]
    numbers = examples([[1.0], [2.0]], np.array([1, 4], np.float32), None)
    squared, rates = (evaluate(linear(1, 1), np.array([1.0, 0.0]), numbers, loss=one) for one in (SQUARED, POISSON))
    assert squared is not None
    assert squared["mse"] == 2
    assert rates is not None
    assert rates["mae"] == pytest.approx(np.mean([math.e - 1, math.e**2 - 4]))
