"""Scores and metrics of a model on examples of the server, which no client holds.

| labels          | metrics                                                                                         |
| --------------- | ----------------------------------------------------------------------------------------------- |
| classes         | accuracy, balanced accuracy, macro F1, AUC, Brier score, calibration error, figures class by class |
| several yes/no  | micro and macro F1, mean AUC, the share of right answers                                        |
| numbers         | mean squared error, its root, mean absolute error, R²                                           |

Each has a baseline that always predicts the most frequent label, or the mean, of the same examples. An undefined figure
(an AUC over equal labels, any figure of outputs that are not finite) is None.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from incrowd._random import Floats
from incrowd._ranks import roc_auc
from incrowd.data.examples import IGNORED, Examples, each
from incrowd.learning.inputs import calling
from incrowd.learning.losses import CROSS_ENTROPY, Loss
from incrowd.learning.models import Model
from incrowd.learning.scoring import shares_right

Metrics = dict[str, Any]

BINS = 15
"""The number of equal bins of the calibration error."""

_BATCH, _MOST = 2000, 2**25  # examples in a call of the model, and outputs to keep

_OF_CLASSES = ("accuracy", "balanced_accuracy", "macro_f1", "auc", "brier", "calibration_error", "per_class")
_OF_ONE_CLASS = ("class", "precision", "recall", "f1", "auc", "support")


@dataclass(frozen=True, kw_only=True)
class Score:
    """The mean loss, and the accuracy if labels are classes."""

    loss: float
    accuracy: float | None


def score(model: Model, weights: NDArray[np.floating], examples: Examples, *, loss: Loss = CROSS_ENTROPY) -> Score:
    """Score weights on the server's public examples (see `Clients.test`)."""
    total, right = 0.0, 0.0
    for outputs, labels in _outputs(model.with_weights(weights), examples):
        total += float(loss.value(outputs, labels)) * len(labels)
        if examples.classes is not None:
            right += float(shares_right(outputs, labels).sum())
    accuracy = right / len(examples) if examples.classes is not None else None
    return Score(loss=total / len(examples), accuracy=accuracy)


def evaluate(
    model: Model, weights: NDArray[np.floating], examples: Examples, *, loss: Loss = CROSS_ENTROPY
) -> Metrics | None:
    """The metrics of weights on public examples, or None for more than 2^25 outputs, as of long texts."""
    if examples.labels.size * (examples.classes or 1) > _MOST:
        return None
    outputs = outputs_of(model.with_weights(weights), examples)
    return metrics(outputs, examples.labels, classes=examples.classes, loss=loss.name)


def outputs_of(module: nn.Module, examples: Examples) -> NDArray[Any]:
    """The outputs of a module for examples, in order."""
    return np.concatenate([outputs.numpy() for outputs, _ in _outputs(module, examples)])


