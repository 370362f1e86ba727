"""The pool: k instances of one model (Pihur et al. 2018), and the versions that they lately replaced.

A device draws a random instance; the server merges the answer into a random instance. The two choices are independent.
Each answer makes a version with a new number. The pool keeps the last replaced versions for a while: the server
compares an answer with its parent.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from incrowd import _validate
from incrowd._random import Floats, Randomness
from incrowd.errors import ConfigError, DataError

Instance = NDArray[np.float32]  # the weights of an instance, in messages, pools and files
LARGEST = 1e30  # the largest weight in a pool: the sum of squares over the instances must stay finite
HISTORY = 256  # the number of replaced versions that a pool keeps


def as_weights(given: ArrayLike, size: int, *, largest: float = LARGEST) -> Instance:
    """Finite weights in float32 of at most `largest`, without a copy if possible.

    Edge cases: another shape is a `DataError` before anything is computed or copied.
    """
    try:
        numbers = np.asarray(given)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"an instance is {size} numbers: {error}") from error
    if numbers.dtype.kind not in "fiu" or numbers.shape != (size,):
        raise DataError(f"an instance is {size} numbers, not {numbers.dtype} of shape {numbers.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        if numbers.dtype == np.float32 and math.isfinite(np.dot(numbers, numbers)):
            return numbers  # nearly always: no weight is beyond the root of the largest float32, 1.8e19
        weights: Instance = numbers.astype(np.float32, copy=False)
    if not (np.abs(weights) <= np.float32(largest)).all():  # NaN is not, either
        raise DataError(f"an instance is {size} finite numbers of at most {largest:g}")
    return weights


def stable_variance(instances: int, update_variance: float, *, merge: float = 1.0) -> float:
    """The stable variance of a weight over the instances: updates of this variance neither raise nor lower it.

    It is (k / 2) sigma^2, with k - 1 in the denominator of the variance (Pihur et al. 2018, theorem 1); each update
    brings the expected variance nearer to it by a factor of 1 - 2 / k^2. In a pool that merges by a share m it is
    m sigma^2 / (2 (1 - m + m / k)): an update moves one instance towards another by m and adds m^2 sigma^2.
    """
    _validate.count(instances=instances)
    _validate.non_negative(update_variance=update_variance)
    check_share(merge)
    if instances == 1:
        return 0.0
    return instances * merge * update_variance / (2 * (instances * (1 - merge) + merge))


def check_share(merge: float) -> None:
    """Refuse a share outside (0, 1]."""
    if not 0 < merge <= 1:
        raise ConfigError(field="merge", value=merge, remedy="give a share above 0, and at most 1, which overwrites")


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolState:
    """A pool at one moment: `last` is the largest version number so far; `replaced` starts with the oldest version."""

    rows: Sequence[Instance]
    versions: Sequence[int]
    replaced: Mapping[int, Instance]
    draws: int
    discards: int
    last: int


class Picks:
    """Uniform choices for one purpose; their count `taken` is the state."""

    BLOCK = 4096

    def __init__(self, randomness: Randomness, purpose: str, *, taken: int = 0) -> None:
        _validate.natural(taken=taken)
        self.taken = taken
        self._randomness = randomness
        self._purpose = purpose
        self._block: list[int] = []

    def among(self, choices: int) -> int:
        """One of 0 .. choices - 1, uniform to within 2^-50."""
        place = self.taken % self.BLOCK
        if place == 0 or not self._block:
            stream = self._randomness.stream(self._purpose, self.taken // self.BLOCK)
            self._block = stream.bits(self.BLOCK).tolist()
        self.taken += 1
        return self._block[place] % choices


class Pool:
    """k instances of a model, safe to share between threads.

    `merge` is the share of an answer in the instance that it enters (1 replaces it), `history` the number of replaced
    versions that the pool keeps.

    Guarantee: draws and discards choose uniformly random instances, independently, from the streams ``draw`` and
    ``discard``. A row is read-only and never changes: an answer makes a new one. Under seeded randomness a restored
    pool continues like the saved one, bit for bit.
    """

    def __init__(
        self, instances: ArrayLike, *, randomness: Randomness, merge: float = 1.0, history: int = HISTORY
    ) -> None:
        given = np.asarray(instances)
        if given.ndim != 2 or 0 in given.shape:
            remedy = "give one row an instance, one column a weight"
            raise ConfigError(field="instances", value=given.shape, remedy=remedy)
        check_share(merge)
        _validate.natural(history=history)
        self.size = given.shape[1]
        self._rows = [_held(as_weights(row, self.size)) for row in given]
        self._versions = list(range(len(given)))
        self._newest = len(given) - 1
        self._replaced: OrderedDict[int, Instance] = OrderedDict()
        self._history = history
        self._merge = np.float32(merge)
        self._draws, self._discards = Picks(randomness, "draw"), Picks(randomness, "discard")
        self._lock = RLock()

    @classmethod
    def initial(
        cls, start: ArrayLike, *, instances: int, update_variance: float, randomness: Randomness, **keys: Any
    ) -> "Pool":
        """A pool around starting weights, with the stable variance for noise of this variance in each update."""
        centre = np.asarray(start, dtype=np.float64)
        spread = math.sqrt(stable_variance(instances, update_variance, merge=keys.get("merge", 1.0)))
        normals = randomness.stream("initialisation").normals(instances * centre.size)
        return cls(centre + spread * normals.reshape(instances, centre.size), randomness=randomness, **keys)

    @classmethod
    def restore(cls, state: PoolState, *, randomness: Randomness, lost: int = 0, **keys: Any) -> "Pool":
        """The pool of a state; the numbers of `lost` versions after it stay unused."""
        pool = cls(np.array(state.rows), randomness=randomness, **keys)
        pool._versions = list(state.versions)
        pool._newest = max(state.last, *pool._versions) + lost
        pool._replaced = OrderedDict((version, _held(row)) for version, row in state.replaced.items())
        pool._draws = Picks(randomness, "draw", taken=state.draws)
        pool._discards = Picks(randomness, "discard", taken=state.discards)
        return pool

    def state(self) -> PoolState:
        """The state at this moment."""
        with self._lock:
            return PoolState(
                rows=tuple(self._rows),
                versions=tuple(self._versions),
                replaced=dict(self._replaced),
                draws=self._draws.taken,
                discards=self._discards.taken,
                last=self._newest,
            )

    @property
    def instances(self) -> NDArray[np.float32]:
        """The weights of all instances, [k, size]."""
        with self._lock:
            return np.array(self._rows, np.float32)

    @property
    def discards(self) -> int:
        """The number of updates so far."""
        return self._discards.taken

    @property
    def k(self) -> int:
        """The number of instances."""
        return len(self._rows)

    def draw(self) -> Instance:
        """A random instance."""
        return self.draw_version()[1]

    def draw_version(self) -> tuple[int, Instance]:
        """The version and the weights of a random instance."""
        with self._lock:
            index = self._draws.among(self.k)
            return self._versions[index], self._rows[index]

    def version(self, number: int) -> Instance | None:
        """The row of a version that is an instance, or was one lately."""
        with self._lock:
            replaced = self._replaced.get(number)
            if replaced is None and number in self._versions:
                return self._rows[self._versions.index(number)]
            return replaced

    def discard(self, weights: ArrayLike) -> None:
        """Merge an updated instance into a random one."""
        self.take(as_weights(weights, self.size))

    def take(self, arrived: Instance) -> None:
        """As `discard`, for weights that `as_weights` returned."""
        with self._lock:
            index = self._discards.among(self.k)
            if self._merge < 1:
                arrived = merged(self._rows[index], arrived, self._merge)
            self._replaced[self._versions[index]] = self._rows[index]
            if len(self._replaced) > self._history:
                self._replaced.popitem(last=False)
            self._rows[index] = _held(arrived)
            self._newest += 1
            self._versions[index] = self._newest

    def weights(self) -> Floats:
        """The average of the instances, for predictions."""
        with self._lock:
            mean: Floats = np.array(self._rows, np.float64).mean(axis=0)
            return mean


def merged(held: Instance, arrived: Instance, share: np.float32) -> Instance:
    """The instance after an answer entered it: in float32, alike in every store."""
    new: Instance = (np.float32(1) - share) * held + share * arrived
    return new


def _held(row: Instance) -> Instance:
    """A row that no other code can write to: a copy, unless the row owns its memory or bytes do."""
    own = row.base is None or isinstance(row.base, bytes)
    kept = row if own and not row.flags.writeable else row.copy()
    kept.flags.writeable = False
    return kept
