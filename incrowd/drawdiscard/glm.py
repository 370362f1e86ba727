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
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from incrowd import _validate
from incrowd.errors import ConfigError, DataError

AnyFloats = NDArray[np.floating[Any]]

LARGEST_LOG_RATE = 50.0
"""The prediction of a Poisson model is at most e to this: finite, and far above every response."""


class FlatModel(Protocol):
    """A model whose weights are one flat vector: all that draw and discard needs to know of it."""

    @property
    def size(self) -> int:
        """How many weights there are."""
        ...

    def predict(self, weights: AnyFloats, features: AnyFloats) -> AnyFloats:
        """The predictions for examples, [examples, outputs]."""
        ...

    def loss(self, weights: AnyFloats, features: AnyFloats, responses: AnyFloats) -> float:
        """The mean loss of examples."""
        ...

    def gradient(self, weights: AnyFloats, features: AnyFloats, responses: AnyFloats) -> AnyFloats:
        """The gradient of the mean loss with respect to the flat weights; zero where there are no examples."""
        ...


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

    Gradients have the precision (float32 or float64) of weights and features. Weights ``[..., size]``, features
    ``[..., examples, features]`` and responses ``[..., examples, outputs]`` may have leading axes, which broadcast:
    many models, or many devices, in one call. Shapes that do not fit raise `DataError`.
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

    def linear(self, weights: AnyFloats, features: AnyFloats) -> AnyFloats:
        """The outputs before the link, [..., examples, outputs]."""
        if weights.shape[-1:] != (self.size,) or features.shape[-1:] != (self.features,):
            raise DataError(
                f"weights of shape {weights.shape} and features of shape {features.shape} do not fit a model of "
                f"{self.size} weights and {self.features} features"
            )
        matrix = weights.reshape(*weights.shape[:-1], -1, self.outputs)
        if not self.intercept:
            return features @ matrix
        return features @ matrix[..., 1:, :] + matrix[..., :1, :]

    def predict(self, weights: AnyFloats, features: AnyFloats) -> AnyFloats:
        """See `FlatModel.predict`."""
        return self.link.mean(self.linear(weights, features))

    def loss(self, weights: AnyFloats, features: AnyFloats, responses: AnyFloats) -> float:
        """See `FlatModel.loss`; a number, so no leading axes."""
        return float(self.link.losses(self.linear(weights, features), self._fitting(responses, features)).mean())

    def gradient(self, weights: AnyFloats, features: AnyFloats, responses: AnyFloats) -> AnyFloats:
        """See `FlatModel.gradient`: the mean over the examples of (prediction - response) * feature."""
        residuals = self.predict(weights, features) - self._fitting(responses, features)
        residuals /= max(1, residuals.shape[-2])
        matrix: AnyFloats = np.swapaxes(features, -1, -2) @ residuals
        if self.intercept:
            matrix = np.concatenate([residuals.sum(axis=-2, keepdims=True), matrix], axis=-2)
        return matrix.reshape(*matrix.shape[:-2], self.size)

    def _fitting(self, responses: AnyFloats, features: AnyFloats) -> AnyFloats:
        if responses.shape[-2:] != (features.shape[-2], self.outputs):
            raise DataError(
                f"responses of shape {responses.shape} do not fit {features.shape[-2]} examples and "
                f"{self.outputs} outputs: give [examples, outputs]"
            )
        return responses


@dataclass(frozen=True, kw_only=True)
class Perceptron:
    """A perceptron with rectified hidden layers, say of widths (784, 32, 10), in float32.

    The flat weights are those of one layer after the other: a row an output, then the biases, if there are any.
    """

    widths: tuple[int, ...]
    link: Link
    bias: bool = True

    @property
    def size(self) -> int:
        """How many weights there are."""
        return sum((width + self.bias) * following for width, following in pairwise(self.widths))

    def predict(self, weights: AnyFloats, features: AnyFloats) -> AnyFloats:
        """See `FlatModel.predict`."""
        return self.link.mean(self._activations(weights, features)[-1])

    def loss(self, weights: AnyFloats, features: AnyFloats, responses: AnyFloats) -> float:
        """See `FlatModel.loss`."""
        return float(self.link.losses(self._activations(weights, features)[-1], responses).mean())

    def gradient(self, weights: AnyFloats, features: AnyFloats, responses: AnyFloats) -> AnyFloats:
        """See `FlatModel.gradient`: back-propagation."""
        inputs = self._activations(weights, features)
        back = (self.link.mean(inputs.pop()) - responses.astype(np.float32)) / np.float32(max(1, len(features)))
        pieces: list[AnyFloats] = []
        for layer, its in zip(reversed(self._layers(weights)), reversed(inputs), strict=True):
            pieces[:0] = [(back.T @ its).reshape(-1), *([back.sum(axis=0)] if self.bias else [])]
            back = (back @ layer[0]) * (its > 0)
        return np.concatenate(pieces)

    def _layers(self, weights: AnyFloats) -> list[tuple[AnyFloats, AnyFloats]]:
        layers, rest = [], weights.astype(np.float32)
        for width, following in pairwise(self.widths):
            matrix, rest = rest[: width * following].reshape(following, width), rest[width * following :]
            biases = rest[: self.bias * following]
            layers.append((matrix, biases if self.bias else np.zeros(following, np.float32)))
            rest = rest[len(biases) :]
        return layers

    def _activations(self, weights: AnyFloats, features: AnyFloats) -> list[AnyFloats]:
        """What goes into each layer, and the outputs of the last."""
        layers = self._layers(weights)
        found: list[AnyFloats] = [features.astype(np.float32)]
        for place, (matrix, biases) in enumerate(layers):
            outputs = found[-1] @ matrix.T + biases
            found.append(outputs if place == len(layers) - 1 else np.maximum(outputs, np.float32(0)))
        return found


def one_hot(labels: NDArray[np.integer[Any]], classes: int) -> AnyFloats:
    """Class labels as responses of a multinomial model."""
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise DataError(f"labels from {labels.min()} to {labels.max()} are not {classes} classes")
    rows: AnyFloats = np.eye(classes)[labels]
    return rows
