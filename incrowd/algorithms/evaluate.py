"""Evaluation of published weights on examples of the server, which no client holds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from incrowd.algorithms.metrics import Metrics, metrics
from incrowd.data import Examples
from incrowd.data.examples import IGNORED
from incrowd.data.inputs import each
from incrowd.learning import CROSS_ENTROPY, Loss, Model
from incrowd.learning.inputs import calling

_BATCH = 2000
_MOST = 2**25


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
            right += float(_right(outputs, labels))
    accuracy = right / len(examples) if examples.classes is not None else None
    return Score(loss=total / len(examples), accuracy=accuracy)


def evaluate(
    model: Model,
    weights: NDArray[np.floating],
    examples: Examples,
    *,
    loss: Loss = CROSS_ENTROPY,
) -> Metrics | None:
    """The metrics of weights on public examples: see `incrowd.algorithms.metrics`.

    Edge cases: None for more than 2^25 outputs, as for long texts over a large vocabulary.
    """
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


def _right(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The number of right predictions; a sequence counts as the share of its positions that are not ignored."""
    if labels.ndim == 1:
        return (_predicted(outputs) == labels).sum()
    counted = labels != IGNORED
    right = ((outputs.argmax(-1) == labels) & counted).sum(1)
    return (right / counted.sum(1).clamp(min=1)).sum()


def _predicted(outputs: torch.Tensor) -> torch.Tensor:
    if outputs.ndim == 2 and outputs.shape[1] > 1:
        return outputs.argmax(1)
    return (outputs.reshape(len(outputs)) > 0).long()
