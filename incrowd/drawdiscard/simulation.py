"""Simulates millions of updates to a pool: it computes only updates that leave a trace in the weights it returns.

The server's coins do not depend on weights, so a simulation tosses them first. An update leaves no trace if another one
overwrites it before a device draws it, or if all its descendants end so: in the long run, all but one in k (Pihur et
al. 2018, lemma 2). The simulation goes back from the instances at the moments, and computes only their ancestors.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import hstack, issparse

from incrowd import _validate
from incrowd._random import Floats, Integers, Randomness, Stream
from incrowd.drawdiscard.glm import MULTINOMIAL, Features, Glm
from incrowd.drawdiscard.pool import Picks, check_share, merged
from incrowd.drawdiscard.specification import Specification, with_largest
from incrowd.errors import DataError
from incrowd.privacy.mechanism.device import Mechanism
from incrowd.privacy.mechanism.whole_noise import SEED_BITS, ChosenDirection, sign_bits

Matrix = NDArray[np.float32]
Bound = Callable[[Matrix], object]
Noise = Callable[[Matrix, int], Matrix]  # noises a bounded gradient, given the number of its update

NOWHERE = -1  # stands in the place of an instance: the server threw the update away
BLOCK = 2**17  # the noise values of one draw: enough to amortise NumPy's calls, few enough for the cache
_MAGNITUDE = np.uint32(2**31 - 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Coins:
    """For each update in the order of arrival: the instance that it drew, and the one that it replaced.

    `seen` is the number of updates that had arrived when the update drew.
    """

    instances: int
    drawn: Integers
    replaced: Integers
    seen: Integers
    merge: float = 1.0

    def __post_init__(self) -> None:
        check_share(self.merge)

    @property
    def updates(self) -> int:
        """The number of updates."""
        return len(self.drawn)


def toss(purpose: str, choices: int, size: int, randomness: Randomness) -> Integers:
    """Uniform choices, equal to those that `Picks` makes one by one."""
    bits = [randomness.stream(purpose, number).bits(Picks.BLOCK) for number in range(-(-size // Picks.BLOCK))]
    joined = np.concatenate([*bits, np.empty(0, np.uint64)])[:size]
    return (joined % np.uint64(choices)).astype(np.int64)


def draw_and_discard(
    *, instances: int, updates: int, randomness: Randomness, in_flight: int = 1, merge: float = 1.0
) -> Coins:
    """Each update draws a random instance and replaces another random instance.

    With one device in flight, each device draws after all earlier updates have arrived. With several, a random one of
    them arrives next, and another device draws at the same moment.
    """
    _validate.count(instances=instances, updates=updates, in_flight=in_flight)
    seen = np.arange(updates)
    if in_flight > 1:
        seats = toss("arrival", in_flight, updates, randomness)
        by_seat = np.argsort(seats, kind="stable")  # a device draws when the one before it in its seat arrives
        first_of_seat = np.diff(seats[by_seat], prepend=-1) != 0
        seen[by_seat] = np.where(first_of_seat, 0, np.roll(by_seat, 1) + 1)
    drawn, replaced = (toss(purpose, instances, updates, randomness) for purpose in ("draw", "discard"))
    return Coins(instances=instances, drawn=drawn, replaced=replaced, seen=seen, merge=merge)


def same_instance(*, instances: int, updates: int, randomness: Randomness, merge: float = 1.0) -> Coins:
    """Each update replaces the instance that it drew, one after the other."""
    _validate.count(instances=instances, updates=updates)
    drawn = toss("draw", instances, updates, randomness)
    return Coins(instances=instances, drawn=drawn, replaced=drawn, seen=np.arange(updates), merge=merge)


def accept_one_in(share: int, *, updates: int, randomness: Randomness) -> Coins:
    """An update replaces the only instance with a probability of one in `share`; the server discards the others."""
    _validate.count(share=share, updates=updates)
    accepted = toss("accept", share, updates, randomness) == 0
    drawn = np.zeros(updates, np.int64)
    return Coins(instances=1, drawn=drawn, replaced=np.where(accepted, 0, NOWHERE), seen=np.arange(updates))


@dataclass(frozen=True, eq=False)
class Genealogy:
    """The descent of all versions of the instances: instance i starts as version i, update t makes version k + t.

    A moment is a number of updates that have arrived.
    """

    coins: Coins
    moments: Sequence[int]

    def __post_init__(self) -> None:
        for moment in self.moments:
            _validate.natural(moment=moment)
            _validate.at_most(self.coins.updates, "the number of updates", moment=moment)

    def holders(self, instances: Integers, moments: Integers) -> Integers:
        """The version in each of these instances at each of these moments."""
        versions = instances.copy()
        for instance, writes in enumerate(self._writes):
            asked = np.flatnonzero(instances == instance)
            last = np.searchsorted(writes, moments[asked]) - 1
            written = last >= 0
            versions[asked[written]] = self.coins.instances + writes[last[written]]
        return versions

    @cached_property
    def parents(self) -> Integers:
        """The version that each update drew."""
        return self.holders(self.coins.drawn, self.coins.seen)

    @cached_property
    def partners(self) -> Integers:
        """The version that each update replaced."""
        return self.holders(self.coins.replaced, np.arange(self.coins.updates))

    @cached_property
    def looked_at(self) -> Integers:
        """The versions in all instances at all moments, [moments, k]."""
        k = self.coins.instances
        holders = self.holders(np.tile(np.arange(k), len(self.moments)), np.repeat(np.array(self.moments, np.int64), k))
        return holders.reshape(-1, k)

    @cached_property
    def needed(self) -> Integers:
        """The updates on which the instances at the moments depend, in the order of arrival."""
        k = self.coins.instances
        ancestors = [self.parents, self.partners] if self.coins.merge < 1 else [self.parents]
        marked = bytearray(k + self.coins.updates)
        waiting = self.looked_at.ravel().tolist()
        while waiting:
            version = waiting.pop()
            if not marked[version]:
                marked[version] = 1
                if version >= k:
                    waiting += [int(versions[version - k]) for versions in ancestors]
        return np.flatnonzero(np.frombuffer(marked, np.uint8)[k:])

    @cached_property
    def _writes(self) -> list[Integers]:
        """The updates that replaced each instance."""
        return [np.flatnonzero(self.coins.replaced == instance) for instance in range(self.coins.instances)]


class GlmGradients:
    """The gradient of each device's mean loss.

    `inputs` has a matrix for each device, [examples, columns], dense or sparse, from `with_intercept`. `responses` are
    [devices, examples, outputs], or labels [devices, examples] of a multinomial model.
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
        """The gradient at these weights; the caller may change it."""
        gradient = self._model.gradient(weights, self._inputs[device], self._responses[device])
        return gradient.astype(np.float32, copy=False)


