"""Gradients of one device after the other, for simulations: the formulas of `glm` in float32, without a copy.

Inside a simulation, weights are a matrix with a row an output and a column a feature, the intercept first: the layout
in which small matrix products are fastest.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from incrowd._random import Integers
from incrowd.drawdiscard.glm import LOGISTIC, MULTINOMIAL, AnyFloats, FlatModel, Glm
from incrowd.drawdiscard.sparse import SparseRows
from incrowd.errors import DataError

Matrix = NDArray[np.float32]


class DeviceGradients(ABC):
    """The gradient of each device's mean loss, at so many weights; their inner layout is the model's by default."""

    def __init__(self, size: int) -> None:
        self.size = size

    @property
    def largest(self) -> float:
        """No number of any gradient is larger in size, at any weights; infinity where that cannot be said."""
        return math.inf

    def inner(self, flat: ArrayLike) -> Matrix:
        """Weights in the inner layout, from flat ones in the model's: [..., size] both."""
        return np.array(flat, np.float32)

    def flat(self, inner: Matrix) -> Matrix:
        """The other way round."""
        return inner

    @abstractmethod
    def gradient(self, weights: Matrix, device: int) -> Matrix:
        """The gradient, in the inner layout; valid until the next call, and free to be changed."""


class GlmGradients(DeviceGradients):
    """A generalised linear model on devices with the same number of examples each.

    `features` are [devices, examples, features]. `responses` are [devices, examples, outputs], or for a multinomial
    model labels [devices, examples]. `intercepted` features have a column of ones in front, and are not copied.

    Guarantee: gradients are those of `Glm.gradient` to float32 precision.
    """

    def __init__(
        self, model: Glm, features: NDArray[Any], responses: NDArray[Any], *, intercepted: bool = False
    ) -> None:
        super().__init__(model.size)
        self.model = model
        self._inputs = features if intercepted else with_intercept(features, intercept=model.intercept)
        self._columns = model.features + model.intercept
        if self._inputs.ndim != 3 or self._inputs.shape[2] != self._columns:
            raise DataError(f"features of shape {features.shape} are not [devices, examples, {model.features}]")
        self._examples = max(1, self._inputs.shape[1])
        self._responses = _by_output(model, responses)
        if self._responses.shape != (len(self._inputs), model.outputs, self._inputs.shape[1]):
            raise DataError(f"responses of shape {responses.shape} do not fit features of shape {features.shape}")
        self._mean: Callable[[Any], Any] = _softmax if model.link is MULTINOMIAL else model.link.mean
        self._outputs = np.empty((model.outputs, self._inputs.shape[1]), np.float32)
        self._gradient = np.empty((model.outputs, self._columns), np.float32)

    @cached_property
    def largest(self) -> float:
        """See `DeviceGradients.largest`: where prediction and response are shares, they differ by 1 at most."""
        shares = self.model.link in (LOGISTIC, MULTINOMIAL) and _within(self._responses, 0, 1)
        return float(max(self._inputs.max(initial=0), -self._inputs.min(initial=0))) if shares else math.inf

    def inner(self, flat: ArrayLike) -> Matrix:
        """See `DeviceGradients.inner`."""
        given = np.asarray(flat, np.float32)
        matrix = given.reshape(*given.shape[:-1], self._columns, self.model.outputs)
        return np.ascontiguousarray(matrix.swapaxes(-1, -2)).reshape(given.shape)

    def flat(self, inner: Matrix) -> Matrix:
        """See `DeviceGradients.flat`."""
        matrix = inner.reshape(*inner.shape[:-1], self.model.outputs, self._columns)
        return np.ascontiguousarray(matrix.swapaxes(-1, -2)).reshape(inner.shape)

    def gradient(self, weights: Matrix, device: int) -> Matrix:
        """See `DeviceGradients.gradient`."""
        inputs = self._inputs[device]
        outputs = np.matmul(weights.reshape(self._gradient.shape), inputs.T, out=self._outputs)
        residuals = self._mean(outputs)
        residuals -= self._responses[device]
        residuals *= np.float32(1 / self._examples)
        return np.matmul(residuals, inputs, out=self._gradient).reshape(-1)


