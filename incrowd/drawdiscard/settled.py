"""Settled pools, simulated: how far from the mean honest devices' instances are, and how wide the pool is spread then.

The coins of a server are the same for all weights, so a settled pool is one family tree, with noise of its own on every
weight. Many pools are simulated side by side, in units of the scale of the noise.

Two things take long. A pool forgets its start within about (k / 2) (1 + c / (k - 1)) (k + c) updates, c of them in
flight: that is how many updates an instance has behind it since the last ancestor of all, times how long each of them
takes. For k = 20 it is 200, and with c = 100 it is 7,500. So a pool starts with a family tree already: far back,
instances descend from each other as in Kingman's coalescent (1982) whatever the details, and the many noises on a long
branch add up to a normal value. And the test shapes the pool that it guards: it turns away those who drew an instance
that lies far from the others, and with c = 100 nearly all of what it turns away is of that kind. So pools are settled
a second time, behind the test that is to be.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from incrowd._random import Floats, Integers, SeededRandomness, Stream
from incrowd.drawdiscard.fast_noise import BlockNoise, fill_laplace, fill_normal
from incrowd.drawdiscard.pool import stable_variance

Singles = NDArray[np.float32]

MOST_WEIGHTS = 512
STANDING = 256
"""So many weights stand for all where there are more than the most."""

VALUES = 2**14
"""Simulated pools times weights."""

MOST_POOLS = 512
MOST_BURN_IN = 20_000
GAUSSIAN_REACH = np.float32(9)
"""Beyond so many standard deviations lie 10^-19."""

DRAWS = 4
"""So many draws are looked at in each pool at each look."""


@dataclass(frozen=True)
class MovingAverage:
    """How a variance is remembered: looked at every so often, each look counting for so much."""

    between: int
    share: float

    @classmethod
    def of(cls, instances: int, in_flight: int) -> "MovingAverage":
        """Over about k squared / 2 + c updates, looked at every k squared / 8."""
        between = max(1, instances**2 // 8)
        return cls(between, min(1.0, between / (instances**2 / 2 + in_flight)))

    def updated(self, remembered: NDArray[Any], variance: NDArray[Any]) -> NDArray[Any]:
        """What is remembered after one more look."""
        moved: NDArray[Any] = remembered + self.share * (variance - remembered)
        return moved


@dataclass(frozen=True)
class Traffic:
    """Honest devices with noise alone: how many instances and weights there are, and how many others are in flight."""

    noise: Literal["laplace", "gaussian"]
    instances: int
    weights: int
    in_flight: int

    @property
    def update_variance(self) -> float:
        """What an update adds to the variance of a weight."""
        return 1.0 if self.noise == "gaussian" else 2.0

    @property
    def variance(self) -> float:
        """The expected variance of a weight over the instances."""
        return stable_variance(self.instances, self.update_variance, in_flight=self.in_flight)

    @property
    def settles_within(self) -> int:
        """About how many updates it takes a pool to forget what it was."""
        return min(MOST_BURN_IN, round(self.variance / self.update_variance * (self.instances + self.in_flight)))


@dataclass(frozen=True, eq=False)
class Look:
    """Distances from the mean [pools, draws, weights] before the noise of the update, and variances [pools, weights].

    The variances are the present ones or the remembered ones, whichever are larger.
    """

    distances: Singles
    variances: Singles


class Pools:
    """Many pools side by side, [pools, instances, weights], the devices on their way, and the test that they pass.

    The test of more weights than are simulated turns more away: as many as if the others were like these.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        weights = traffic.weights if traffic.weights <= MOST_WEIGHTS else STANDING
        self._count = min(MOST_POOLS, VALUES // weights)
        self._unseen = traffic.weights / weights - 1
        self._rows = np.arange(self._count)
        randomness, name = SeededRandomness(seed=0), (traffic.instances, traffic.weights, traffic.in_flight)
        self._coins = randomness.stream("settled coins", *name)
        self._values = related(traffic, self._count, weights, randomness.stream("settled start", *name))
        sampler = fill_normal if traffic.noise == "gaussian" else fill_laplace
        stream = randomness.stream("settled noise", *name)
        self._noise = BlockNoise(sampler, size=self._count * weights, scale=1.0, stream=stream)
        self._average = MovingAverage.of(traffic.instances, traffic.in_flight)
        self._asked = 0
        self._recompute()
        self._remembered = self._variances()
        self._remember()
        self._waiting = deque(self._draw() for _ in range(traffic.in_flight))

    def settle(self, updates: int, *, t: float) -> None:
        """So many updates, of which those are thrown away that this test turns away."""
        for _ in range(updates):
            self.update(t)

    def looks(self, count: int, *, t: float) -> list[Look]:
        """So many looks, from one memory's length to the next and one update more: before its own look and after."""
        due, looks = deque[Singles](), list[Look]()
        ahead, between = self._traffic.in_flight, self._average.between + 1
        for number in range(ahead + count * between):
            if number % between == 0:  # to be looked at when it arrives
                due.append(self._values[:, :DRAWS].copy())
            if number >= ahead and (number - ahead) % between == 0:
                distances = np.abs(due.popleft() - self._mean[:, None])
                looks.append(Look(distances, np.maximum(self._variances(), self._remembered)))
            self.update(t)
        return looks

    def update(self, t: float) -> None:
        """One device draws, and the one that has waited longest is discarded, if it passes."""
        self._waiting.append(self._draw())
        drawn = self._waiting.popleft()
        arrived = drawn + self._noise.row(0).reshape(drawn.shape)
        places = self._picks()
        if math.isfinite(t):
            band = np.maximum(self._variances(), self._remembered)
            band += np.float32(self._traffic.update_variance)
            np.sqrt(band, out=band)
            band *= np.float32(t)
            passed = (np.abs(arrived - self._mean) <= band).all(axis=1)
            if self._unseen:
                passed &= ~self._turned_away(np.abs(drawn - self._mean), band)
            away = ~passed
            arrived[away] = self._values[away, places[away]]
        self._replace(places, arrived)
        self._asked += 1
        self._remember()

    def _remember(self) -> None:
        """What the test does before it looks at the next one."""
        if self._asked % self._average.between == 0:
            self._recompute()
            self._remembered = self._average.updated(self._remembered, self._variances())

    def _turned_away(self, reach: Singles, band: Singles) -> NDArray[np.bool_]:
        """Whether one of the weights that are not simulated is outside the band."""
        within = kept_within(chance_outside(self._traffic.noise, reach, band), self._unseen * reach.shape[-1])
        uniform = self._coins.bits(self._count).astype(np.float64) * 2.0**-64
        away: NDArray[np.bool_] = uniform >= within
        return away

    def _replace(self, places: Integers, arrived: Singles) -> None:
        """As `pool.Pool` does."""
        replaced = self._values[self._rows, places]
        change = arrived - replaced
        replaced += arrived
        replaced -= self._mean
        self._mean += change * np.float32(1 / self._traffic.instances)
        replaced -= self._mean
        replaced *= change
        self._squares += replaced
        self._values[self._rows, places] = arrived

    def _recompute(self) -> None:
        self._mean = self._values.mean(axis=1)
        self._squares = np.square(self._values - self._mean[:, None]).sum(axis=1)

    def _variances(self) -> Singles:
        variances: Singles = np.maximum(self._squares, np.float32(0)) * np.float32(1 / (self._traffic.instances - 1))
        return variances

    def _draw(self) -> Singles:
        drawn: Singles = self._values[self._rows, self._picks()]
        return drawn

    def _picks(self) -> Integers:
        return (self._coins.bits(self._count) % np.uint64(self._traffic.instances)).astype(np.int64)


def chance_outside(noise: str, reach: Singles, width: Singles) -> Singles:
    """The chance that something at this distance is farther away than this width after its noise."""
    near, far = width - reach, width + reach
    if noise == "gaussian":
        chances = np.zeros_like(near)
        close = near < GAUSSIAN_REACH
        chances[close] = ndtr(-near[close]) + ndtr(-far[close])
        return chances
    half = np.exp(-np.abs(near))
    half *= 0.5
    beyond: Singles = np.exp(-far)
    beyond *= 0.5
    beyond += np.where(near >= 0, half, 1 - half)
    return beyond


def kept_within(outside: Singles, weights: float) -> Floats:
    """The chance that none of so many weights is outside, like these in the last axis.

    A weight that is certainly outside is taken for one that is within once in 2^23.
    """
    kept = np.log1p(-np.minimum(outside, np.float32(1 - 2**-23)))
    within: Floats = np.exp(weights * kept.mean(axis=-1, dtype=np.float64))
    return within


def related(traffic: Traffic, count: int, weights: int, stream: Stream) -> Singles:
    """Instances that descend from each other as in Kingman's coalescent, with the variance of a settled pool.

    While j lineages remain, the time to the next meeting of two is exponential with mean 2 / (j (j - 1)).
    """
    instances = traffic.instances
    values = np.zeros((count, instances, weights), np.float32)
    rows, lineages = np.arange(count), np.tile(np.arange(instances), (count, 1))
    for lineage_count in range(instances, 1, -1):
        times = np.abs(stream.laplaces(count)) * 2 / (lineage_count * (lineage_count - 1))
        steps = (
            stream.normals(count * lineage_count * weights).astype(np.float32).reshape(count, lineage_count, weights)
        )
        steps *= np.sqrt(times * traffic.variance).astype(np.float32)[:, None, None]
        values += steps[rows[:, None], lineages]
        first, second = _pair(stream, count, lineage_count)
        lineages = np.where(lineages == second[:, None], first[:, None], lineages)
        lineages = np.where(lineages == lineage_count - 1, second[:, None], lineages)
    return values


def _pair(stream: Stream, count: int, choices: int) -> tuple[Integers, Integers]:
    """Two different ones of so many, the smaller one first."""
    first = (stream.bits(count) % np.uint64(choices)).astype(np.int64)
    second = (first + 1 + (stream.bits(count) % np.uint64(choices - 1)).astype(np.int64)) % choices
    return np.minimum(first, second), np.maximum(first, second)
