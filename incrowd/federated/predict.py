"""What a module gives for examples, and what its outputs stand for."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from incrowd.data import Examples
from incrowd.data.inputs import each
from incrowd.learning.inputs import calling

_BATCH = 2000


def outputs_of(module: nn.Module, examples: Examples) -> NDArray[Any]:
    """The outputs of a module in evaluation mode, example by example."""
    found, ask = [], calling(module, examples.features)
    with torch.no_grad():
        for start in range(0, len(examples), _BATCH):
            values = examples.values(slice(start, start + _BATCH))
            found.append(ask(each(torch.from_numpy, values)).numpy())
    return np.concatenate(found)


def as_classes(outputs: NDArray[Any]) -> NDArray[np.int64]:
    """The most likely class: of logits, the last of their places, or of one logit, that of class 1."""
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        return (outputs.reshape(len(outputs), -1)[:, 0] > 0).astype(np.int64)
    return np.asarray(outputs.argmax(-1), np.int64)


def as_probabilities(outputs: NDArray[Any]) -> NDArray[Any]:
    """The probability of each class, the last of the places."""
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        positive = 1 / (1 + np.exp(-outputs.reshape(len(outputs)).astype(np.float64)))
        return np.stack([1 - positive, positive], axis=1)
    logits = outputs.astype(np.float64) - outputs.max(axis=-1, keepdims=True)
    odds = np.exp(logits)
    probabilities: NDArray[Any] = odds / odds.sum(axis=-1, keepdims=True)
    return probabilities