def with_intercept(features: Features, *, intercept: bool = True) -> Features:
    """Features in float32; the intercept adds a column of ones in front."""
    ones = np.ones((*features.shape[:-1], int(intercept)), np.float32)
    if issparse(features):
        return hstack([ones, features.astype(np.float32)], format="csr")
    return np.concatenate([ones, features], axis=-1, dtype=np.float32)


def split_among_devices(examples: int, *, per_device: int, order: Integers) -> Integers:
    """Examples in this order, divided among devices: [devices, per_device]. A remainder stays out."""
    devices = examples // per_device
    return order[: devices * per_device].reshape(devices, per_device)


@dataclass(frozen=True, kw_only=True, eq=False)
class Updates:
    """The device, the step size, the bound and the noise of each update.

    `devices` and `rates` have an entry for each update in the order of arrival; `rates` may be one number for all. An
    update is the instance minus rate * (bounded gradient + noise), as a device makes it. Without `noise` an update adds
    nothing, and a direction becomes its mean.
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
        """The step of an update from the weights that it drew; the caller may change it."""
        step: Matrix = with_largest(self.gradients.gradient(weights, int(self.devices[update])), self.largest)
        self._bound(step)
        if self.noise is not None:
            step = self.noise(step, update)
        step *= self._rates[update]
        return step

    @cached_property
    def _bound(self) -> Bound:
        return bounding(self.mechanism)

    @cached_property
    def _rates(self) -> Matrix:
        return np.broadcast_to(np.asarray(self.rates, np.float32), len(self.devices))


def bounding(mechanism: Mechanism) -> Bound:
    """A function that bounds a gradient in place as `Mechanism` does."""
    if mechanism.noise == "direction":
        return partial(_to_mean, mechanism.choice)
    limit = np.float32(mechanism.clip)
    if mechanism.bound == "element":
        return lambda gradient: gradient.clip(-limit, limit, out=gradient)
    order = 2 if mechanism.noise == "gaussian" else 1

    def shorten(gradient: Matrix) -> None:
        norm = np.linalg.norm(gradient, order)
        if norm > limit:
            gradient *= limit / norm

    return shorten


def _to_mean(choice: ChosenDirection, gradient: Matrix) -> None:
    """Make a gradient the mean of the directions that a device names for it."""
    norm = float(np.linalg.norm(gradient))
    length = choice.length * choice.step * math.sqrt(choice.size)
    gradient *= np.float32(choice.gain * length / norm if norm else 0.0)


def seeded_noise(mechanism: Mechanism, randomness: Randomness) -> Noise | None:
    """The noise of a mechanism, for simulations only; a run repeats only with the same moments."""
    stream = randomness.stream("noise")
    if mechanism.noise == "none":
        return None
    if mechanism.noise == "direction":
        return partial(_direction, mechanism.choice, stream)
    rows = _noise_rows(mechanism, stream)
    return lambda gradient, _: np.add(gradient, next(rows), out=gradient)


def _noise_rows(mechanism: Mechanism, stream: Stream) -> Iterator[Matrix]:
    """Rows of independent Laplace or Gaussian values of the mechanism's scale."""
    block = np.empty((max(1, BLOCK // mechanism.size), mechanism.size), np.float32)
    while True:
        if mechanism.noise == "laplace":
            _fill_laplace(stream, block)
        else:
            block[...] = stream.normals(block.size).reshape(block.shape)
        block *= np.float32(mechanism.noise_scale)
        yield from block


def _fill_laplace(stream: Stream, block: Matrix) -> None:
    """Standard Laplace values in float32 by inversion: one of 32 bits is the sign, 31 choose the place in the tail."""
    bits = np.array(stream.bits(block.size // 2 + 1)).view(np.uint32)[: block.size].reshape(block.shape)
    whole = block.view(np.uint32)
    np.bitwise_and(bits, _MAGNITUDE, out=whole)
    np.copyto(block, whole.view(np.int32), casting="unsafe")
    block += np.float32(0.5)
    block *= np.float32(2.0**-31)
    np.log(block, out=block)  # at most 0: its sign is set
    bits |= _MAGNITUDE
    whole &= bits


def _direction(choice: ChosenDirection, stream: Stream, gradient: Matrix, _: int) -> Matrix:
    """A direction that a device names for a gradient, with the chances of `ChosenDirection` up to float32."""
    bits = stream.bits(choice.candidates + 2)
    signs = sign_bits((bits[2:] % np.uint64(2**SEED_BITS)).astype(np.int64), choice.size)
    best = int(np.argmax(signs.astype(np.float32) @ gradient))
    if float(bits[0]) * 2.0**-64 >= choice.honest:
        best = (best + 1 + int(bits[1] % np.uint64(choice.candidates - 1))) % choice.candidates
    row: Matrix = (2 * signs[best].astype(np.float32) - 1) * np.float32(choice.length * choice.step)
    return row


def simulate(updates: Updates, coins: Coins, *, start: ArrayLike, moments: Sequence[int]) -> Matrix:
    """The average of the instances at each moment, [moments, size]; moment 0 is the start, [k, size].

    Guarantee: up to float32 the result equals that of a pool that makes the same choices, with devices that add the
    same noise.
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
        return rows[version] if uses[version] else rows.pop(version)  # its last use frees a version

    averages = np.empty((len(moments), given.shape[1]), np.float32)
    waiting = sorted(range(len(moments)), key=lambda place: moments[place])
    for update in [*needed.tolist(), coins.updates]:
        while waiting and moments[waiting[0]] <= update:
            place = waiting.pop(0)
            averages[place] = np.mean([row(it) for it in genealogy.looked_at[place].tolist()], axis=0, dtype=np.float64)
        if update < coins.updates:
            weights = row(int(genealogy.parents[update]))
            step = updates.step(weights, update)
            made: Matrix = np.subtract(weights, step, out=step)
            if merges:
                made = merged(row(int(genealogy.partners[update])), made, share)
            rows[coins.instances + update] = made
    return averages


def gammas(specification: Specification, seen: Integers) -> Floats:
    """The step size of each update; `seen` is the number of updates that had arrived when each one drew."""
    epochs, which = np.unique([specification.epoch(arrived) for arrived in seen.tolist()], return_inverse=True)
    sizes: Floats = np.array([specification.gamma_of(int(epoch)) for epoch in epochs], np.float64)
    return sizes[which]


def batch_updates(updates: Updates, *, batch: int, start: ArrayLike, moments: Sequence[int]) -> Matrix:
    """As `simulate`, for a server with a single model that averages the steps of each batch."""
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
