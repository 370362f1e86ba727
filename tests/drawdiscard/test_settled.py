import math
from dataclasses import replace

import numpy as np
import pytest

from incrowd._random import Floats, SeededRandomness
from incrowd.drawdiscard.pool import Pool
from incrowd.drawdiscard.settled import Look, MovingAverage, Pools, Traffic, kept_within, related
from incrowd.drawdiscard.spam import HonestUpdates, SpamTest

TRAFFIC = Traffic("laplace", 4, 16, 6)


def settled(traffic: Traffic, *, count: int = 30, t: float = math.inf) -> list[Look]:
    pools = Pools(traffic)
    pools.settle(traffic.settles_within, t=t)
    return pools.looks(count, t=t)


def one_pool(traffic: Traffic, *, updates: int, t: float) -> tuple[float, float]:
    """The slow twin: the mean square of the distances, and of the larger variances, of one pool and its test."""
    randomness = SeededRandomness(seed=8)
    noise = randomness.stream("noise")
    pool = Pool.initial(
        np.zeros(traffic.weights), instances=traffic.instances, update_variance=2.0, randomness=randomness
    )
    honest = HonestUpdates(noise="laplace", noise_scale=1.0)
    test = SpamTest(pool, threshold=t, honest=honest, in_flight=traffic.in_flight)
    waiting, distances, variances = list[Floats](), 0.0, 0.0
    settling = 3 * traffic.settles_within
    for number in range(updates + settling):
        waiting.append(pool.draw())
        if number < traffic.in_flight:
            continue
        drawn = waiting.pop(0)
        mean, spread = pool.mean_and_spread()
        passed = test.accepts(drawn + (arrived := noise.laplaces(traffic.weights)))
        if passed:
            pool.discard(drawn + arrived)
        if number >= settling:
            distances += float(np.square(drawn - mean).mean())
            remembered = test.snapshot().remembered
            assert remembered is not None
            variances += float(np.maximum(np.square(spread), remembered).mean())
    return distances / updates, variances / updates


@pytest.mark.parametrize("t", [1e9, 2.6])
def test_many_settled_pools_look_like_one_over_a_long_time(t: float) -> None:
    """The same where the test turns one in ten away, and thereby narrows the pool."""
    looks = settled(TRAFFIC, t=t)
    distances, variances = one_pool(TRAFFIC, updates=30_000, t=t)
    assert np.mean([np.square(look.distances).mean() for look in looks]) == pytest.approx(distances, rel=0.08)
    assert np.mean([look.variances.mean() for look in looks]) == pytest.approx(variances, rel=0.08)
    for wrong in (replace(TRAFFIC, in_flight=2), replace(TRAFFIC, in_flight=18)):
        others = settled(wrong, t=t)
        assert abs(np.mean([look.variances.mean() for look in others]) / variances - 1) > 0.16


def test_a_test_narrows_the_pools_that_it_guards() -> None:
    free, guarded = (np.mean([look.variances.mean() for look in settled(TRAFFIC, t=t)]) for t in (math.inf, 2.6))
    assert guarded < 0.8 * free


def test_related_instances_vary_as_those_of_a_settled_pool() -> None:
    traffic = replace(TRAFFIC, instances=20)
    values = related(traffic, 3000, 4, SeededRandomness(seed=2).stream("start"))
    assert values.shape == (3000, 20, 4)
    assert values.var(axis=1, ddof=1).mean() == pytest.approx(traffic.variance, rel=0.05)
    # Most have a near relative, as independent instances have not.
    nearest = np.sort(np.square(values - values[:, :1]).mean(axis=2), axis=1)[:, 1].mean()
    independent = np.sqrt(traffic.variance) * SeededRandomness(seed=3).stream("x").normals(values.size)
    others = independent.reshape(values.shape)
    assert nearest < 0.6 * np.sort(np.square(others - others[:, :1]).mean(axis=2), axis=1)[:, 1].mean()


def test_weights_that_stand_for_others_turn_away_as_many() -> None:
    outside = np.array([[0.0, 0.1], [0.5, 0.0]], np.float32)
    np.testing.assert_allclose(kept_within(outside, 2), [0.9, 0.5], rtol=1e-6)
    np.testing.assert_allclose(kept_within(outside, 6), [0.9**3, 0.5**3], rtol=1e-6)
    assert 0 < kept_within(np.ones((1, 2), np.float32), 2)[0] < 1e-12


def test_a_memory_counts_each_look() -> None:
    memory = MovingAverage.of(20, 100)
    assert (memory.between, memory.share) == (50, 50 / 300)
    assert MovingAverage.of(2, 0) == MovingAverage(1, 0.5)
    np.testing.assert_allclose(memory.updated(np.array([1.0, 2.0]), np.array([7.0, 2.0])), [2.0, 2.0])


def test_a_pool_forgets_more_slowly_with_devices_in_flight() -> None:
    assert replace(TRAFFIC, instances=20, in_flight=0).settles_within == 200
    assert replace(TRAFFIC, instances=20, in_flight=100).settles_within == 7516
    assert replace(TRAFFIC, instances=20, in_flight=10**6).settles_within == 20_000
