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

_MOST = 512  # examples that a client looks at: the work grows with the square
_FOLDS = 5  # of each class, of which one is told by fits to the others; with more, near copies are more often apart
_ALIKE = 1e-12  # of the mean square of a row: rows whose distances from their mean are shorter are the same
_RIDGE = 0.3  # beside the mean square of a row less the mean; with thrice as much, relations are heard less


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
    """What clients tell for a choice: 1 where pixels tell more pairs of their examples apart, -1 where fewer, 0 where
    as many are: who has two classes that both kinds tell apart says nothing of the others.

    Examples are told apart in pairs of two classes, by linear models that were fitted to four fifths of the others:
    ridge regression, in which every class weighs as much, on rows less their mean. A linear model is what is learnt
    afterwards, too. Means of classes are not enough to judge by: where a class is a relation between two colours, they
    are nearly the same. Nor are classes that are said rightly: of a client most of whose examples are of one class, a
    model that has learnt nothing but noise says that class of nearly all, and is right more often than one that has
    learnt something. To leave out one example alone is not fair either: its class is rarer then than the others.

    Edge cases: a client without two classes of several examples each says 0. Of more than a few hundred examples some
    are looked at, of every class as many as it has a share. Where anything is no number, nothing is told apart.
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
        examples = _some(examples, data.labels[examples])
        _, places, counts = torch.unique(data.labels[examples], return_inverse=True, return_counts=True)
        if int((counts > 1).sum()) < 2:
            return 0
        kept = counts[places] > 1
        _, places = torch.unique(places[kept], return_inverse=True)
        rows = single(meant(chosen(data.features, examples[kept]), scale=data.scale, offset=data.offset)).flatten(1)
        known, pixels = rows[:, : self.kinds.known], rows[:, self.kinds.known : -1]
        told = [_told_apart(columns.double(), places) for columns in (known, pixels)]
        return (told[1] > told[0]) - (told[1] < told[0])


def _some(examples: Tensor, labels: Tensor) -> Tensor:
    """In the order of their classes; of at most `_MOST`, of every class as many as it has a share, mixed by a fixed
    seed: in any order of its own a source of examples, or a class, could be passed over.
    """
    if len(examples) > _MOST:
        mixed = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0)).to(examples.device)
        by_class = mixed[torch.argsort(labels[mixed], stable=True)]
        places = by_class[torch.arange(_MOST, device=examples.device) * len(examples) // _MOST].sort().values
        examples, labels = examples[places], labels[places]
    return examples[torch.argsort(labels, stable=True)]


def _told_apart(rows: Tensor, classes: Tensor) -> int:
    """How many pairs of these rows, in the order of their classes, are in order by fits to rows of other folds: of
    each pair of two classes, a fit says the first of the one rather than it says so of the other.
    """
    products, counts = rows @ rows.T, torch.bincount(classes)
    rank = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[classes]
    folds = rank * _FOLDS // counts[classes]  # a burst of nearly the same example stays together
    said = torch.zeros(len(rows), len(counts), dtype=rows.dtype, device=rows.device)
    for fold in range(_FOLDS):
        said[folds == fold] = _said_of(products, classes, folds == fold)
    rather = said.gather(1, classes[:, None]) - said[:, classes]  # of its own class than of another's
    return int(((rather + rather.T > 0) & (classes[:, None] != classes)).sum())


def _said_of(products: Tensor, classes: Tensor, out: Tensor) -> Tensor:
    """How much rows that are left `out`, of which only products with others are known, are said to be of each class.

    Edge cases: where the others are all the same, but for rounding, or anything is no number, nothing is said.
    """
    kept, counts = ~out, torch.bincount(classes[~out]).double()
    each = 1 / (len(counts) * counts[classes[kept]])  # the weights of those that are kept: all classes have the same
    mean = products[:, kept] @ each
    centred = products - mean[:, None] - mean + each @ mean[kept]
    spread = each @ centred.diagonal()[kept]
    ridge = torch.diag(_RIDGE * spread / (len(each) * each))
    wanted = torch.nn.functional.one_hot(classes[kept], len(counts)).double() - 1 / len(counts)
    fit, failed = torch.linalg.solve_ex(centred[kept][:, kept] + ridge, wanted)  # which never raises
    said: Tensor = centred[out][:, kept] @ fit
    alike = not spread > _ALIKE * (each @ products.diagonal()[kept])
    return torch.zeros_like(said) if alike or failed or not torch.isfinite(said).all() else said
