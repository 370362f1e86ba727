"""What clients tell in a round that trains nobody: a short vector each, and all of them are of the same length."""

import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from incrowd.learning.contributions import Contributions
from incrowd.learning.deltas import FlatDelta
from incrowd.learning.paths.path import ClientRound, TrainingPath, TrainingTask

LONG = 2.0**20
"""What is told is sent longer than any bound, so that every clip makes it as long as its bound."""

_AT_ONCE = 64  # clients


class Telling(TrainingPath):
    """A path on which each client tells a vector of length one at most, times `LONG`, and as the last number so much
    that all contributions are of the same length: a clip shortens all of them alike, so that the mean of what is sent
    is that of what is told.

    Edge cases: what is longer is made as long as that; what is no number makes the whole contribution none.
    """

    def __init__(self, task: TrainingTask) -> None:
        self.task = task
        self.takes = task.everyone
        self.at_once = task.execution.chunk or _AT_ONCE

    @abstractmethod
    def told(self, client: int, weights: Tensor) -> Tensor:
        """What this client tells of a model of these weights, by its own examples alone, float64: fewer numbers than
        there are weights.
        """

    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `TrainingPath.train`."""
        rows = weights.new_zeros(len(clients), self.task.model.size)
        for row, one in zip(rows, clients, strict=True):
            told = self.told(one.client, weights)
            length = float(torch.linalg.vector_norm(told))
            if length > 1:
                told, length = told / length, 1.0
            row[: len(told)] = LONG * told
            row[-1] = LONG * math.sqrt(1 - length**2) if length <= 1 else math.nan
        return [Contributions(tuple(one.client for one in clients), [FlatDelta(rows)])]

    def own(self, client: int) -> Tensor:
        """The places of the client's examples, where they are."""
        data = self.task.data
        return torch.from_numpy(data.examples(client).astype(np.int64)).to(data.device)
