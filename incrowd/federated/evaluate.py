"""How good published weights are, measured on examples that no client holds."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from incrowd.data import Examples
from incrowd.learning import CROSS_ENTROPY, Loss, Model

_BATCH = 2000


@dataclass(frozen=True, kw_only=True)
class Score:
    """The mean loss, and the share of right labels where labels are classes."""

    loss: float
    accuracy: float | None


def score(model: Model, weights: NDArray[np.floating], examples: Examples, *, loss: Loss = CROSS_ENTROPY) -> Score:
    """Score weights on examples that the server holds and that are public (see `Clients.test`)."""
    module = model.with_weights(weights).eval()
    total, right = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(examples), _BATCH):
            rows = slice(start, start + _BATCH)
            outputs = module(torch.from_numpy(examples.values(rows)))
            labels = torch.from_numpy(examples.labels[rows])
            total += float(loss.value(outputs, labels)) * len(labels)
            if examples.classes is not None:
                right += int((_predicted(outputs) == labels).sum())
    accuracy = right / len(examples) if examples.classes is not None else None
    return Score(loss=total / len(examples), accuracy=accuracy)


def _predicted(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()
