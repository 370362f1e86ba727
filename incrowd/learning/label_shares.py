"""Logit adjustment: training compares outputs with a client's own label distribution, publication adds everyone's.

Clients with different labels unlearn each other's classes: a client that holds two classes of ten teaches the model
that no others exist. Under such a label shift the right likelihood of a client's labels adds the logarithm of each
class's share among them to the model's logits (logit adjustment: Menon et al. 2021, of clients Zhang et al. 2022). The
model learns how classes differ, and not which are frequent. `ClassPrior` adds that once, when weights are published:
the logarithm of everyone's label distribution, which the first round asks for (`MeanQuery`).
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from incrowd._random import Floats
from incrowd.data.examples import IGNORED
from incrowd.errors import ConfigError
from incrowd.learning.inputs import calling, meant, zeros
from incrowd.learning.losses import CROSS_ENTROPY, LOGISTIC, Loss, OutputShape
from incrowd.learning.mean_query import Answer, ClientExamples, MeanQuery
from incrowd.learning.models import Model
from incrowd.learning.store import ClientTensors
from incrowd.settings import Local


def check_label_shares(smoothing: float | None, loss: Loss) -> None:
    """Refuse them for a loss that knows no classes."""
    if smoothing is not None and loss not in (CROSS_ENTROPY, LOGISTIC):
        remedy = f"it is for {CROSS_ENTROPY.name!r} and {LOGISTIC.name!r}, this is {loss.name!r}: leave it out"
        raise ConfigError(field="local.label_shares", value=smoothing, remedy=remedy)


def shares_of(labels: Tensor, classes: int, *, several: bool) -> Tensor:
    """The share of each class among labels, float64; for `several` binary labels the share of ones in each.

    Edge cases: ignored places of a sequence are left out; without labels all shares are 0.
    """
    if several:
        given = labels.to(torch.float64).reshape(len(labels), classes)
        return given.mean(0) if len(labels) else given.new_zeros(classes)
    counted = labels[labels != IGNORED]
    return torch.bincount(counted, minlength=classes).to(torch.float64) / max(1, len(counted))


def logit_offset(labels: Tensor, smoothing: float, *, loss: Loss, outputs: OutputShape) -> Tensor:
    """The logit adjustment of a client: log(share of the class among its labels + smoothing), in the last dimension.

    Binary labels get the difference between the two logarithms. Edge cases: see `shares_of`.
    """
    several = loss is LOGISTIC
    classes = math.prod(labels.shape[1:]) if several else outputs[-1]
    return _offset(shares_of(labels, classes, several=several), smoothing, several=several).float()


def label_query(local: Local, labels: Tensor, loss: Loss, outputs: OutputShape) -> MeanQuery | None:
    """The query that settings ask before they train: a client's label distribution less the uniform one.

    Edge cases: settings without label shares, and a single class, are a `ConfigError`.
    """
    if local.label_distribution is None:
        return None
    several = loss is LOGISTIC
    classes = math.prod(labels.shape[1:]) if several else outputs[-1]
    if local.label_shares is None or (classes < 2 and not several):
        remedy = "it needs local.label_shares, and two classes or more: give those, or leave it out"
        raise ConfigError(field="local.label_distribution", value=local.label_distribution, remedy=remedy)
    longest = math.sqrt(classes) / 2 if several else math.sqrt(1 - 1 / classes)  # a client with one class alone
    vector = partial(_above_uniform, classes=classes, several=several)
    return MeanQuery(name="label distribution", size=classes, vector=vector, bound=longest)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassPrior:
    """Everyone's label distribution as biases of a model: `places` of the flat weights, whose outputs move by `unit`
    for one.
    """

    size: int
    places: slice
    unit: float
    smoothing: float
    several: bool

    @classmethod
    def of(cls, model: Model, data: ClientTensors, local: Local, query: MeanQuery) -> "ClassPrior":
        """Place the prior in a model's last biases, or in a linear model's weights for a `constant` last feature.

        Edge cases: a model whose outputs have no such biases is a `ConfigError`: its outputs cannot be adjusted.
        """
        classes, shape, constant = query.size, model.layout.shapes[-1], data.constant
        places, unit = slice(model.size - classes, model.size), 1.0
        if constant and len(model.layout.shapes) == 1 and shape == (classes, model.size // classes):
            places, unit = slice(shape[1] - 1, None, shape[1]), constant
        several = len(data.labels.shape) > 1 or data.labels.is_floating_point()
        found = cls(size=model.size, places=places, unit=unit, smoothing=local.label_shares or 1.0, several=several)
        if not _moves_outputs(model, data, found, classes):
            remedy = "the last layer has no bias, by which it would be published: give it one, or leave it out"
            raise ConfigError(field="local.label_distribution", value=local.label_distribution, remedy=remedy)
        return found

    def shift(self, answer: Answer) -> Floats:
        """The flat weights to add before they are published. A mean that is mostly noise is shrunk towards the uniform
        distribution (James and Stein 1961).
        """
        above, free = answer.mean, len(answer.mean)
        if not self.several:
            above, free = above - above.mean(), free - 1
        uniform = 0.5 if self.several else 1 / len(above)
        kept = 1 - free * answer.noise_std**2 / max(float(above @ above), 1e-300)
        shares = np.clip(uniform + max(0.0, kept) * above, 0, 1)
        weights = np.zeros(self.size)
        adjusted = _offset(torch.from_numpy(shares), self.smoothing, several=self.several).numpy()
        weights[self.places] = (adjusted - (0 if self.several else adjusted.mean())) / self.unit
        return weights


def _moves_outputs(model: Model, data: ClientTensors, prior: ClassPrior, classes: int) -> bool:
    """Return whether a step of the biases moves all outputs for a synthetic example by as much."""
    made_up = meant(zeros(data.features, 1), scale=1, offset=0)
    if data.constant and isinstance(made_up, Tensor):
        made_up = made_up.cpu().clone().flatten(1)
        made_up[:, -1] = data.constant
    step = torch.zeros(model.size)
    if len(step[prior.places]) != classes:
        return False
    step[prior.places] = 1 / prior.unit
    with torch.no_grad():
        before, after = (
            calling(module, made_up)(made_up)
            for module in (model.with_weights(model.weights), model.with_weights(model.weights + step))
        )
    return bool(torch.allclose(after, before + 1, atol=1e-4))


def _above_uniform(own: ClientExamples, *, classes: int, several: bool) -> Tensor:
    """Edge cases: a client without labels that count has the uniform distribution."""
    shares = shares_of(own.labels, classes, several=several)
    nothing = not several and not shares.any()
    return shares.new_zeros(classes) if nothing else shares - (0.5 if several else 1 / classes)


def _offset(shares: Tensor, smoothing: float, *, several: bool) -> Tensor:
    if several:
        return ((shares + smoothing) / (1 - shares + smoothing)).log()
    return (shares + smoothing).log()
