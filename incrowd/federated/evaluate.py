"""How good published weights are, measured on examples that no client holds."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from incrowd.data import Examples
from incrowd.data.examples import IGNORED
from incrowd.data.inputs import each
from incrowd.learning import CROSS_ENTROPY, Loss, Model
from incrowd.learning.inputs import calling

_BATCH = 2000


@dataclass(frozen=True, kw_only=True)
class Score:
    """The mean loss, and the share of right labels where labels are classes."""

    loss: float
    accuracy: float | None


def score(model: Model, weights: NDArray[np.floating], examples: Examples, *, loss: Loss = CROSS_ENTROPY) -> Score:
    """Score weights on examples that the server holds and that are public (see `Clients.test`)."""
    call = calling(model.with_weights(weights), examples.features)
    total, right = 0.0, 0.0
    with torch.no_grad():
        for start in range(0, len(examples), _BATCH):
            rows = slice(start, start + _BATCH)
            outputs = call(each(torch.from_numpy, examples.values(rows)))
            labels = torch.from_numpy(examples.labels[rows])
            total += float(loss.value(outputs, labels)) * len(labels)
            if examples.classes is not None:
                right += float(_right(outputs, labels))
    accuracy = right / len(examples) if examples.classes is not None else None
    return Score(loss=total / len(examples), accuracy=accuracy)


def _right(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """How many examples are right; of a sequence the share of the places that count."""
    if labels.ndim == 1:
        return (_predicted(outputs) == labels).sum()
    counted = labels != IGNORED
    right = ((outputs.argmax(-1) == labels) & counted).sum(1)
    return (right / counted.sum(1).clamp(min=1)).sum()


def _predicted(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()
