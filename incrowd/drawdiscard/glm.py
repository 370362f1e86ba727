"""Generalised linear models, as the maths that a device and a simulation share.

| link          | the response is                     | the prediction is           |
| ------------- | ----------------------------------- | --------------------------- |
| `LINEAR`      | a number                            | the output                  |
| `LOGISTIC`    | 0 or 1 (or a share between them)    | 1 / (1 + exp(-output))      |
| `MULTINOMIAL` | one-hot, a column a class           | the softmax of the outputs  |
| `POISSON`     | a number of at least 0              | exp(output)                 |

All four links are canonical, so the gradient of the mean loss with respect to a weight is the mean over the examples
of (prediction - response) * feature.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from incrowd import _validate
from incrowd.errors import ConfigError, DataError

AnyFloats = NDArray[np.floating[Any]]
Features = Any  # an array or a sparse one, which has no types

LARGEST_LOG_RATE = 50.0
"""The prediction of a Poisson model is at most e to this: finite, and far above every response."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A canonical link: how outputs become predictions, and the loss of each example whose gradient is theirs."""

    name: str
    mean: Callable[[AnyFloats], AnyFloats] = field(repr=False)
    losses: Callable[[AnyFloats, AnyFloats], AnyFloats] = field(repr=False)


def _softmax(outputs: AnyFloats) -> AnyFloats:
    exponentials: AnyFloats = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
    exponentials /= exponentials.sum(axis=-1, keepdims=True)
    return exponentials


def _log_sum_exp(outputs: AnyFloats) -> AnyFloats:
    top = outputs.max(axis=-1)
    total: AnyFloats = top + np.log(np.exp(outputs - top[..., None]).sum(axis=-1))
    return total


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
    losses=lambda outputs, responses: _log_sum_exp(outputs) - (responses * outputs).sum(axis=-1),
)
POISSON = Link(
    name="poisson",
    mean=_rate,
    losses=lambda outputs, responses: (_rate(outputs) - responses * outputs).sum(axis=-1),
)
LINKS = {link.name: link for link in (LINEAR, LOGISTIC, MULTINOMIAL, POISSON)}


@dataclass(frozen=True, kw_only=True)
class Glm:
    """A generalised linear model (Nelder and Wedderburn 1972).

    The flat weights are a matrix, row by row: first the row of the intercept, if there is one, then a row a feature;
    a column an output.

    Gradients have the precision (float32 or float64) of weights and features. Weights are [size], features [examples,
    features], dense or sparse (SciPy), responses [examples, outputs]. Shapes that do not fit raise `DataError`.
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
            raise ConfigError(field="features", value=0, remedy="without an intercept there must be a feature")

    @property
    def size(self) -> int:
        """How many weights there are."""
        return (self.features + self.intercept) * self.outputs

    def linear(self, weights: AnyFloats, features: Features) -> AnyFloats:
        """The outputs before the link, [examples, outputs]."""
        if weights.shape != (self.size,) or features.shape[1:] != (self.features,):
            raise DataError(
                f"weights of shape {weights.shape} and features of shape {features.shape} do not fit a model of "
                f"{self.size} weights and {self.features} features"
            )
        matrix = weights.reshape(-1, self.outputs)
        outputs: AnyFloats = features @ matrix[int(self.intercept) :]
        return outputs + matrix[0] if self.intercept else outputs

    def predict(self, weights: AnyFloats, features: Features) -> AnyFloats:
        """The predictions for examples, [examples, outputs]."""
        return self.link.mean(self.linear(weights, features))

    def loss(self, weights: AnyFloats, features: Features, responses: AnyFloats) -> float:
        """The mean loss of examples."""
        return float(self.link.losses(self.linear(weights, features), self._fitting(responses, features)).mean())

    def gradient(self, weights: AnyFloats, features: Features, responses: AnyFloats) -> AnyFloats:
        """The gradient of the mean loss with respect to the flat weights; zero where there are no examples."""
        residuals = self.predict(weights, features) - self._fitting(responses, features)
        residuals /= max(1, len(residuals))
        matrix: AnyFloats = features.T @ residuals
        if self.intercept:
            matrix = np.concatenate([residuals.sum(axis=0, keepdims=True), matrix])
        return matrix.reshape(self.size)

    def _fitting(self, responses: AnyFloats, features: Features) -> AnyFloats:
        if responses.shape != (features.shape[0], self.outputs):
            raise DataError(
                f"responses of shape {responses.shape} do not fit {features.shape[0]} examples and "
                f"{self.outputs} outputs: give [examples, outputs]"
            )
        return responses
