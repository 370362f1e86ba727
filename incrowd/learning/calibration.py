"""How strongly a model says what it has learnt, which is asked for once, after everybody has been trained.

Noise makes weights long that nothing speaks for. Where all classes are equally frequent that does not matter, because
the largest output stays the largest. Where one of them is frequent it does: too strong a model overrules what is known
of classes for nothing, and ends below who always says the frequent one. So where `Local.calibration` says it, the last
round shows each client the model that would be published, in several strengths, from a sixteenth to its own. It says
of each and the next stronger one which of the two its own examples agree with: those that nobody learnt from, which it
has kept apart, because a model may know the others by heart. No stronger model is shown: where noise alone has made
classes seem uneven, digits in single seeds lost much by one. The mean of what they say is noised and charged as any
other, and that strength is taken for which most is said, if it is said clearly. The constant is as strong as ever, and
so is what it says of how frequent classes are (`incrowd.learning.class_shares`): who has one class alone would have it
said ever louder.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incrowd._random import Floats, SeededRandomness
from incrowd.data.inputs import single
from incrowd.learning.centre import linear_alone
from incrowd.learning.inputs import chosen, meant
from incrowd.learning.models import Model
from incrowd.learning.paths.path import TrainingPath, TrainingTask
from incrowd.learning.store import ClientTensors
from incrowd.learning.telling import Telling

STRENGTHS: tuple[float, ...] = tuple(2.0**power for power in range(-4, 1))
"""How many times as strongly the model may speak; the last of them where it has fewer weights than there are these."""

CLEARLY, LEAST_LEAD = 1.5, 0.1
"""Another strength is taken if what is said for it is more than so many standard deviations of its noise, and than that
lead among clients at each step on the way: most clients may say a little against what a few would lose much by.
"""

KEPT_APART, MOST_APART, LEAST = 0.3, 32, 4
"""The share of its examples that a client judges by, one at least, and how many at most, which are enough to hear what
it says; and from how many examples on it keeps any apart.
"""

NOW = -1.0
"""What stands in the place of the strength in the round that asks for it; before it there is 0."""

_ROWS = 4096  # examples that are looked at at a time


@dataclass(frozen=True, kw_only=True)
class Strength:
    """The strength of a linear model of so many `inputs`, the last of which is a `constant` in every example.

    Guarantee: what the weights of the constant say is the same at every strength.
    """

    field: ClassVar[str] = "local.calibration"

    inputs: int
    constant: float
    strengths: tuple[float, ...] = STRENGTHS

    @classmethod
    def of(cls, model: Model, data: ClientTensors) -> "Strength":
        """That of a model of these data. Edge cases: a model that is not linear or has a bias of its own is refused."""
        inputs = linear_alone(model, data, field=cls.field).in_features
        return cls(inputs=inputs, constant=data.constant, strengths=STRENGTHS[-model.size :])

    def path(self, task: TrainingTask, *, known: Tensor) -> TrainingPath:
        """What clients contribute to it; what is `known` of how frequent classes are adds this to outputs."""
        return StrengthVotes(task, self.strengths, known=known)

    def heard(self, data: ClientTensors, *, now: bool) -> ClientTensors:
        """The data with those of each client's examples that it judges by `now`, or with those that it learns from.

        Guarantee: which examples are kept apart follows from how many the client has.

        Edge cases: who has fewer than four learns from all, and judges by them.
        """
        own = [data.examples(client) for client in range(data.present)]
        taken = [some if len(some) < LEAST else some[_apart(len(some)) == now] for some in own]
        return replace(data, indices=np.concatenate(taken), offsets=np.cumsum([0, *map(len, taken)]))

    def asking(self, start: Floats) -> Floats:
        """What the round starts with that asks about the model of this start, whose last number is the strength."""
        return np.append(start[:-1], NOW)

    def found(self, start: Floats, mean: Floats, noise_std: float) -> Floats:
        """The same with the strength that this round found: the released mean and its noise are in units of the
        bound.
        """
        return np.append(start[:-1], self.learnt(mean, noise_std))

    def learnt(self, mean: Floats, noise_std: float) -> float:
        """The strength for which most is said against the model as it is, beyond what noise may have said.

        Edge cases: where nothing is said clearly, the model as it is; of two that are as good, the one nearer to it.
        """
        steps = len(self.strengths) - 1
        said = np.append(-np.cumsum(mean[:steps][::-1] * math.sqrt(steps))[::-1], 0.0)
        away = np.arange(steps, -1, -1)
        doubt = np.maximum(CLEARLY * noise_std * np.sqrt(steps * away), LEAST_LEAD * away)
        return self.strengths[max(reversed(range(steps + 1)), key=lambda place: said[place] - doubt[place])]

    def published(self, weights: Floats, strength: float) -> Floats:
        """The weights, all but the constant's so many times as strong; as they are where nobody was asked."""
        if not strength > 0:
            return weights
        matrix = weights.reshape(-1, self.inputs).copy()
        matrix[:, :-1] *= strength
        return matrix.ravel()


@cache
def _apart(examples: int) -> NDArray[np.bool_]:
    """Which of so many examples are kept apart."""
    order = SeededRandomness(0).stream("kept apart", examples).bits(examples).argsort(kind="stable")
    found: NDArray[np.bool_] = order < min(MOST_APART, max(1, int(KEPT_APART * examples)))
    return found


class StrengthVotes(Telling):
    """What clients tell of strengths: for each and the next, 1 if their examples are likelier under the stronger of the
    two, -1 if they are less likely, all of them together of length one.

    Each sees its examples as who gets the published model does: with what is known of how frequent classes are, and
    nothing of its own labels.

    Edge cases: of likelihoods that are no numbers it says nothing.
    """

    def __init__(self, task: TrainingTask, strengths: tuple[float, ...], *, known: Tensor) -> None:
        super().__init__(task)
        self.strengths, self.known = strengths, known.double().to(task.data.device)

    def told(self, client: int, weights: Tensor) -> Tensor:
        """In float64, a few thousand examples at a time, in their order."""
        data, examples = self.task.data, self.own(client)
        matrix = weights.double().reshape(-1, math.prod(data.shape))
        total = torch.zeros(len(self.strengths), dtype=torch.float64, device=data.device)
        for some in torch.split(examples, _ROWS):
            rows = single(meant(chosen(data.features, some), scale=data.scale, offset=data.offset))
            rows = rows.reshape(len(some), -1).double()
            learnt, beside = rows[:, :-1] @ matrix[:, :-1].T, rows[:, -1:] @ matrix[:, -1:].T + self.known
            said = [self.task.loss.value(strength * learnt + beside, data.labels[some]) for strength in self.strengths]
            total += len(some) * torch.stack(said)
        return -total.diff().sign() / math.sqrt(max(1, len(self.strengths) - 1))
