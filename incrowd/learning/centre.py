"""The centre of everyone's examples, around which a linear model learns.

Examples of length one have much in common: a part of each is what the mean of all is. What a client learns along that
part says little of how classes differ, and it takes room in a contribution whose length is bounded. So where
`Local.centre` says it, the first round asks each client for the mean of its examples, and from then on everyone takes
the noised mean off: the gradients of a softmax regression are those of examples around zero. The model that is
published takes examples as they are, because the constant that each has takes up what was taken off.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from incrowd._random import Floats
from incrowd.data.inputs import single
from incrowd.errors import ConfigError
from incrowd.learning.inputs import chosen, meant
from incrowd.learning.models import Model, layers_of_flat
from incrowd.learning.paths.path import TrainingPath, TrainingTask
from incrowd.learning.store import ClientTensors
from incrowd.learning.telling import Telling

_ROWS = 4096  # examples that are added up at a time


@dataclass(frozen=True, kw_only=True)
class Centre:
    """How weights and centre go together for a linear model, [outputs, features + 1], whose last feature is `constant`
    in every example and is not centred. Means are told in units of `length`.

    Guarantee: at any centre a model around it and `published` of it give the same outputs.
    """

    field: ClassVar[str] = "local.centre"

    features: int
    outputs: int
    constant: float
    length: float = 1.0

    @classmethod
    def of(cls, model: Model, data: ClientTensors, *, length: float = 1.0) -> "Centre":
        """That of a model of these data, of which no mean counts for longer than `length`.

        Edge cases: a model that is not linear, or has a bias of its own, and examples of one number are refused.
        """
        linear = linear_alone(model, data, field=cls.field)
        outputs, inputs = linear.out_features, linear.in_features
        return cls(features=inputs - 1, outputs=outputs, constant=data.constant, length=length)

    @property
    def size(self) -> int:
        """How many numbers a centre has."""
        return self.features

    def path(self, task: TrainingTask) -> TrainingPath:
        """What clients contribute to it."""
        return Means(task, length=self.length)

    def learnt(self, mean: Floats, noise_std: float) -> Floats:
        """The centre: the released mean of everyone's, of this noise, both in units of the bound.

        The noise is bent towards zero where there is nothing else: see `shrunk`.
        """
        return self.length * shrunk(mean[: self.features], noise_std)

    def published(self, weights: Floats, centre: Floats) -> Floats:
        """The weights of the model that takes examples as they are."""
        found = weights.reshape(self.outputs, -1).copy()
        found[:, -1] -= found[:, :-1] @ centre / self.constant
        return found.ravel()

    def prepared(self, data: ClientTensors, centre: Tensor) -> ClientTensors:
        """Examples with the centre taken off: of each a function of itself alone."""
        return data.of_rows(data.rows() - torch.cat([centre, centre.new_zeros(1)]))


def linear_alone(model: Model, data: ClientTensors, *, field: str) -> nn.Linear:
    """The only layer of a linear model without a bias, of examples that have a constant. Edge cases: another model, and
    examples of one number: refused under this field.
    """
    layers = layers_of_flat(model.module, data.shape) if data.plain else None
    only = layers[0] if layers and len(layers) == 1 else None
    if not isinstance(only, nn.Linear) or len(list(only.parameters())) > 1 or only.in_features < 2:
        remedy = "it is for a linear model without a bias of its own, of examples with a constant: leave it out"
        raise ConfigError(field=field, value=type(model.module).__name__, remedy=remedy)
    return only


def shrunk(noised: Floats, noise_std: float) -> Floats:
    """An estimate of a vector from a noised one, which is nearer to it on average than that is (Stein 1956).

    Numbers come in bands of twice as many each time, so that those of features that are ordered by how loud they are
    lie beside their like; of each band the share is left that is no noise.
    """
    found = noised.copy()
    ends = [0, *(2**power for power in range(len(noised).bit_length())), len(noised)]
    for begin, end in pairwise(sorted(set(ends))):
        energy = float(noised[begin:end] @ noised[begin:end])
        left = 1 - noise_std**2 * (end - begin) / energy if energy > 0 else 0.0
        found[begin:end] *= max(0.0, left)
    return found


class Means(Telling):
    """What clients tell of a centre: the mean of their examples in units of `length`.

    Edge cases: a mean that is longer than `length` is made as long as that.
    """

    def __init__(self, task: TrainingTask, *, length: float = 1.0) -> None:
        super().__init__(task)
        self.length = length

    def told(self, client: int, weights: Tensor) -> Tensor:
        """In float64, a few thousand examples at a time, in their order."""
        del weights
        data, examples = self.task.data, self.own(client)
        total = torch.zeros(math.prod(data.shape) - 1, dtype=torch.float64, device=data.device)
        for some in torch.split(examples, _ROWS):
            rows = single(meant(chosen(data.features, some), scale=data.scale, offset=data.offset))
            total += rows.view(len(some), -1)[:, :-1].sum(0, dtype=torch.float64)
        return total / len(examples) / self.length
