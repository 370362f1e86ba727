"""Millions of updates to a pool, simulated: only those are computed that leave a trace in what is looked at.

See `genealogy` for why that is exact. What a device does is what `glm` and `mechanism` say, in float32 and without a
copy: inside a simulation, weights are a matrix with a row an output and a column a feature, the intercept first, the
layout in which small matrix products are fastest.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from incrowd import _validate
from incrowd._random import Floats, Integers, Randomness
from incrowd.drawdiscard.fast_noise import (
    BlockNoise,
    FastDirections,
    Noise,
    fill_laplace,
    fill_normal,
    to_expected,
)
from incrowd.drawdiscard.genealogy import Coins, Genealogy
from incrowd.drawdiscard.glm import LOGISTIC, MULTINOMIAL, AnyFloats, FlatModel, Glm
from incrowd.drawdiscard.sparse import SparseRows
from incrowd.drawdiscard.specification import Specification, with_largest
from incrowd.errors import DataError
from incrowd.privacy.mechanism.device import Mechanism

Matrix = NDArray[np.float32]


class DeviceGradients:
    """The gradient of each device's mean loss, at so many weights: of any model, slowly.

    `features` and `responses` hold one array for each device. The inner layout of weights is the model's.
    """

    largest = math.inf
    """No number of any gradient is larger in size, at any weights; infinity where that cannot be said."""

    def __init__(self, model: FlatModel, features: Any, responses: Any) -> None:
        self.size, self._model = model.size, model
        self._features, self._responses = features, responses

    def inner(self, flat: ArrayLike) -> Matrix:
        """Weights in the inner layout, from flat ones in the model's: [..., size] both."""
        return np.array(flat, np.float32)

    def flat(self, inner: Matrix) -> Matrix:
        """The other way round."""
        return inner

    def gradient(self, weights: Matrix, device: int) -> Matrix:
        """The gradient, in the inner layout; valid until the next call, and free to be changed."""
        gradient = self._model.gradient(weights, self._features[device], self._responses[device])
        return np.asarray(gradient, np.float32)


class GlmGradients(DeviceGradients):
    """A generalised linear model on devices with the same number of examples each.

    `features` are [devices, examples, features]. `responses` are [devices, examples, outputs], or for a multinomial
    model labels [devices, examples]. `intercepted` features have a column of ones in front, and are not copied.
    """

    def __init__(
        self, model: Glm, features: NDArray[Any], responses: NDArray[Any], *, intercepted: bool = False
    ) -> None:
        self.size, self.model = model.size, model
        self._inputs = features if intercepted else with_intercept(features, intercept=model.intercept)
        self._columns = model.features + model.intercept
        if self._inputs.ndim != 3 or self._inputs.shape[2] != self._columns:
            raise DataError(f"features of shape {features.shape} are not [devices, examples, {model.features}]")
        self._examples = max(1, self._inputs.shape[1])
        self._by_output = _by_output(model, responses)
        if self._by_output.shape != (len(self._inputs), model.outputs, self._inputs.shape[1]):
            raise DataError(f"responses of shape {responses.shape} do not fit features of shape {features.shape}")
        self._mean: Callable[[Any], Any] = _softmax if model.link is MULTINOMIAL else model.link.mean
        self._outputs = np.empty((model.outputs, self._inputs.shape[1]), np.float32)
        self._gradient = np.empty((model.outputs, self._columns), np.float32)
        if model.link in (LOGISTIC, MULTINOMIAL) and _within(self._by_output, 0, 1):
            # Where prediction and response are shares, they differ by 1 at most.
            self.largest = float(max(self._inputs.max(initial=0), -self._inputs.min(initial=0)))

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
        residuals -= self._by_output[device]
        residuals *= np.float32(1 / self._examples)
        return np.matmul(residuals, inputs, out=self._gradient).reshape(-1)


