"""How good published weights are, measured on examples that no client holds."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from incrowd.data import Examples
from incrowd.federated.metrics import Metrics, metrics
from incrowd.learning import CROSS_ENTROPY, Loss, Model

_BATCH = 2000


@dataclass(frozen=True, kw_only=True)
class Score:
    """The mean loss, and the share of right labels where labels are classes."""

    loss: float
    accuracy: float | None


def score(model: Model, weights: NDArray[np.floating], examples: Examples, *, loss: Loss = CROSS_ENTROPY) -> Score:
    """Score weights on examples that the server holds and that are public (see `Clients.test`)."""
    total, right = 0.0, 0
    for outputs, labels in _outputs(model, weights, examples):
        total += float(loss.value(outputs, labels)) * len(labels)
        if examples.classes is not None:
            right += int((_predicted(outputs) == labels).sum())
    accuracy = right / len(examples) if examples.classes is not None else None
    return Score(loss=total / len(examples), accuracy=accuracy)


def evaluate(
    model: Model,
    weights: NDArray[np.floating],
    examples: Examples,
    *,
    loss: Loss = CROSS_ENTROPY,
    counted: bool = True,
) -> Metrics:
    """What people report of weights, on the same examples: see `incrowd.federated.metrics`."""
    outputs = np.concatenate([outputs.numpy() for outputs, _ in _outputs(model, weights, examples)])
    return metrics(outputs, examples.labels, classes=examples.classes, loss=loss.name, counted=counted)


def _outputs(
    model: Model, weights: NDArray[np.floating], examples: Examples
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What the model says of the examples, batch by batch, and their labels."""
    module = model.with_weights(weights).eval()
    with torch.no_grad():
        for start in range(0, len(examples), _BATCH):
            rows = slice(start, start + _BATCH)
            yield module(torch.from_numpy(examples.values(rows))), torch.from_numpy(examples.labels[rows])


def _predicted(outputs: torch.Tensor) -> torch.Tensor:
    if outputs.ndim == 2 and outputs.shape[1] > 1:
        return outputs.argmax(1)
    return (outputs.reshape(len(outputs)) > 0).long()
