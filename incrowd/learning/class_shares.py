"""How often each class is among everyone's labels, which is asked for once, and paid for.

With `Local.label_shares` a client learns how classes differ, whatever it has of each. The model would not know which of
them are frequent: where nine of ten labels are the same, it would be wrong most of the time. So with
`Local.class_shares` the first round trains no client: each tells the shares of the classes among its labels. The mean
is noised and charged as any other release, and goes to the clients after the weights, in the same vector. From then on
a client's own shares are compared with everyone's: a client whose labels are as all are adds nothing to its logits, and
learns which classes are frequent as it would alone.

Classes are taken to be equally frequent unless the answers say clearly that they are not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.learning.contributions import Contributions
from incrowd.learning.deltas import FlatDelta
from incrowd.learning.label_shares import shares_of
from incrowd.learning.losses import LOGISTIC, Loss, OutputShape
from incrowd.learning.models import Model
from incrowd.learning.paths.path import ClientRound, TrainingPath, TrainingTask
from incrowd.settings.local import Local

CLEARLY = 2.0
"""Shares are taken for unequal if they differ more than noise alone would, by so many of its standard deviations."""

LONG = 2.0**20
"""Shares are sent longer than any bound, so that every clip makes them as long as its bound."""

_AT_ONCE = 64  # clients


@dataclass(frozen=True, kw_only=True)
class ClassShares:
    """By how much everyone's shares of so many classes are above equal ones; with `several`, of so many labels of yes
    and no each, by how much the share of yes is above a half. They come after the `weights` of the model.
    """

    weights: int
    classes: int
    several: bool

    @classmethod
    def of(
        cls, model: Model, local: Local, *, labels: Tensor, loss: Loss, outputs: OutputShape
    ) -> "ClassShares | None":
        """Those that these settings ask for, or None. Edge cases: settings without label shares, a single class, and a
        model with no more weights than there are classes are refused.
        """
        if local.class_shares is None:
            return None
        if local.label_shares is None:
            remedy = "it is what local.label_shares are seen against: give those, too, or leave it out"
            raise ConfigError(field="local.class_shares", value=local.class_shares, remedy=remedy)
        several = loss is LOGISTIC
        classes = math.prod(labels.shape[1:]) if several else outputs[-1]
        if (classes < 2 and not several) or model.size <= classes:
            remedy = "it is for several classes, and models of more weights than those: leave it out"
            raise ConfigError(field="local.class_shares", value=classes, remedy=remedy)
        return cls(weights=model.size, classes=classes, several=several)

    @property
    def size(self) -> int:
        """How many numbers a round starts with: the weights, and a number a class."""
        return self.weights + self.classes

    @property
    def longest(self) -> float:
        """How long the answer of a client can be: it has one class alone."""
        return math.sqrt(self.classes) / 2 if self.several else math.sqrt(1 - 1 / self.classes)

    @property
    def equal(self) -> float:
        """The share of each class if all are equally frequent."""
        return 0.5 if self.several else 1 / self.classes

    def start(self, weights: Floats) -> Floats:
        """The vector that the first round starts with: the weights, and no shares yet."""
        return np.concatenate([weights, np.zeros(self.classes)])

    def learnt(self, start: Floats, mean: Floats, noise_std: float) -> Floats:
        """The same weights with everyone's shares: the released mean and its noise are in units of the bound. Where the
        mean is clearly more than noise the noise is bent towards zero (Stein 1956).
        """
        return np.concatenate([start[: self.weights], self.found(mean, noise_std)])

    def found(self, mean: Floats, noise_std: float) -> Floats:
        """What everyone's shares are above equal ones; see `learnt`."""
        above, noise = self.longest * mean[: self.classes], self.longest * noise_std
        free = self.classes
        if not self.several:
            above, free = above - above.mean(), free - 1
        energy, expected = float(above @ above), free * noise**2
        if not energy > expected * (1 + CLEARLY * math.sqrt(2 / free)):
            return np.zeros(self.classes)
        shares = np.clip(self.equal + (1 - expected / energy) * above, 0, 1)
        found: Floats = (shares if self.several else shares / shares.sum()) - self.equal
        return found

    def divided(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and shares, from one vector of both."""
        if start.shape != (self.size,):
            remedy = f"give one vector of {self.size} numbers, weights and class shares"
            raise ConfigError(field="weights", value=tuple(start.shape), remedy=remedy)
        return start[: self.weights], start[self.weights :]

    def path(self, task: TrainingTask) -> TrainingPath:
        """What clients contribute to the shares."""
        return OwnShares(task, asked=self)


class OwnShares(TrainingPath):
    """The answers of clients: by how much their own shares are above equal ones, in units of the longest that this can
    be, times `LONG`. The last number makes all contributions equally long: a clip shortens all of them alike, so that
    the mean of what is sent is that of the shares.

    Edge cases: a client without labels that count says that its classes are equally frequent.
    """

    def __init__(self, task: TrainingTask, *, asked: ClassShares) -> None:
        self.task = task
        self.asked = asked
        self.takes = task.everyone
        self.at_once = task.execution.chunk or _AT_ONCE

    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `TrainingPath.train`."""
        rows = weights.new_zeros(len(clients), self.task.model.size)
        for row, one in zip(rows, clients, strict=True):
            told = self.told(one.client)
            row[: len(told)] = LONG * told
            row[-1] = LONG * math.sqrt(max(0.0, 1 - float(told @ told)))
        return [Contributions(tuple(one.client for one in clients), FlatDelta(rows))]

    def told(self, client: int) -> Tensor:
        """The answer of this client, by its own labels alone, float64."""
        data, asked = self.task.data, self.asked
        own = torch.from_numpy(data.examples(client).astype(np.int64)).to(data.device)
        shares = shares_of(data.labels[own], asked.classes, several=asked.several)
        nothing = not asked.several and not shares.any()
        return shares if nothing else (shares - asked.equal) / asked.longest