class SparseGradients(DeviceGradients):
    """A generalised linear model on devices with the same number of examples each.

    `features` has a row an example, `responses` is [examples, outputs], and `devices` says which examples each device
    has, [devices, examples of one].
    """

    def __init__(self, model: Glm, features: SparseRows, responses: AnyFloats, devices: Integers) -> None:
        if features.width != model.features or responses.shape != (len(features), model.outputs):
            raise DataError(
                f"{features.width} features and responses of shape {responses.shape} do not fit {len(features)} "
                f"examples of {model.features} features and {model.outputs} outputs"
            )
        self.size, self.model = model.size, model
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


Bound = Callable[[Matrix], object]


@dataclass(frozen=True, kw_only=True, eq=False)
class Updates:
    """What devices do, update by update: who it is, how long a step it makes, how its gradient is bounded and noised.

    `devices` and `rates` have an entry for each update, in the order of arrival; `rates` may be one number for all. An
    update is the instance minus rate * (bounded gradient + noise), as a device makes it; without `noise` nothing is
    added, and a direction is what it comes to on average.
    """

    gradients: DeviceGradients
    mechanism: Mechanism
    devices: Integers
    rates: float | Floats
    noise: Noise | None = None
    largest: int | None = None
    _bound: Bound | None = field(init=False, repr=False)
    _rates: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.mechanism.size != self.gradients.size:
            raise DataError(f"a mechanism of {self.mechanism.size} numbers for {self.gradients.size} weights")
        rates = np.broadcast_to(np.asarray(self.rates, np.float64), len(self.devices))
        object.__setattr__(self, "_rates", rates)
        needless = self.mechanism.bound == "element" and self.gradients.largest <= self.mechanism.clip
        object.__setattr__(self, "_bound", None if needless else bounding(self.mechanism))

    def step(self, weights: Matrix, update: int) -> Matrix:
        """What the update takes off the weights that it drew; valid until the next call."""
        step = self.gradients.gradient(weights, int(self.devices[update]))
        if self.largest is not None and self.largest < step.size:
            step = with_largest(step, self.largest)
        if self._bound is not None:
            self._bound(step)
        if self.noise is not None:
            step = self.noise.on(step, update)
        step *= np.float32(self._rates[update])
        return step


def seeded_noise(mechanism: Mechanism, randomness: Randomness) -> Noise | None:
    """The noise of a mechanism, for simulations only; only the same moments repeat the same run."""
    if mechanism.noise == "none":
        return None
    if mechanism.noise == "direction":
        return FastDirections(mechanism.choice, stream=randomness.stream("noise"))
    sampler = fill_laplace if mechanism.noise == "laplace" else fill_normal
    stream = randomness.stream("noise")
    return BlockNoise(sampler, size=mechanism.size, scale=mechanism.noise_scale, stream=stream)


def bounding(mechanism: Mechanism) -> Bound:
    """What bounds a gradient, in place: see `Mechanism`."""
    if mechanism.noise == "direction":
        return partial(to_expected, mechanism.choice)
    limit = np.float32(mechanism.clip)
    if mechanism.bound == "element":
        return lambda gradient: np.clip(gradient, -limit, limit, out=gradient)
    order = 2 if mechanism.noise == "gaussian" else 1

    def shorten(gradient: Matrix) -> None:
        norm = np.linalg.norm(gradient, order)
        if norm > limit:
            gradient *= limit / norm

    return shorten