def _outputs(module: nn.Module, examples: Examples) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Outputs and labels, batch by batch."""
    ask = calling(module, examples.features)
    with torch.no_grad():
        for start in range(0, len(examples), _BATCH):
            rows = slice(start, start + _BATCH)
            yield ask(each(torch.from_numpy, examples.values(rows))), torch.from_numpy(examples.labels[rows])


def metrics(
    outputs: NDArray[np.floating[Any]], labels: NDArray[Any], *, classes: int | None, loss: str = ""
) -> Metrics:
    """The metrics of a model's outputs [N, C], [N, 1] or [N] for labels [N], or binary labels [N, L].

    Outputs are logits for classes and binary labels; otherwise numbers, or their logarithms for the loss "poisson". In
    sequences, labels [N, T] and outputs [N, T, C], every position that is not ignored counts as an example.
    """
    raw = np.asarray(outputs, np.float64)
    if classes is None:
        return _of_numbers_or_answers(raw.reshape(labels.shape), labels, loss=loss)
    if labels.ndim > 1:
        known = labels.ravel() != IGNORED
        raw, labels = raw.reshape(labels.size, -1)[known], labels.ravel()[known]
    return of_classes(probabilities(raw), labels.astype(np.int64), classes=classes)


def _of_numbers_or_answers(raw: Floats, labels: NDArray[Any], *, loss: str) -> Metrics:
    several = loss == "logistic" or (labels.ndim > 1 and loss not in ("squared", "poisson", "absolute", "huber"))
    if several and np.isin(labels, (0, 1)).all():
        return of_several(_logistic(raw).reshape(len(labels), -1), labels.astype(np.int64).reshape(len(labels), -1))
    with np.errstate(over="ignore"):  # `of_numbers` handles infinite rates
        return of_numbers(np.exp(raw) if loss == "poisson" else raw, labels.astype(np.float64))


def probabilities(logits: Floats) -> Floats:
    """Class probabilities from logits [N, C] or [N, T, C], or from the logit of class 1, [N, 1] or [N]."""
    if logits.ndim == 1 or logits.shape[1] == 1:
        one = _logistic(logits.reshape(len(logits)))
        return np.stack([1 - one, one], axis=1)
    with np.errstate(invalid="ignore"):  # infinities become NaN
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True), np.float64)


def of_classes(chances: Floats, labels: NDArray[np.int64], *, classes: int) -> Metrics:
    """The metrics of probabilities [N, C] for labels in 0 .. C - 1.

    AUC is that of class 1 for two classes, and the mean over each class against the rest for more. The Brier score is
    the mean squared distance of the probability of class 1 from 0 or 1 for two classes, and its sum over the classes
    for more. The calibration error is the mean distance between confidence and accuracy in `BINS` bins of confidence.
    """
    classes = max(classes, chances.shape[1])
    chances = np.pad(chances, ((0, 0), (0, classes - chances.shape[1])))
    if not len(labels):
        return {**dict.fromkeys(_OF_CLASSES), "baseline": {"accuracy": None, "balanced_accuracy": None}}
    support = np.bincount(labels, minlength=classes)
    baseline = {"accuracy": float(support.max() / len(labels)), "balanced_accuracy": 1 / int((support > 0).sum())}
    if not np.isfinite(chances).all():
        return {**dict.fromkeys(_OF_CLASSES), "baseline": baseline}
    predicted = chances.argmax(axis=1)
    right, guesses = (np.bincount(one, minlength=classes) for one in (labels[predicted == labels], predicted))
    precision, recall, f1 = _ratio(right, guesses), _ratio(right, support), _ratio(2 * right, guesses + support)
    aucs = [roc_auc(labels == place, chances[:, place]) for place in range(classes)]
    distance = float(((chances - np.eye(classes)[labels]) ** 2).sum(axis=1).mean())
    columns = range(classes), precision.tolist(), recall.tolist(), f1.tolist(), aucs, support.tolist()
    figures = (
        float(right.sum() / len(labels)),
        float(recall[support > 0].mean()),
        float(f1[support + guesses > 0].mean()),
        aucs[1] if classes == 2 else mean_of_known(aucs),
        distance / 2 if classes == 2 else distance,
        calibration_error(chances, labels),
        [dict(zip(_OF_ONE_CLASS, row, strict=True)) for row in zip(*columns, strict=True)],
    )
    return {**dict(zip(_OF_CLASSES, figures, strict=True)), "baseline": baseline}


def of_several(chances: Floats, labels: NDArray[np.int64]) -> Metrics:
    """The metrics of probabilities [N, L] for L binary labels."""
    usual = (labels.mean(axis=0) > 0.5).astype(np.int64)
    baseline = {"accuracy": float((labels == usual).mean())}
    if not np.isfinite(chances).all():
        return {**dict.fromkeys(("accuracy", "micro_f1", "macro_f1", "mean_auc")), "baseline": baseline}
    from sklearn.metrics import f1_score

    said = (chances > 0.5).astype(np.int64)
    columns = range(labels.shape[1])
    return {
        "accuracy": float((said == labels).mean()),
        "micro_f1": float(f1_score(labels, said, average="micro", zero_division=0)),
        "macro_f1": float(f1_score(labels, said, average="macro", zero_division=0)),
        "mean_auc": mean_of_known([roc_auc(labels[:, column] > 0, chances[:, column]) for column in columns]),
        "baseline": baseline,
    }


def of_numbers(predicted: Floats, labels: Floats) -> Metrics:
    """The metrics of predictions [N], or [N, L], for numbers of the same shape; R² of several is their mean."""
    return {
        **_errors(predicted, labels),
        "r2": _r2(predicted, labels),
        "baseline": _errors(np.broadcast_to(labels.mean(axis=0), labels.shape), labels),
    }


def calibration_error(chances: Floats, labels: NDArray[np.int64], *, bins: int = BINS) -> float:
    """The mean distance between confidence and accuracy: see `of_classes`."""
    sure, right = chances.max(axis=1), chances.argmax(axis=1) == labels
    place = np.minimum((sure * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(place, sure, minlength=bins) - np.bincount(place, right, minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))


def scalars(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """All scalar metrics, with those of the baseline."""
    single = {name: value for name, value in metrics.items() if name not in ("per_class", "baseline")}
    return single | {f"baseline_{name}": value for name, value in metrics["baseline"].items()}


def _ratio(parts: NDArray[np.int64], wholes: NDArray[np.int64]) -> Floats:
    """Ratios; 0 for a denominator of 0."""
    return np.divide(parts, wholes, out=np.zeros(len(parts)), where=wholes > 0)


def _errors(predicted: Floats, labels: Floats) -> Metrics:
    with np.errstate(over="ignore", invalid="ignore"):
        mse, mae = float(((predicted - labels) ** 2).mean()), float(np.abs(predicted - labels).mean())
        errors = {"mse": mse, "rmse": float(np.sqrt(mse)), "mae": mae}
    return {name: error if np.isfinite(error) else None for name, error in errors.items()}


def _r2(predicted: Floats, labels: Floats) -> float | None:
    spread = ((labels - labels.mean(axis=0)) ** 2).sum(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        residual = ((predicted - labels) ** 2).sum(axis=0)
    if not np.all(spread > 0) or not np.isfinite(residual).all():
        return None
    return float(np.mean(1 - residual / spread))


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """The mean of the defined values."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _logistic(logits: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits)), np.float64)
