"""Gradients of one device after the other, for simulations: the formulas of `glm` in float32, without a copy.

Inside a simulation, weights are a matrix with a row an output and a column a feature, the intercept first: the layout
in which small matrix products are fastest.
"""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from incrowd._random import Integers
from incrowd.drawdiscard.glm import LOGISTIC, MULTINOMIAL, FlatModel, Glm
from incrowd.errors import DataError

Matrix = NDArray[np.float32]


class DeviceGradients(Protocol):
    """The gradient of each device's mean loss, at weights in an inner layout of one's own."""

    @property
    def size(self) -> int:
        """How many weights there are."""
        ...

    @property
    def largest(self) -> float:
        """No number of any gradient is larger in size, at any weights; infinity where that cannot be said."""
        ...

    def inner(self, flat: ArrayLike) -> Matrix:
        """Weights in the inner layout, from flat ones in the model's: [..., size] both."""
        ...

    def flat(self, inner: Matrix) -> Matrix:
        """The other way round."""
        ...

    def gradient(self, weights: Matrix, device: int) -> Matrix:
        """The gradient, in the inner layout; valid until the next call, and free to be changed."""
        ...


class GlmGradients:
    """A generalised linear model on devices with the same number of examples each.

    `features` are [devices, examples, features]. `responses` are [devices, examples, outputs], or for a multinomial
    model labels [devices, examples]. `intercepted` features have a column of ones in front, and are not copied.

    Guarantee: gradients are those of `Glm.gradient` to float32 precision.
    """

    def __init__(
        self, model: Glm, features: NDArray[Any], responses: NDArray[Any], *, intercepted: bool = False
    ) -> None:
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

    @property
    def size(self) -> int:
        """See `DeviceGradients.size`."""
        return self.model.size

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


class OwnLayout:
    """What `DeviceGradients` asks of weights in the model's own layout, when nothing bounds their gradients."""

    largest = math.inf

    def __init__(self, size: int) -> None:
        self.size = size

    def inner(self, flat: ArrayLike) -> Matrix:
        """See `DeviceGradients.inner`."""
        return np.array(flat, np.float32)

    def flat(self, inner: Matrix) -> Matrix:
        """See `DeviceGradients.flat`."""
        return inner


class ModelGradients(OwnLayout):
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
