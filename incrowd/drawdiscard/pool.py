"""The pool: k instances of one model, and the mean and spread of each weight over them (Pihur et al. 2018).

A device draws an instance, each with the same chance; the instance that it sends back replaces one, each with the same
chance again. Nothing joins the draw with its discard.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from incrowd import _validate
from incrowd._random import Floats, Randomness
from incrowd.drawdiscard.glm import FlatModel
from incrowd.errors import ConfigError, DataError

RECOMPUTED_EVERY = 1024
"""So many replacements at most between two exact computations of mean and spread."""

LARGEST = 1e30
"""A weight beyond this has no place in a pool: its square, summed up over instances, must be a number with room."""

_LEAP = 1e8
"""A squared change so many times the sum of squares leaves rounding behind, so mean and spread are computed anew."""


def as_weights(given: ArrayLike, size: int, *, largest: float = LARGEST) -> Floats:
    """So many finite weights in float64, each at most the largest; `given` itself where it is that.

    Guarantee: what has another shape is refused before anything is computed or copied.

    Edge cases: truth values, complex numbers, text, objects and nested lists of uneven length are refused, as all else
    is that is not one row of numbers (`DataError`).
    """
    try:
        numbers = np.asarray(given)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"an instance is {size} numbers: {error}") from error
    if numbers.dtype.kind not in "fiu" or numbers.shape != (size,):
        raise DataError(f"an instance is {size} numbers, not {numbers.dtype} of shape {numbers.shape}")
    weights: Floats = numbers.astype(np.float64, copy=False)
    if not (np.abs(weights) <= largest).all():  # NaN is not, either
        raise DataError(f"an instance is {size} finite numbers of at most {largest:g}")
    return weights


def stable_variance(instances: int, update_variance: float, *, in_flight: int = 0) -> float:
    """The variance of a weight over the instances that updates of this variance neither raise nor lower.

    That is (k / 2) sigma^2, with k - 1 in the denominator of the variance over the instances (Pihur et al. 2018,
    theorem 1). One update brings the expected variance nearer to it by a factor of 1 - 2 / k^2.

    Where c others arrive between a draw and its discard, it is (k / 2) (1 + c / (k - 1)) sigma^2: for two instances
    meet in a common ancestor only if one was drawn from the other, and then each has k / 2 + c k / (2 (k - 1))
    updates behind it on average.

    Edge cases: one instance has no variance to keep: 0.
    """
    _validate.count(instances=instances)
    _validate.non_negative(update_variance=update_variance)
    _validate.natural(in_flight=in_flight)
    if instances == 1:
        return 0.0
    return instances / 2 * (1 + in_flight / (instances - 1)) * update_variance


class Picks:
    """Fair choices for one purpose, counted: the count is all that a snapshot needs in order to go on."""

    BLOCK = 4096

    def __init__(self, randomness: Randomness, purpose: str, *, taken: int = 0) -> None:
        _validate.natural(taken=taken)
        self.taken = taken
        self._randomness = randomness
        self._purpose = purpose
        self._block: list[int] = []

    def among(self, choices: int) -> int:
        """One of 0 .. choices - 1, each with the same chance to within 2^-50."""
        place = self.taken % self.BLOCK
        if place == 0 or not self._block:
            stream = self._randomness.stream(self._purpose, self.taken // self.BLOCK)
            self._block = stream.bits(self.BLOCK).tolist()
        self.taken += 1
        return self._block[place] % choices


DIGEST = 16
"""Bytes of the digest of an answer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """Everything that a pool is, but for where its randomness comes from.

    `mean` and `squares` (sums of squared distances from it) are those that the pool kept as it went along, `replaced`
    updates after it last computed them anew. `remembered` and `asked` are what a `SpamTest` has learnt, if one was
    asked for the snapshot; `taken` are digests of answers and `specification` a fingerprint, if a server adds them.

    Guarantee: `to_bytes` is a safetensors file, plain numbers; `from_bytes` gives back an equal snapshot.

    Edge cases: bytes that are no such file, or whose arrays do not fit each other, raise `DataError`.
    """

    instances: Floats
    draws: int
    discards: int
    mean: Floats
    squares: Floats
    replaced: int
    remembered: Floats | None = None
    asked: int = 0
    taken: Sequence[bytes] = ()
    specification: str = ""

    def to_bytes(self) -> bytes:
        """The snapshot as a file or a store can hold it."""
        from safetensors.numpy import save

        counts = np.array([self.draws, self.discards, self.replaced, self.asked], np.int64)
        arrays = {"instances": self.instances, "mean": self.mean, "squares": self.squares}
        if self.remembered is not None:
            arrays["remembered"] = self.remembered
        texts = {"taken": b"".join(self.taken), "specification": bytes.fromhex(self.specification)}
        plain = {name: np.frombuffer(text, np.uint8) for name, text in texts.items()} | {"counts": counts}
        return bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()} | plain))

    @classmethod
    def from_bytes(cls, content: bytes) -> "Snapshot":
        """The snapshot that `to_bytes` wrote."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            arrays = load(content)
            draws, discards, replaced, asked = arrays.pop("counts").tolist()
            taken, specification = (arrays.pop(name).tobytes() for name in ("taken", "specification"))
            snapshot = cls(
                draws=draws,
                discards=discards,
                replaced=replaced,
                asked=asked,
                taken=[taken[place : place + DIGEST] for place in range(0, len(taken), DIGEST)],
                specification=specification.hex(),
                **arrays,
            )
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"this is no snapshot of a pool: {error}") from error
        size = snapshot.instances.shape[1:]
        fit = len(size) == 1 and all(array.shape == size for name, array in arrays.items() if name != "instances")
        if not fit or min(draws, discards, replaced, asked) < 0:
            raise DataError(f"this is no snapshot of a pool: instances {snapshot.instances.shape}")
        for array in arrays.values():
            if array.dtype != np.float64 or not np.isfinite(array).all():
                raise DataError(f"this is no snapshot of a pool: its numbers are {array.dtype}, or not finite")
        return snapshot


class Pool:
    """k instances of a model with so many weights, safe to share between threads.

    Guarantee: a draw gives a copy of a uniformly random instance, a discard replaces a uniformly random one, and the
    two choices are independent; both come from the named streams ``draw`` and ``discard``. Mean and spread cost a few
    operations a weight and a discard; they are computed anew every `RECOMPUTED_EVERY` replacements, and whenever a huge
    weight comes or goes, so that rounding does not add up however long the pool lives. Under seeded randomness a
    restored pool goes on exactly like the one that was saved, to the last bit of mean and spread.

    Edge cases: an instance that is not finite, has a weight beyond `LARGEST` or another size is refused (`DataError`)
    and the pool stays as it was; the spread of a single instance is 0.
    """

    def __init__(self, instances: ArrayLike, *, randomness: Randomness, draws: int = 0, discards: int = 0) -> None:
        self._instances: Floats = np.array(instances, dtype=np.float64)
        if self._instances.ndim != 2 or 0 in self._instances.shape:
            shape = self._instances.shape
            raise ConfigError(field="instances", value=shape, remedy="give one row an instance, one column a weight")
        for instance in self._instances:
            as_weights(instance, self.size)
        self._draws = Picks(randomness, "draw", taken=draws)
        self._discards = Picks(randomness, "discard", taken=discards)
        self._lock = RLock()
        self._recompute()

    @classmethod
    def initial(cls, start: ArrayLike, *, instances: int, update_variance: float, randomness: Randomness) -> "Pool":
        """A pool around starting weights, each weight spread over the instances as it will stay.

        `update_variance` is the variance of the noise that one update adds to a weight; the stream is
        ``initialisation``.

        Edge cases: a single instance, or updates without noise, start at the starting weights.
        """
        centre = np.asarray(start, dtype=np.float64)
        spread = math.sqrt(stable_variance(instances, update_variance))
        normals = randomness.stream("initialisation").normals(instances * centre.size)
        return cls(centre + spread * normals.reshape(instances, centre.size), randomness=randomness)

    @classmethod
    def restore(cls, snapshot: Snapshot, *, randomness: Randomness) -> "Pool":
        """The pool that a snapshot was taken of."""
        pool = cls(snapshot.instances, randomness=randomness, draws=snapshot.draws, discards=snapshot.discards)
        pool._mean, pool._squares = snapshot.mean.copy(), snapshot.squares.copy()
        pool._replaced = snapshot.replaced
        return pool

    def snapshot(self) -> Snapshot:
        """Everything to go on from here."""
        with self._lock:
            return Snapshot(
                instances=self._instances.copy(),
                draws=self._draws.taken,
                discards=self._discards.taken,
                mean=self._mean.copy(),
                squares=self._squares.copy(),
                replaced=self._replaced,
            )

    @property
    def discards(self) -> int:
        """How many instances were discarded for an update so far."""
        return self._discards.taken

    @property
    def k(self) -> int:
        """How many instances there are."""
        return len(self._instances)

    @property
    def size(self) -> int:
        """How many weights an instance has."""
        return int(self._instances.shape[1])

    def draw(self) -> Floats:
        """A copy of a random instance."""
        return self.draw_index()[1]

    def draw_index(self) -> tuple[int, Floats]:
        """As `draw`, and which one it was: for strategies to compare with. A server must not keep it."""
        with self._lock:
            index = self._draws.among(self.k)
            return index, self._instances[index].copy()

    def discard(self, weights: ArrayLike) -> None:
        """Replace a random instance with an updated one."""
        arrived = as_weights(weights, self.size)
        with self._lock:
            self._replace(self.choose(), arrived)

    def choose(self) -> int:
        """Which instance the next discard replaces; asking moves the stream on."""
        with self._lock:
            return self._discards.among(self.k)

    def replace(self, index: int, weights: ArrayLike) -> None:
        """Replace a given instance: for strategies to compare with."""
        arrived = as_weights(weights, self.size)
        with self._lock:
            self._replace(index, arrived)

    def instance(self, index: int) -> Floats:
        """A copy of a given instance."""
        with self._lock:
            row: Floats = self._instances[index].copy()
            return row

    def weights(self) -> Floats:
        """The average of the instances: the weights to predict with."""
        return self.mean_and_spread()[0]

    def predict(self, model: FlatModel, features: Any) -> Any:
        """The average of the instances' predictions: the other way to use them."""
        instances = self.snapshot().instances
        return sum(model.predict(weights, features) for weights in instances) / len(instances)

    def mean_and_spread(self) -> tuple[Floats, Floats]:
        """The mean of each weight over the instances, and its standard deviation (k - 1 in the denominator)."""
        with self._lock:
            variance = np.maximum(self._squares, 0.0) / (self.k - 1) if self.k > 1 else np.zeros(self.size)
            return self._mean.copy(), np.sqrt(variance)

    def _replace(self, index: int, arrived: Floats) -> None:
        row = self._instances[index]
        self._replaced += 1
        if self._replaced % RECOMPUTED_EVERY == 0:
            row[:] = arrived
            self._recompute()
            return
        # The sum of squared distances from the mean changes by (new - old) * (new - new mean + old - old mean).
        change = arrived - row
        distances = arrived + row
        distances -= self._mean
        self._mean += change / self.k
        distances -= self._mean
        distances *= change
        self._squares += distances
        row[:] = arrived
        change *= change
        if (change > _LEAP * self._squares).any():
            self._recompute()

    def _recompute(self) -> None:
        self._replaced = 0
        self._mean = self._instances.mean(axis=0)
        self._squares = np.square(self._instances - self._mean).sum(axis=0)
