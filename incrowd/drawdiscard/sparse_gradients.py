"""Gradients of devices whose examples have few features that are not zero, for simulations."""

import numpy as np

from incrowd._random import Integers
from incrowd.drawdiscard.fast_gradients import Matrix, OwnLayout
from incrowd.drawdiscard.glm import AnyFloats, Glm
from incrowd.drawdiscard.sparse import SparseRows
from incrowd.errors import DataError


class SparseGradients(OwnLayout):
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
