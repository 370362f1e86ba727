"""Generalised linear models: the maths that a device and a simulation share.

All links are canonical: the gradient of the mean loss is the mean of (prediction - response) * feature.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from incrowd import _validate
from incrowd.errors import ConfigError, DataError

AnyFloats = NDArray[np.floating[Any]]
Features = Any  # a dense array, or a sparse one, which has no types

LARGEST_LOG_RATE = 50.0  # a Poisson model predicts at most e to this: finite, and far above every response


@dataclass(frozen=True, kw_only=True)
class Link:
    """A canonical link: it turns outputs into predictions, in their memory, and has a loss for each example."""

    name: str
    mean: Callable[[AnyFloats], AnyFloats] = field(repr=False)
    losses: Callable[[AnyFloats, AnyFloats], AnyFloats] = field(repr=False)


def _softmax(outputs: AnyFloats) -> AnyFloats:
    outputs -= np.maximum.reduce(outputs, axis=-1, keepdims=True)  # the ufunc's methods: simulations wait for them
    np.exp(outputs, out=outputs)
    outputs /= np.add.reduce(outputs, axis=-1, keepdims=True)
    return outputs


def _rate(outputs: AnyFloats) -> AnyFloats:
    rate: AnyFloats = np.exp(np.minimum(outputs, LARGEST_LOG_RATE))
    return rate


LINEAR = Link(
    name="linear",
    mean=lambda outputs: outputs,
    losses=lambda outputs, responses: 0.5 * np.square(outputs - responses).sum(axis=-1),
)
LOGISTIC = Link(
    name="logistic",
    mean=expit,
    losses=lambda outputs, responses: (np.logaddexp(0, outputs) - responses * outputs).sum(axis=-1),
)
MULTINOMIAL = Link(
    name="multinomial",
    mean=_softmax,
    losses=lambda outputs, responses: logsumexp(outputs, axis=-1) - (responses * outputs).sum(axis=-1),
)
POISSON = Link(
    name="poisson", mean=_rate, losses=lambda outputs, responses: (_rate(outputs) - responses * outputs).sum(axis=-1)
)
LINKS = {link.name: link for link in (LINEAR, LOGISTIC, MULTINOMIAL, POISSON)}


@dataclass(frozen=True, kw_only=True)
class Glm:
    """A generalised linear model (Nelder and Wedderburn 1972).

    The flat weights are a matrix, row by row: the row of the intercept, if the model has one, then a row for each
    feature; a column for each output. Features are [examples, features], dense or sparse (SciPy), responses [examples,
    outputs]. Gradients have the precision of weights and features. Other shapes raise `DataError`.
    """

    features: int
    link: Link
    outputs: int = 1
    intercept: bool = True

    def __post_init__(self) -> None:
        _validate.natural(features=self.features)
        _validate.count(outputs=self.outputs)
        if self.link is MULTINOMIAL and self.outputs < 2:
            raise ConfigError(field="outputs", value=self.outputs, remedy="a multinomial model has an output a class")
        if self.size == 0:
            raise ConfigError(field="features", value=0, remedy="a model without an intercept needs a feature")

    @property
    def size(self) -> int:
        """The number of weights."""
        return (self.features + self.intercept) * self.outputs

    def predict(self, weights: AnyFloats, features: Features) -> AnyFloats:
        """The predictions for examples, [examples, outputs]."""
        return self.link.mean(self._linear(weights, features))

    def loss(self, weights: AnyFloats, features: Features, responses: AnyFloats) -> float:
        """The mean loss of examples."""
        return float(self.link.losses(self._linear(weights, features), responses).mean())

    def gradient(self, weights: AnyFloats, features: Features, responses: AnyFloats) -> AnyFloats:
        """The gradient of the mean loss with respect to the flat weights; zero without examples."""
        residuals = self.predict(weights, features)
        if responses.shape != residuals.shape:
            raise DataError(f"responses of shape {responses.shape} do not fit predictions of shape {residuals.shape}")
        residuals -= responses
        residuals /= max(1, len(residuals))
        matrix: AnyFloats = features.T @ residuals
        if self.intercept:
            matrix = np.concatenate([residuals.sum(axis=0, keepdims=True), matrix])
        return matrix.reshape(self.size)

    def _linear(self, weights: AnyFloats, features: Features) -> AnyFloats:
        """The outputs before the link, in new memory."""
        if weights.shape != (self.size,) or features.shape[1:] != (self.features,):
            raise DataError(
                f"weights of shape {weights.shape} and features of shape {features.shape} do not fit a model of "
                f"{self.size} weights and {self.features} features"
            )
        matrix = weights.reshape(-1, self.outputs)
        outputs: AnyFloats = features @ matrix[int(self.intercept) :]
        return outputs + matrix[0] if self.intercept else outputs
