"""How often each class is among everyone's labels, which is asked for once, and paid for.

What a client learns with `Local.label_shares` is how classes differ, whatever it has of each. Nobody would tell the
model which of them are frequent: where nine of ten labels are the same, it would be wrong most of the time. So where
`Local.class_shares` says it, a round asks each client for the shares of the classes among its labels. The mean of what
they say is noised and charged as any other, and from then on a client's own shares are seen against everyone's: a
client whose labels are as all are adds nothing to its logits, and learns which classes are frequent as it would alone.

Classes are taken to be equally frequent unless the answers say clearly that they are not.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.learning.label_shares import everyones_offset, shares_of
from incrowd.learning.losses import LOGISTIC, Loss, OutputShape
from incrowd.learning.models import Model
from incrowd.learning.paths.path import TrainingPath, TrainingTask
from incrowd.learning.store import ClientTensors
from incrowd.learning.telling import Telling
from incrowd.settings.local import Local

CLEARLY = 2.0
"""Shares are taken for unequal if they differ more than noise alone would, by so many of its standard deviations."""


@dataclass(frozen=True, kw_only=True)
class ClassShares:
    """By how much everyone's shares of so many classes are above equal ones; with `several`, of so many labels of yes
    and no each, by how much the share of yes is above a half.

    Where weights are learnt apart from how frequent classes are, and only the model that is published knows it, they go
    with a `constant` of all examples and the clients' `smoothing` of their shares.

    Guarantee: at one set of weights a client sees its examples alike, whether it is apart or not.
    """

    field: ClassVar[str] = "local.class_shares"

    classes: int
    several: bool
    constant: float | None = None
    smoothing: float = 0.0

    @classmethod
    def of(cls, model: Model, data: ClientTensors, local: Local, *, loss: Loss, outputs: OutputShape) -> "ClassShares":
        """That of a model of these data. Edge cases: settings without label shares, a single class, and a model with no
        more weights than there are classes are refused.
        """
        if local.label_shares is None:
            remedy = "it is what local.label_shares are seen against: give those, too, or leave it out"
            raise ConfigError(field=cls.field, value=local.class_shares, remedy=remedy)
        several = loss is LOGISTIC
        classes = math.prod(data.labels.shape[1:]) if several else outputs[-1]
        if (classes < 2 and not several) or model.size <= classes:
            remedy = "it is for several classes, and models of more weights than those: leave it out"
            raise ConfigError(field=cls.field, value=classes, remedy=remedy)
        if local.calibration is None:
            return cls(classes=classes, several=several)
        return cls(classes=classes, several=several, constant=data.constant, smoothing=local.label_shares)

    @property
    def size(self) -> int:
        """A number a class."""
        return self.classes

    @property
    def longest(self) -> float:
        """How long what a client says can be: it has one class alone."""
        return math.sqrt(self.classes) / 2 if self.several else math.sqrt(1 - 1 / self.classes)

    @property
    def equal(self) -> float:
        """The share of each class if all are equally frequent."""
        return 0.5 if self.several else 1 / self.classes

    def path(self, task: TrainingTask) -> TrainingPath:
        """What clients contribute to it."""
        return OwnShares(task, asked=self)

    def learnt(self, mean: Floats, noise_std: float) -> Floats:
        """What everyone's shares are above equal ones: the released mean of everyone's answers, of this noise, both in
        units of the bound. Where it is clearly more than noise the noise is bent towards zero (Stein 1956).
        """
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

    def everyones(self, found: Tensor) -> Tensor:
        """What is known, as what it adds to the outputs of a model that learns apart from it."""
        return everyones_offset(found, self.smoothing, several=self.several)

    def published(self, weights: Floats, found: Floats) -> Floats:
        """The weights as they are, if they have learnt which classes are frequent; else the constant says it."""
        if self.constant is None:
            return weights
        known: Floats = self.everyones(torch.from_numpy(found)).numpy()
        matrix = weights.reshape(self.classes, -1).copy()
        matrix[:, -1] += known / self.constant
        return matrix.ravel()

    def prepared(self, data: ClientTensors, found: Tensor) -> ClientTensors:
        """The same examples, of which is known how frequent classes are, unless that is learnt apart."""
        return replace(data, above_equal=found) if self.constant is None else data


class OwnShares(Telling):
    """What clients tell of the shares of everyone: by how much their own are above equal ones, in units of the longest
    that this can be.

    Edge cases: a client without labels that count says that its classes are equally frequent.
    """

    def __init__(self, task: TrainingTask, *, asked: ClassShares) -> None:
        super().__init__(task)
        self.asked = asked

    def told(self, client: int, weights: Tensor) -> Tensor:
        """See `Telling.told`."""
        del weights
        asked = self.asked
        shares = shares_of(self.task.data.labels[self.own(client)], asked.classes, several=asked.several)
        nothing = not asked.several and not shares.any()
        return shares if nothing else (shares - asked.equal) / asked.longest
