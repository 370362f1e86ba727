"""Millions of updates to a pool, simulated: only those are computed that leave a trace in what is looked at.

See `genealogy` for why that is exact. What a device does is what `glm` and `mechanism` say, in float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import hstack, issparse

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
from incrowd.drawdiscard.glm import MULTINOMIAL, Features, Glm
from incrowd.drawdiscard.pool import merged
from incrowd.drawdiscard.specification import Specification, with_largest
from incrowd.errors import DataError
from incrowd.privacy.mechanism.device import Mechanism

Matrix = NDArray[np.float32]


class GlmGradients:
    """The gradient of each device's mean loss, at so many weights.

    `inputs` has a matrix a device, [examples, columns], dense or sparse, as `with_intercept` gives it. `responses` are
    [devices, examples, outputs], or for a multinomial model labels [devices, examples].
    """

    def __init__(self, model: Glm, inputs: Features, responses: NDArray[Any]) -> None:
        if model.link is MULTINOMIAL and responses.ndim == 2:
            responses = np.eye(model.outputs)[responses]
        if len(inputs) != len(responses):
            raise DataError(f"{len(inputs)} devices have features, and {len(responses)} responses: give one each")
        self.size = model.size
        self._model = replace(model, features=model.features + model.intercept, intercept=False)
        self._inputs, self._responses = inputs, responses.astype(np.float32)

    def gradient(self, weights: Matrix, device: int) -> Matrix:
        """The gradient, free to be changed."""
        gradient = self._model.gradient(weights, self._inputs[device], self._responses[device])
        return gradient.astype(np.float32, copy=False)


def with_intercept(features: Features, *, intercept: bool = True) -> Features:
    """Features in float32, with a column of ones in front of them if there is an intercept."""
    ones = np.ones((*features.shape[:-1], int(intercept)), np.float32)
    if issparse(features):
        return hstack([ones, features.astype(np.float32)], format="csr")
    return np.concatenate([ones, features], axis=-1, dtype=np.float32)


def split_among_devices(examples: int, *, per_device: int, order: Integers) -> Integers:
    """Examples in this order, divided among devices: [devices, per_device]. A remainder stays out."""
    devices = examples // per_device
    return order[: devices * per_device].reshape(devices, per_device)


Bound = Callable[[Matrix], object]


@dataclass(frozen=True, kw_only=True, eq=False)
class Updates:
    """What devices do, update by update: who it is, how long a step it makes, how its gradient is bounded and noised.

    `devices` and `rates` have an entry for each update, in the order of arrival; `rates` may be one number for all. An
    update is the instance minus rate * (bounded gradient + noise), as a device makes it; without `noise` nothing is
    added, and a direction is what it comes to on average.
    """

    gradients: GlmGradients
    mechanism: Mechanism
    devices: Integers
    rates: float | Floats
    noise: Noise | None = None
    largest: int | None = None

    def __post_init__(self) -> None:
        if self.mechanism.size != self.gradients.size:
            raise DataError(f"a mechanism of {self.mechanism.size} numbers for {self.gradients.size} weights")

    def step(self, weights: Matrix, update: int) -> Matrix:
        """What the update takes off the weights that it drew."""
        step = self.gradients.gradient(weights, int(self.devices[update]))
        if self.largest is not None and self.largest < step.size:
            step = with_largest(step, self.largest)
        self._bound(step)
        if self.noise is not None:
            step = self.noise.on(step, update)
        step *= self._rates[update]
        return step

    @cached_property
    def _bound(self) -> Bound:
        return bounding(self.mechanism)

    @cached_property
    def _rates(self) -> Matrix:
        return np.broadcast_to(np.asarray(self.rates, np.float32), len(self.devices))


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
    """The weights to predict with after so many updates each, [moments, size].

    They are the average of the instances; moment 0 is the start, [k, size]. A version is let go after its last use.

    Guarantee: the same as a pool, up to float32, whose strategy makes the same choices and whose devices add the same
    noise.
    """
    if len(updates.devices) != coins.updates:
        raise DataError(f"{len(updates.devices)} devices for {coins.updates} updates: give one each")
    given, share = np.array(start, np.float32), np.float32(coins.merge)
    if given.shape != (coins.instances, updates.gradients.size):
        raise DataError(f"a start of shape {given.shape} is not [{coins.instances}, {updates.gradients.size}]")
    genealogy = Genealogy(coins, moments)
    needed, merges = genealogy.needed, coins.merge < 1
    used = [genealogy.parents[needed], genealogy.looked_at.ravel(), *([genealogy.partners[needed]] if merges else [])]
    uses = np.bincount(np.concatenate(used), minlength=coins.instances + coins.updates)
    rows: dict[int, Matrix] = dict(enumerate(given))

    def row(version: int) -> Matrix:
        uses[version] -= 1
        return rows[version] if uses[version] else rows.pop(version)

    averages = np.empty((len(moments), given.shape[1]), np.float32)
    waiting = sorted(range(len(moments)), key=lambda place: moments[place])
    for update in [*needed.tolist(), coins.updates]:
        while waiting and moments[waiting[0]] <= update:
            place = waiting.pop(0)
            averages[place] = np.mean([row(it) for it in genealogy.looked_at[place].tolist()], axis=0, dtype=np.float64)
        if update < coins.updates:
            weights = row(int(genealogy.parents[update]))
            made: Matrix = weights - updates.step(weights, update)
            if merges:
                made = merged(row(int(genealogy.partners[update])), made, share)
            rows[coins.instances + update] = made
    return averages


def gammas(specification: Specification, seen: Integers) -> Floats:
    """The size of the step of each update that had seen so many others arrive when it drew."""
    epochs, which = np.unique([specification.epoch(arrived) for arrived in seen.tolist()], return_inverse=True)
    sizes: Floats = np.array([specification.gamma_of(int(epoch)) for epoch in epochs], np.float64)
    return sizes[which]


def batch_updates(updates: Updates, *, batch: int, start: ArrayLike, moments: Sequence[int]) -> Matrix:
    """As `simulate`, for a single model on whose server the steps of a batch wait until they can be averaged."""
    _validate.count(batch=batch)
    weights = np.array(start, np.float32).reshape(-1)
    waiting = np.zeros_like(weights)
    averages = np.empty((len(moments), len(weights)), np.float32)
    done = 0
    for place in np.argsort(moments, kind="stable"):
        for update in range(done, moments[place]):
            waiting += updates.step(weights, update)
            if (update + 1) % batch == 0:
                weights -= waiting / np.float32(batch)
                waiting[:] = 0
        done = max(done, moments[place])
        averages[place] = weights
    return averages
