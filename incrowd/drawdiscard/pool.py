"""The pool: k instances of one model (Pihur et al. 2018), and the versions that they lately replaced.

A device draws an instance, each with the same chance; what it sends back is merged into one, each with the same chance
again. Nothing joins the draw with its discard. Every instance that enters is a version with a number of its own, and
the last replaced versions are kept for a while: an answer is compared with the version that it descends from.
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

Instance = NDArray[np.float32]
"""The weights of an instance: as devices get them, as the pool holds them, as files keep them."""

LARGEST = 1e30
"""A weight beyond this has no place in a pool: its square, summed up over instances, must be a number with room."""

HISTORY = 256
"""So many replaced versions are kept."""


def as_weights(given: ArrayLike, size: int, *, largest: float = LARGEST) -> Instance:
    """So many finite weights in float32, each at most the largest; `given` itself where it is that.

    What has another shape is refused (`DataError`) before anything is computed or copied.
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
        weights: Instance = numbers.astype(np.float32, copy=False)  # too large is told below
    if not (np.abs(weights) <= np.float32(largest)).all():  # NaN is not, either
        raise DataError(f"an instance is {size} finite numbers of at most {largest:g}")
    return weights


def stable_variance(instances: int, update_variance: float, *, in_flight: int = 0, merge: float = 1.0) -> float:
    """The variance of a weight over the instances that updates of this variance neither raise nor lower.

    That is (k / 2) sigma^2, with k - 1 in the denominator of the variance over the instances (Pihur et al. 2018,
    theorem 1). One update brings the expected variance nearer to it by a factor of 1 - 2 / k^2.

    Where an answer is merged by a share m it is m sigma^2 / (2 (1 - m + m / k)): an update moves one instance towards
    another by m and adds m^2 sigma^2, and these two are in balance there.

    Where c others arrive between a draw and its discard, it is (k / 2) (1 + c / (k - 1)) sigma^2: for two instances
    meet in a common ancestor only if one was drawn from the other, and then each has k / 2 + c k / (2 (k - 1))
    updates behind it on average.
    """
    _validate.count(instances=instances)
    _validate.non_negative(update_variance=update_variance)
    _validate.natural(in_flight=in_flight)
    check_share(merge)
    if instances == 1:
        return 0.0
    if merge < 1:
        return merge * update_variance / (2 * (1 - merge + merge / instances))
    return instances / 2 * (1 + in_flight / (instances - 1)) * update_variance


def check_share(merge: float) -> None:
    """Refuse a share of an answer that is not in (0, 1]."""
    if not 0 < merge <= 1:
        raise ConfigError(field="merge", value=merge, remedy="give a share above 0, and at most 1, which overwrites")


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolState:
    """A pool at one moment: all that it goes on from, but for where its randomness comes from.

    `last` is the last version number that may have been given to any row; `replaced` are the versions that were
    replaced lately, oldest first.
    """

    rows: Sequence[Instance]
    versions: Sequence[int]
    replaced: Mapping[int, Instance]
    draws: int
    discards: int
    last: int = 0


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


class Pool:
    """k instances of a model with so many weights, safe to share between threads.

    `merge` is the share of an answer in the instance that it enters (1 replaces it), and `history` how many replaced
    versions are kept.

    Guarantee: a draw gives a uniformly random instance, a discard enters a uniformly random one, and the two choices
    are independent; both come from the named streams ``draw`` and ``discard``. Rows are given out read-only and never
    change: an answer makes a new one. Under seeded randomness a restored pool goes on exactly like the one that was
    saved, to the last bit.
    """

    def __init__(
        self,
        instances: ArrayLike,
        *,
        randomness: Randomness,
        merge: float = 1.0,
        history: int = HISTORY,
    ) -> None:
        given = np.asarray(instances)
        if given.ndim != 2 or 0 in given.shape:
            raise ConfigError(
                field="instances", value=given.shape, remedy="give one row an instance, one column a weight"
            )
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
        """A pool around starting weights, each weight spread over the instances as it will stay.

        `update_variance` is the variance of the noise that one update adds to a weight; the stream is
        ``initialisation``.
        """
        centre = np.asarray(start, dtype=np.float64)
        spread = math.sqrt(stable_variance(instances, update_variance, merge=keys.get("merge", 1.0)))
        normals = randomness.stream("initialisation").normals(instances * centre.size)
        return cls(centre + spread * normals.reshape(instances, centre.size), randomness=randomness, **keys)

    @classmethod
    def restore(cls, state: PoolState, *, randomness: Randomness, lost: int = 0, **keys: Any) -> "Pool":
        """The pool that was in this state; merge and history are for the caller to give again.

        So many versions may have been `lost` since: their numbers are given to no other row.
        """
        pool = cls(np.array(state.rows), randomness=randomness, **keys)
        pool._versions = list(state.versions)
        pool._newest = max(state.last, *pool._versions) + lost
        pool._replaced = OrderedDict((version, _held(row)) for version, row in state.replaced.items())
        pool._draws = Picks(randomness, "draw", taken=state.draws)
        pool._discards = Picks(randomness, "discard", taken=state.discards)
        return pool

    def state(self) -> PoolState:
        """Everything to go on from here."""
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
        """The weights of all instances, a row each."""
        with self._lock:
            return np.array(self._rows, np.float32)

    @property
    def discards(self) -> int:
        """How many updates entered so far."""
        return self._discards.taken

    @property
    def k(self) -> int:
        """How many instances there are."""
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
        """The row of a version, if it is one of the instances or was replaced lately."""
        with self._lock:
            replaced = self._replaced.get(number)
            if replaced is None and number in self._versions:
                return self._rows[self._versions.index(number)]
            return replaced

    def discard(self, weights: ArrayLike) -> None:
        """Merge an updated instance into a random one."""
        self.take(as_weights(weights, self.size))

    def take(self, arrived: Instance) -> None:
        """As `discard`, of what `as_weights` gave: it is not looked at again."""
        with self._lock:
            index = self._discards.among(self.k)
            if self._merge < 1:
                arrived = merged(self._rows[index], arrived, self._merge)
            if self._history:
                self._replaced[self._versions[index]] = self._rows[index]
                if len(self._replaced) > self._history:
                    self._replaced.popitem(last=False)
            self._rows[index] = _held(arrived)
            self._newest += 1
            self._versions[index] = self._newest

    def weights(self) -> Floats:
        """The weights to predict with: the average of the instances."""
        with self._lock:
            mean: Floats = np.array(self._rows, np.float64).mean(axis=0)
            return mean


def merged(held: Instance, arrived: Instance, share: np.float32) -> Instance:
    """What becomes of an instance that an answer enters, in float32, the same wherever it is computed."""
    new: Instance = (np.float32(1) - share) * held + share * arrived
    return new


def _held(row: Instance) -> Instance:
    """A row that nobody else can write to: itself, where its memory is its own or that of bytes."""
    own = row.base is None or isinstance(row.base, bytes)
    kept = row if own and not row.flags.writeable else row.copy()
    kept.flags.writeable = False
    return kept