def simulate(updates: Updates, coins: Coins, *, start: ArrayLike, moments: Sequence[int]) -> Matrix:
    """The weights to predict with after so many updates each, [moments, size], in the model's layout.

    They are the average of the instances; moment 0 is the start, [k, size].

    Guarantee: the same as a pool, up to float32, whose strategy makes the same choices and whose devices add the same
    noise.
    """
    if len(updates.devices) != coins.updates:
        raise DataError(f"{len(updates.devices)} devices for {coins.updates} updates: give one each")
    given = updates.gradients.inner(start)
    if given.shape != (coins.instances, updates.gradients.size):
        raise DataError(f"a start of shape {given.shape} is not [{coins.instances}, {updates.gradients.size}]")
    averages = np.empty((len(moments), given.shape[1]), np.float32)
    genealogy = Genealogy(coins, moments)
    living = _Living(genealogy, given)
    waiting = sorted(range(len(moments)), key=lambda place: moments[place])
    for update in [*genealogy.needed.tolist(), coins.updates]:
        while waiting and moments[waiting[0]] <= update:
            place = waiting.pop(0)
            averages[place] = living.average(place)
        if update < coins.updates:
            living.apply(updates, update)
    return updates.gradients.flat(averages)


def gammas(specification: Specification, seen: Integers) -> Floats:
    """The size of the step of each update that had seen so many others arrive when it drew."""
    epochs, which = np.unique([specification.epoch(arrived) for arrived in seen.tolist()], return_inverse=True)
    sizes: Floats = np.array([specification.gamma_of(int(epoch)) for epoch in epochs], np.float64)
    return sizes[which]


def batch_updates(updates: Updates, *, batch: int, start: ArrayLike, moments: Sequence[int]) -> Matrix:
    """As `simulate`, for a single model on whose server the steps of a batch wait until they can be averaged."""
    _validate.count(batch=batch)
    weights = updates.gradients.inner(start).reshape(-1)
    waiting = np.zeros_like(weights)
    averages = np.empty((len(moments), len(weights)), np.float32)
    order = np.argsort(moments, kind="stable")
    done = 0
    for place in order:
        for update in range(done, moments[place]):
            waiting += updates.step(weights, update)
            if (update + 1) % batch == 0:
                weights -= waiting / np.float32(batch)
                waiting[:] = 0
        done = max(done, moments[place])
        averages[place] = weights
    return updates.gradients.flat(averages)


class _Living:
    """The versions that are still needed: each is let go after its last use, and its memory used again."""

    def __init__(self, genealogy: Genealogy, start: Matrix) -> None:
        self._genealogy = genealogy
        self._k = len(start)
        used = [genealogy.parents[genealogy.needed], genealogy.looked_at.ravel()]
        self._share = np.float32(genealogy.coins.merge)
        if self._share < 1:
            used.append(genealogy.partners[genealogy.needed])
        self._uses = np.bincount(np.concatenate(used), minlength=self._k + genealogy.coins.updates)
        self._rows = {version: row.copy() for version, row in enumerate(start) if self._uses[version]}
        self._free: list[Matrix] = []

    def apply(self, updates: Updates, update: int) -> None:
        """Compute one update: its parent's weights minus its step."""
        parent = int(self._genealogy.parents[update])
        weights = self._rows[parent]
        step = updates.step(weights, update)
        made = self._used(parent)  # its own memory, if nobody else needs it
        if made is None:
            made = self._free.pop() if self._free else np.empty_like(weights)
        np.subtract(weights, step, out=made)
        if self._share < 1:
            self._merge(made, int(self._genealogy.partners[update]))
        self._rows[self._k + update] = made

    def average(self, place: int) -> Floats:
        """The average of the instances at this moment."""
        versions = self._genealogy.looked_at[place].tolist()
        average: Floats = np.mean([self._rows[version] for version in versions], axis=0, dtype=np.float64)
        for version in versions:
            self._keep(self._used(version))
        return average

    def _merge(self, made: Matrix, partner: int) -> None:
        made *= self._share
        made += (np.float32(1) - self._share) * self._rows[partner]
        self._keep(self._used(partner))

    def _used(self, version: int) -> Matrix | None:
        """Count one use; after the last one, the row that is free now."""
        self._uses[version] -= 1
        return self._rows.pop(version) if self._uses[version] == 0 else None

    def _keep(self, row: Matrix | None) -> None:
        if row is not None:
            self._free.append(row)