class ModelGradients(DeviceGradients):
    """Any model with flat weights, slower: `features` and `responses` hold one array for each device."""

    def __init__(self, model: FlatModel, features: Any, responses: Any) -> None:
        super().__init__(model.size)
        self.model = model
        self._features = features
        self._responses = responses

    def gradient(self, weights: Matrix, device: int) -> Matrix:
        """See `DeviceGradients.gradient`."""
        gradient = self.model.gradient(weights, self._features[device], self._responses[device])
        return np.asarray(gradient, np.float32)


class SparseGradients(DeviceGradients):
    """A generalised linear model on devices with the same number of examples each.

    `features` has a row an example, `responses` is [examples, outputs], and `devices` says which examples each device
    has, [devices, examples of one]. What is kept is as large as what is not zero.

    Guarantee: gradients are those of `Glm.gradient` to float32 precision.
    """

    def __init__(self, model: Glm, features: SparseRows, responses: AnyFloats, devices: Integers) -> None:
        super().__init__(model.size)
        if features.width != model.features or responses.shape != (len(features), model.outputs):
            raise DataError(
                f"{features.width} features and responses of shape {responses.shape} do not fit {len(features)} "
                f"examples of {model.features} features and {model.outputs} outputs"
            )
        self.model = model
        self._rows = features.chosen(devices.ravel())
        self._responses = responses[devices.ravel()].astype(np.float32)
        self._each = devices.shape[1]

    def gradient(self, weights: Matrix, device: int) -> Matrix:
        """See `DeviceGradients.gradient`."""
        own, inputs = self._inputs(device)
        gradient = np.zeros((self.size // self.model.outputs, self.model.outputs), np.float32)
        matrix = weights.reshape(gradient.shape)
        first = device * self._each
        residuals = self.model.link.mean(inputs @ matrix[own]) - self._responses[first : first + self._each]
        gradient[own] = inputs.T @ (residuals / np.float32(max(1, self._each)))
        return gradient.reshape(-1)

    def _inputs(self, device: int) -> tuple[Integers, Matrix]:
        """The rows of the weights that a device's examples have to do with, and its features for these alone."""
        first, last = device * self._each, (device + 1) * self._each
        within = slice(self._rows.starts[first], self._rows.starts[last])
        places, which = np.unique(self._rows.places[within], return_inverse=True)
        rows = np.repeat(np.arange(self._each), np.diff(self._rows.starts[first : last + 1]))
        inputs = np.zeros((self._each, len(places) + self.model.intercept), np.float32)
        inputs[:, : self.model.intercept] = 1
        inputs[rows, which + self.model.intercept] = self._rows.values[within]
        if not self.model.intercept:
            return places, inputs
        return np.concatenate([[0], places + 1]), inputs


def with_intercept(features: NDArray[Any], *, intercept: bool = True) -> Matrix:
    """Features in float32, with a column of ones in front of them if there is an intercept."""
    widened = np.ones((*features.shape[:-1], features.shape[-1] + intercept), np.float32)
    widened[..., int(intercept) :] = features
    return widened


def split_among_devices(examples: int, *, per_device: int, order: Integers) -> Integers:
    """Examples in this order, divided among devices: [devices, per_device]. A remainder stays out."""
    devices = examples // per_device
    return order[: devices * per_device].reshape(devices, per_device)


def _by_output(model: Glm, responses: NDArray[Any]) -> Matrix:
    """Responses as [devices, outputs, examples]."""
    if model.link is MULTINOMIAL and responses.ndim == 2:
        return np.ascontiguousarray(np.eye(model.outputs, dtype=np.float32)[responses].swapaxes(1, 2))
    return np.ascontiguousarray(np.asarray(responses, np.float32).swapaxes(-1, -2))


def _within(values: Matrix, low: float, high: float) -> bool:
    return bool(low <= values.min(initial=low) and values.max(initial=high) <= high)


def _softmax(outputs: Matrix) -> Matrix:
    """Over the first axis, in place."""
    outputs -= np.maximum.reduce(outputs, axis=0)
    np.exp(outputs, out=outputs)
    outputs /= np.add.reduce(outputs, axis=0)
    return outputs
