"""A choice that clients make together, and that is paid for: whether what is known beforehand helps on their examples.

Features of pictures know how pictures look in general. Where that misleads, the pixels alone tell more. Nobody knows
which is the case but the clients. So where `Local.choice` says it, the first round asks each of them one question:
which of the two tells the classes of its own examples apart better? The sum of their votes is noised and charged as
any other. Where it speaks clearly for neither, examples are seen as both: clients who have one class each cannot say,
and who has two cannot say of the others.

Both kinds of features lie in an example side by side, each at length one. To choose is to weigh one kind with 0, both
less, so that an example's length is one; the published model has those weights in its own.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from incrowd._random import Floats
from incrowd.data.inputs import single
from incrowd.errors import ConfigError
from incrowd.learning.centre import linear_alone
from incrowd.learning.inputs import chosen, meant
from incrowd.learning.losses import CROSS_ENTROPY, LOGISTIC, Loss
from incrowd.learning.models import Model
from incrowd.learning.paths.path import TrainingPath, TrainingTask
from incrowd.learning.store import ClientTensors, Kinds
from incrowd.learning.telling import Telling

CLEARLY, LEAST_LEAD, LEAST_OF_PICTURES = 2.0, 0.1, 0.2
"""Pixels are chosen if the mean vote for them is more than so many standard deviations of its noise, and than that
lead: with little noise a few who vote, or who want to, would else decide for all. Pictures have to lead by more: that a
few can tell nothing apart by them is seen by nobody else.
"""

SHARE_OF_PIXELS = 0.2
"""Of the square of an example's length, where it is seen as both: a fifth of it tells what pictures do not show, and
costs little where they show all.
"""

NOT_ASKED, PICTURES, PIXELS, BOTH = 0.0, -1.0, 1.0, 0.5
"""What may be chosen. Examples stay what they are, pictures, where a round was lost and nobody was heard."""

_ROWS = 4096  # examples that are looked at at a time


@dataclass(frozen=True, kw_only=True)
class KindChoice:
    """Which of two `kinds` of features a linear model, [outputs, features + 1], learns from. The last feature is a
    constant, and stays.

    Guarantee: whatever is chosen, a model of the weighed examples and `published` of it give the same outputs.
    """

    field: ClassVar[str] = "local.choice"

    features: int
    outputs: int
    kinds: Kinds

    @classmethod
    def of(cls, model: Model, data: ClientTensors, *, loss: Loss) -> "KindChoice":
        """That of a model of these data. Edge cases: a model that is not linear, or has a bias of its own, labels that
        are no classes, and features of one kind are refused.
        """
        linear = linear_alone(model, data, field=cls.field)
        if loss not in (CROSS_ENTROPY, LOGISTIC) or data.labels.ndim > 1:
            remedy = "it is for examples of a class each, which clients see told apart: leave it out"
            raise ConfigError(field=cls.field, value=loss.name, remedy=remedy)
        if data.kinds is None:
            remedy = (
                'it is between pictures and their pixels: give features name = "pictures", apart = true, a constant'
            )
            raise ConfigError(field=cls.field, value="features", remedy=f"{remedy}, or leave it out")
        return cls(features=linear.in_features - 1, outputs=linear.out_features, kinds=data.kinds)

    @property
    def size(self) -> int:
        """A choice is one number: `PICTURES`, `PIXELS`, `BOTH` or `NOT_ASKED`."""
        return 1

    def path(self, task: TrainingTask) -> TrainingPath:
        """What clients contribute to it."""
        return Votes(task, kinds=self.kinds)

    def learnt(self, mean: Floats, noise_std: float) -> Floats:
        """What was chosen, by the released mean of everyone's vote, of this noise, both in units of the bound."""
        vote, noise = mean[0], CLEARLY * noise_std
        if vote > max(noise, LEAST_LEAD):
            return np.array([PIXELS])
        return np.array([PICTURES if -vote > max(noise, LEAST_OF_PICTURES) else BOTH])

    def published(self, weights: Floats, choice: Floats) -> Floats:
        """The weights of the model that takes examples as they are."""
        factors: Floats = self._factors(float(choice[0])).double().numpy()
        return (weights.reshape(self.outputs, -1) * factors).ravel()

    def prepared(self, data: ClientTensors, choice: Tensor) -> ClientTensors:
        """Examples as they are learnt from: of each a function of itself alone."""
        return data.of_rows(data.rows() * self._factors(float(choice[0])).to(data.device))

    def _factors(self, choice: float) -> Tensor:
        """By what each feature is multiplied."""
        factors, known, pixels = torch.ones(self.features + 1), slice(0, self.kinds.known), slice(self.kinds.known, -1)
        if choice == BOTH:
            factors[known], factors[pixels] = math.sqrt(1 - SHARE_OF_PIXELS), math.sqrt(SHARE_OF_PIXELS)
        else:
            factors[known if choice == PIXELS else pixels] = 0
        return factors


class Votes(Telling):
    """What clients tell for a choice: 1 where pixels tell more of their examples apart, -1 where fewer, 0 where as many
    are: who has two classes that both kinds tell apart says nothing of the others.

    An example is told apart if it is nearest to the mean of the others of its class, of all classes that the client has
    several examples of.

    Edge cases: a client without two classes like that says 0. What is no number tells nothing apart.
    """

    def __init__(self, task: TrainingTask, *, kinds: Kinds) -> None:
        super().__init__(task)
        self.kinds = kinds

    def told(self, client: int, weights: Tensor) -> Tensor:
        """See `Telling.told`."""
        del weights
        return torch.tensor([self._vote(client)], dtype=torch.float64)

    def _vote(self, client: int) -> int:
        data, examples = self.task.data, self.own(client)
        labels = data.labels[examples]
        classes, places = torch.unique(labels, return_inverse=True)
        counts = torch.bincount(places, minlength=len(classes))
        if int((counts > 1).sum()) < 2:
            return 0
        kept = counts[places] > 1
        _, places = torch.unique(labels[kept], return_inverse=True)
        known, pixels = slice(0, self.kinds.known), slice(self.kinds.known, -1)
        told = [self._told_apart(examples[kept], places, columns) for columns in (known, pixels)]
        return (told[1] > told[0]) - (told[1] < told[0])

    def _told_apart(self, examples: Tensor, places: Tensor, columns: slice) -> int:
        """How many examples are nearest to the mean of the others of their class, in these columns."""
        counts = torch.bincount(places).double()
        sums: Tensor | None = None
        for rows, own in self._parts(examples, places, columns):
            some = rows.new_zeros(len(counts), rows.shape[1]).index_add_(0, own, rows)
            sums = some if sums is None else sums + some
        assert sums is not None  # noqa: S101 - two classes have examples
        means, found = sums / counts[:, None], 0
        for rows, own in self._parts(examples, places, columns):
            others = (sums[own] - rows) / (counts[own] - 1)[:, None]
            to_own = (rows * others).sum(1) - others.square().sum(1) / 2
            to_all = (rows @ means.T - means.square().sum(1) / 2).scatter(1, own[:, None], -math.inf)
            found += int((to_own > to_all.amax(1)).sum())
        return found

    def _parts(self, examples: Tensor, places: Tensor, columns: slice) -> Iterator[tuple[Tensor, Tensor]]:
        """In float64, a few thousand examples at a time, in their order."""
        data = self.task.data
        for some, own in zip(torch.split(examples, _ROWS), torch.split(places, _ROWS), strict=True):
            rows = single(meant(chosen(data.features, some), scale=data.scale, offset=data.offset))
            yield rows.view(len(some), -1)[:, columns].double(), own
