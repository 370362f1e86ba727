"""The spam test: whether an honest device could have sent an instance.

Each weight has to lie within mean +- t * sqrt(spread^2 + sigma^2): its mean and spread over the pool, and sigma^2 is
what an update adds to its variance. On average that is t * sqrt(k / 2 + 1) sigma, as honest updates spread. The spread
is the present one or the remembered one, whichever is larger. (Pihur et al. 2018, section III-D4, have neither sigma
nor memory. Then a pool whose instances have come to agree in one weight turns everyone away, and so stays as it is; and
who drew before that is late.)

A fixed t turns nearly every honest device away where there are many weights, so t is computed from the share of them
that may be. Normal quantiles are not good enough for that: the noise may have the tails of Laplace; the instances
descend from each other, in one and the same way in every weight, so the spread, and how far an instance is from the
mean, come and go together for all weights; and what a device drew may have been replaced before it answers. So pools
are simulated until they are settled, and t is the quantile over many of them; the noise of the update itself is not
sampled but integrated.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr

from incrowd import _validate
from incrowd._random import Floats, SeededRandomness, Stream
from incrowd.drawdiscard.mechanism import Mechanism
from incrowd.drawdiscard.pool import Pool, stable_variance
from incrowd.errors import ConfigError

MOST_SIMULATED_WEIGHTS = 256
SIMULATED = 2**14
"""Simulated pools times weights."""


@dataclass(frozen=True, kw_only=True)
class HonestUpdates:
    """How the update of an honest device differs from the instance that it drew.

    `noise_scale` is the scale (for Gaussian noise the standard deviation) of the noise on a weight; `drift` bounds what
    the gradient adds: gamma times the largest honest gradient. 0 stands for gradients that are small against the noise.
    """

    noise: Literal["laplace", "gaussian"]
    noise_scale: float
    drift: float = 0.0

    def __post_init__(self) -> None:
        _validate.positive(noise_scale=self.noise_scale)
        _validate.non_negative(drift=self.drift)

    @property
    def variance(self) -> float:
        """What the noise of an update adds to the variance of a weight."""
        return (1 if self.noise == "gaussian" else 2) * self.noise_scale**2

    @classmethod
    def of(cls, mechanism: Mechanism, *, gamma: float, gradient: float = 0.0) -> "HonestUpdates":
        """Those of devices that follow a mechanism, with gradients of at most so much a weight."""
        if mechanism.noise == "none":
            raise ConfigError(field="noise", value="none", remedy="without noise there is no spread to test against")
        return cls(noise=mechanism.noise, noise_scale=gamma * mechanism.noise_scale, drift=gamma * gradient)


def spam_threshold(*, instances: int, weights: int, rate: float, honest: HonestUpdates, in_flight: int = 0) -> float:
    """The t with which this share of honest updates is turned away: all weights together, over the long run.

    `in_flight` is how many other devices answer between a device's draw and its discard.

    Guarantee: for honest updates with noise alone and a settled pool, the share turned away is `rate`, to within what
    the simulation leaves uncertain (docs/draw-and-discard.md has measured rates); with gradients of up to the drift it
    is at most that. The same question has the same answer, always.

    Edge cases: one instance has no spread (`ConfigError`). Approximate are: 256 weights stand for more than 256; every
    device takes equally long; what the drift does to the pool is not followed.
    """
    if instances < 2:
        raise ConfigError(field="instances", value=instances, remedy="the test compares instances: keep two or more")
    _validate.count(instances=instances, weights=weights)
    _validate.fraction(rate=rate)
    _validate.natural(in_flight=in_flight)
    looks = min(200, max(40, math.ceil(1.5 / rate)))  # rarer things take longer to see
    question = _Question(honest.noise, instances, weights, in_flight, looks)
    return _threshold(question, rate, round(honest.drift / honest.noise_scale, 12))


class SpamTest:
    """Whether instances may enter a pool.

    It remembers the squared spread of each weight as an average over about k squared / 2 + in_flight updates, looked at
    every k squared / 8.

    Guarantee: a few operations a weight and an instance; see `spam_threshold` for how many honest ones are turned away.

    Edge cases: weights that are not finite are turned away.
    """

    def __init__(self, pool: Pool, *, threshold: float, honest: HonestUpdates, in_flight: int = 0) -> None:
        _validate.positive(threshold=threshold)
        _validate.natural(in_flight=in_flight)
        self.pool = pool
        self.threshold = threshold
        self.honest = honest
        self._memory = _Memory.of(pool.k, in_flight)
        self._remembered = np.square(pool.mean_and_spread()[1])
        self._asked = 0

    def accepts(self, weights: Floats) -> bool:
        """Whether an honest device may well have sent this."""
        mean, spread = self.pool.mean_and_spread()
        variance = np.square(spread)
        if self._asked % self._memory.between == 0:
            self._remembered = self._memory.updated(self._remembered, variance)
        self._asked += 1
        width = self.threshold * np.sqrt(np.maximum(variance, self._remembered) + self.honest.variance)
        return bool((np.abs(weights - mean) <= width).all())


@dataclass(frozen=True)
class _Memory:
    """How a variance is remembered: looked at every so often, each look counting for so much."""

    between: int
    share: float

    @classmethod
    def of(cls, instances: int, in_flight: int) -> "_Memory":
        between = max(1, instances**2 // 8)
        return cls(between, min(1.0, between / (instances**2 / 2 + in_flight)))

    def updated(self, remembered: Floats, variance: Floats) -> Floats:
        return remembered + self.share * (variance - remembered)


@dataclass(frozen=True)
class _Question:
    noise: Literal["laplace", "gaussian"]
    instances: int
    weights: int
    in_flight: int
    looks: int


@lru_cache(maxsize=64)
def _threshold(question: _Question, rate: float, drift: float) -> float:
    """`spam_threshold`, in units of the scale of the noise: first without, then with what the test does to the pool."""
    first = _quantile(question, rate, drift, pools_tested_with=math.inf)
    return _quantile(question, rate, drift, pools_tested_with=first)


def _quantile(question: _Question, rate: float, drift: float, *, pools_tested_with: float) -> float:
    distances, bands = _settled(question, pools_tested_with)
    reach = np.abs(distances) + drift

    def excess(log_t: float) -> float:
        outside = np.minimum(_outside(question.noise, reach, math.exp(log_t) * bands), 1.0)
        with np.errstate(divide="ignore"):  # a weight that is certainly outside
            kept = question.weights * np.log1p(-outside).mean(axis=1)
        return float(-np.expm1(kept).mean()) - rate

    high = math.log(2.0)
    while excess(high) > 0:
        high += math.log(2.0)
    low = high - math.log(2.0)
    while excess(low) < 0:
        low -= math.log(2.0)
    return math.exp(brentq(excess, low, high, xtol=1e-3))


@lru_cache(maxsize=4)
def _settled(question: _Question, threshold: float) -> tuple[Floats, Floats]:
    """How far what arrives was from the mean before its noise, and the width of the band for t = 1: a row a look.

    A column a weight, in units of the scale of the noise. Many pools side by side, with honest noise alone.
    """
    instances, in_flight = question.instances, question.in_flight
    weights = min(question.weights, MOST_SIMULATED_WEIGHTS)
    stream = SeededRandomness(seed=0).stream("spam test", instances, weights, in_flight)
    variance = 1.0 if question.noise == "gaussian" else 2.0
    count = min(512, SIMULATED // weights)
    start = math.sqrt(stable_variance(instances, variance)) * stream.normals(count * instances * weights)
    pools = _Pools(start.reshape(count, instances, weights))
    memory = _Memory.of(instances, in_flight)
    burn_in = 2 * instances**2 + 4 * in_flight
    waiting = [pools.draw(stream) for _ in range(in_flight)]
    remembered, looks, number = pools.variance(), list[tuple[Floats, Floats]](), 0
    while len(looks) < question.looks:
        waiting.append(pools.draw(stream))
        drawn, now, mean = waiting.pop(0), pools.variance(), pools.sums / instances
        if number % memory.between == 0:
            remembered = memory.updated(remembered, now)
        band = np.sqrt(np.maximum(now, remembered) + variance)
        if number >= burn_in and number % (memory.between + 1) == 0:  # sooner and later after the memory's own look
            looks.append((drawn - mean, band))
        size = count * weights
        values = stream.normals(size) if question.noise == "gaussian" else stream.laplaces(size)
        arrived = drawn + values.reshape(count, weights)
        pools.discard(arrived, (np.abs(arrived - mean) <= threshold * band).all(axis=1), stream)
        number += 1
    distances, bands = zip(*looks, strict=True)
    return np.concatenate(distances), np.concatenate(bands)


class _Pools:
    """Many pools side by side: [pools, instances, weights], and the sums and sums of squares over the instances."""

    def __init__(self, values: Floats) -> None:
        self.values = values
        self.sums = values.sum(axis=1)
        self.squares = np.square(values).sum(axis=1)
        self._rows = np.arange(len(values))

    def variance(self) -> Floats:
        instances = self.values.shape[1]
        variance: Floats = np.maximum(self.squares - np.square(self.sums) / instances, 0.0) / (instances - 1)
        return variance

    def draw(self, stream: Stream) -> Floats:
        drawn: Floats = self.values[self._rows, _picks(stream, *self.values.shape[:2])]
        return drawn

    def discard(self, arrived: Floats, accepted: NDArray[np.bool_], stream: Stream) -> None:
        places = _picks(stream, *self.values.shape[:2])
        replaced = self.values[self._rows, places]
        arrived = np.where(accepted[:, None], arrived, replaced)
        self.sums += arrived - replaced
        self.squares += np.square(arrived) - np.square(replaced)
        self.values[self._rows, places] = arrived


def _picks(stream: Stream, count: int, instances: int) -> NDArray[np.int64]:
    return (stream.bits(count) % np.uint64(instances)).astype(np.int64)


def _outside(noise: str, reach: Floats, width: Floats) -> Floats:
    """The chance that something at this distance is farther away than this width after its noise."""
    near, far = width - reach, width + reach
    if noise == "gaussian":
        return np.asarray(ndtr(-near) + ndtr(-far))
    half = np.exp(-np.abs(near)) / 2
    return np.where(near >= 0, half, 1 - half) + np.exp(-far) / 2
