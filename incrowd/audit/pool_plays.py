"""A pool that a device of one of two tables contributes to, among others, and what is seen of it afterwards.

The pool is the product's own: its start, draws, discards, merging and averages over time; the contributions are those
of `device_plays`. Many games are played side by side in one pool, each in weights of its own. They share the server's
coins and nothing else. Given these coins the games are independent of each other, and the promise holds whatever the
coins are: so counts of right answers err no more than those of independent trials with the same mean (Hoeffding 1956),
and bounds against what is promised are valid.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats, Integers, SeededRandomness, Stream
from incrowd.audit.device_plays import DeviceGame, DevicePlay
from incrowd.drawdiscard.outbox import stepped
from incrowd.drawdiscard.pool import Pool
from incrowd.privacy.mechanism.grid import Whole

_GAMES = 100
"""So many games share a pool at most: of the server's coins there should be many, too."""

_PAIRS = 4_000_000
_ALL_PAIRS = 2_000_000_000
"""So many differences of instances are looked at, at once and in all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolSeen:
    """What could be seen of the games in one pool: all instances [k, games, numbers] and the averages [games, numbers],
    `before` the device's answer came in, right `after` that, and `later`, when as many others had answered again. The
    answer entered the instance `entered`, which nobody was told; `one` is the instance that a later device draws.
    """

    before: Floats
    after: Floats
    later: Floats
    averages: Sequence[Floats]
    entered: int
    one: int


@dataclass(frozen=True, kw_only=True)
class PoolGame:
    """The game against the pool of one specification, with so many `others` before and after the device."""

    device: DeviceGame
    others: int

    @cached_property
    def numbers(self) -> int:
        """How many weights the model has that is attacked: as many as a contribution of the game."""
        return self.device.mechanism.size

    @property
    def instances(self) -> int:
        """How many instances the pool has."""
        return self.device.specification.instances

    def trials(self, play: DevicePlay) -> int:
        """How many of a play's contributions are followed through a pool."""
        return max(1, min(len(play.inside), _ALL_PAIRS // (self.instances**2 * self.numbers)))

    def seen(self, play: DevicePlay, *, seed: int) -> Iterator[tuple[PoolSeen, NDArray[np.bool_]]]:
        """Pool after pool, what was seen, and in which games the device had the first table."""
        together = max(1, min(_GAMES, _PAIRS // (self.instances**2 * self.numbers)))
        trials = self.trials(play)
        for number, start in enumerate(range(0, trials, together)):
            games = slice(start, min(start + together, trials))
            randomness = SeededRandomness(seed=seed * 1_000_003 + number)
            yield self._played(play.steps[games], play.step, randomness), play.inside[games]

    def _played(self, steps: Integers, step: float, randomness: SeededRandomness) -> PoolSeen:
        asked, games = self.device.specification, len(steps)
        pool = Pool.initial(
            np.zeros(steps.size),
            instances=asked.instances,
            update_variance=asked.gamma**2 * self.device.mechanism.noise_variance,
            randomness=randomness,
            merge=asked.merge,
            tail=asked.tail,
        )

        noise = randomness.stream("others")
        self._others(pool, noise)
        before, looked, versions = _rows(pool, games), pool.weights(), pool.snapshot().versions
        pool.discard(stepped(pool.draw(), Whole(steps.ravel(), step), gamma=asked.gamma))
        after, looked_after = _rows(pool, games), pool.weights()
        entered = int(np.argmax(pool.snapshot().versions != versions))
        self._others(pool, noise)
        averages = [look.reshape(games, -1) for look in (looked, looked_after, pool.weights())]
        return PoolSeen(
            before=before,
            after=after,
            later=_rows(pool, games),
            averages=averages,
            entered=entered,
            one=pool.draw_index()[0],
        )

    def _others(self, pool: Pool, noise: Stream) -> None:
        """As many others contribute, each noise alone, as a device without examples does."""
        mechanism, gamma = self.device.mechanism, self.device.specification.gamma
        drawn = noise.laplaces if mechanism.noise == "laplace" else noise.normals
        for _ in range(self.others):
            step = gamma * mechanism.noise_scale * drawn(pool.size)
            pool.discard((pool.draw() - step).astype(np.float32))


def _rows(pool: Pool, games: int) -> Floats:
    """All instances, game by game."""
    return np.array([pool.instance(index) for index in range(pool.k)], np.float64).reshape(pool.k, games, -1)
