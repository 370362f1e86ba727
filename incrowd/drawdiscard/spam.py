"""The spam test: whether an honest device could have sent an instance.

Each weight has to lie within mean +- t * sqrt(spread^2 + sigma^2): its mean and spread over the pool, and sigma^2 is
what an update adds to its variance. With nobody else in flight that is about t * sqrt(k / 2 + 1) sigma, as honest
updates spread. The spread is the present one or the remembered one, whichever is larger. (Pihur et al. 2018, section
III-D4, have neither sigma nor memory. Then a pool whose instances have come to agree in one weight turns everyone away,
and so stays as it is; and who drew before that is late.)

A fixed t turns nearly every honest device away where there are many weights, so t is computed from the share of them
that may be. Normal quantiles are not good enough for that: the noise may have the tails of Laplace; the instances
descend from each other, in one and the same way in every weight, so the spread, and how far an instance is from the
mean, come and go together for all weights; and what a device drew may have been replaced before it answers. So settled
pools are simulated (`settled`), and t is the quantile over many of them; the noise of the update itself is not sampled
but integrated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import RLock
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from incrowd import _validate
from incrowd.drawdiscard.pool import Pool, Snapshot, as_weights
from incrowd.drawdiscard.settled import Look, MovingAverage, Pools, Traffic, chance_outside, kept_within
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism.device import Mechanism


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
    def of(cls, mechanism: Mechanism, *, gamma: float, gradient: float | None = None) -> "HonestUpdates":
        """Those of devices that follow a mechanism, with gradients of at most so much a weight: the clip, or less.

        Edge cases: 0 stands for gradients that are small against the noise; where they are not (a large epsilon), the
        test would turn every honest device away.
        """
        if mechanism.noise == "none":
            raise ConfigError(field="noise", value="none", remedy="without noise there is no spread to test against")
        largest = mechanism.clip if gradient is None else gradient
        return cls(noise=mechanism.noise, noise_scale=gamma * mechanism.noise_scale, drift=gamma * largest)


def spam_threshold(*, instances: int, weights: int, rate: float, honest: HonestUpdates, in_flight: int = 0) -> float:
    """The t with which this share of honest updates is turned away: all weights together, over the long run.

    `in_flight` is how many other devices answer between a device's draw and its discard.

    Guarantee: for honest updates with noise alone and a settled pool, the share turned away is `rate`, to within what
    the simulation leaves uncertain (docs/draw-and-discard.md has measured rates); with gradients of up to the drift it
    is at most that. The same question has the same answer, always.

    Edge cases: one instance has no spread (`ConfigError`). Approximate are: 256 weights stand for more than 512; every
    device takes equally long; what the drift does to the pool is not followed, nor, with so many in flight that a pool
    takes more than 20,000 updates to settle, all that the test does to it.
    """
    if instances < 2:
        raise ConfigError(field="instances", value=instances, remedy="the test compares instances: keep two or more")
    _validate.count(instances=instances, weights=weights)
    _validate.fraction(rate=rate)
    _validate.natural(in_flight=in_flight)
    traffic = Traffic(honest.noise, instances, weights, in_flight)
    return _threshold(traffic, rate, round(honest.drift / honest.noise_scale, 12))


class SpamTest:
    """Whether instances may enter a pool; safe to share between threads.

    It remembers the squared spread of each weight as an average over about k squared / 2 + in_flight updates, looked at
    every k squared / 8.

    Guarantee: a few operations a weight and an instance; see `spam_threshold` for how many honest ones are turned away.
    Restored from its snapshot, with the pool restored from the same one, it goes on bit for bit.

    Edge cases: what is not one row of as many finite numbers is turned away before anything is computed. A snapshot of
    the pool alone holds no memory: the test starts with the present spread, as a new one does. A memory of other
    weights is refused (`DataError`).
    """

    def __init__(
        self,
        pool: Pool,
        *,
        threshold: float,
        honest: HonestUpdates,
        in_flight: int = 0,
        snapshot: Snapshot | None = None,
    ) -> None:
        _validate.positive(threshold=threshold)
        _validate.natural(in_flight=in_flight)
        self.pool = pool
        self.threshold = threshold
        self.honest = honest
        self._average = MovingAverage.of(pool.k, in_flight)
        self._lock = RLock()
        if snapshot is None or snapshot.remembered is None:
            self._remembered, self._asked = np.square(pool.mean_and_spread()[1]), 0
        elif snapshot.remembered.shape != (pool.size,):
            raise DataError(f"a memory of {snapshot.remembered.shape} does not fit a pool of {pool.size} weights")
        else:
            self._remembered, self._asked = snapshot.remembered.copy(), snapshot.asked

    def accepts(self, weights: ArrayLike) -> bool:
        """Whether an honest device may well have sent this."""
        try:
            arrived = as_weights(weights, self.pool.size)
        except DataError:
            return False
        with self._lock:
            mean, spread = self.pool.mean_and_spread()
            variance = np.square(spread)
            if self._asked % self._average.between == 0:
                self._remembered = self._average.updated(self._remembered, variance)
            self._asked += 1
            width = self.threshold * np.sqrt(np.maximum(variance, self._remembered) + self.honest.variance)
        return bool((np.abs(arrived - mean) <= width).all())

    def snapshot(self) -> Snapshot:
        """The pool's snapshot, with what this test remembers."""
        with self._lock:
            return replace(self.pool.snapshot(), remembered=self._remembered.copy(), asked=self._asked)


@lru_cache(maxsize=64)
def _threshold(traffic: Traffic, rate: float, drift: float) -> float:
    """`spam_threshold`, in units of the scale of the noise: first without, then with what the test does to the pool."""
    pools = Pools(traffic)
    pools.settle(traffic.instances**2 + 4 * (traffic.instances + traffic.in_flight), t=math.inf)
    first = _quantile(traffic, rate, drift, pools.looks(15, t=math.inf))
    pools.settle(traffic.instances**2 + traffic.settles_within, t=first)
    count = min(200, max(50, math.ceil(0.5 / rate)))  # rarer things take longer to see
    return _quantile(traffic, rate, drift, pools.looks(count, t=first))


def _quantile(traffic: Traffic, rate: float, drift: float, looks: Sequence[Look]) -> float:
    """The t that turns this share of them away."""
    bands = [np.sqrt(look.variances + np.float32(traffic.update_variance))[:, None] for look in looks]
    reaches = [look.distances + np.float32(drift) for look in looks]

    def excess(logarithm: float) -> float:
        t = np.float32(math.exp(logarithm))
        kept = [
            kept_within(chance_outside(traffic.noise, reach, t * band), traffic.weights).mean()
            for reach, band in zip(reaches, bands, strict=True)
        ]
        return math.log(max(1 - float(np.mean(kept)), 1e-300) / rate)

    low = high = math.log(4.0)
    step = 0.1
    while excess(high) > 0:
        low, high, step = high, high + step, 2 * step
    while excess(low) < 0:
        low, high, step = low - step, low, 2 * step
    return math.exp(brentq(excess, low, high, xtol=5e-4))
