import threading
from collections import deque
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save
from scipy import stats

from incrowd._random import Floats, SeededRandomness, SystemRandomness
from incrowd.drawdiscard.glm import LOGISTIC, Glm
from incrowd.drawdiscard.pool import LARGEST, RECOMPUTED_EVERY, Picks, Pool, Snapshot, stable_variance
from incrowd.errors import ConfigError, DataError
from tests.statistics import ODD, chi_square

SEEDED = SeededRandomness(seed=5)


def pool_of(instances: int, size: int = 3, *, seed: int = 5) -> Pool:
    values = SeededRandomness(seed=seed).stream("values").normals(instances * size)
    return Pool(values.reshape(instances, size), randomness=SeededRandomness(seed=seed))


def updates(count: int, size: int, *, seed: int = 6) -> Floats:
    return SeededRandomness(seed=seed).stream("updates").normals(count * size).reshape(count, size)


@given(instances=st.integers(1, 5), size=st.integers(1, 4), scale=st.sampled_from([1e-6, 1.0, 1e6]))
def test_mean_and_spread_are_those_of_the_instances(instances: int, size: int, scale: float) -> None:
    pool = Pool(scale * pool_of(instances, size).snapshot().instances, randomness=SEEDED)
    for update in scale * updates(30, size):
        pool.discard(update)
        held = pool.snapshot().instances
        mean, spread = pool.mean_and_spread()
        np.testing.assert_allclose(mean, held.mean(axis=0), atol=1e-12 * scale)
        expected = held.std(axis=0, ddof=1) if instances > 1 else np.zeros(size)
        np.testing.assert_allclose(spread, expected, rtol=1e-6, atol=1e-7 * scale)


def test_rounding_does_not_add_up() -> None:
    """The instances stay close together and far from 0, where the running sums alone would drift."""
    pool = Pool(np.full((2, 1), 1e6), randomness=SEEDED)
    values = 1e6 + 1e-3 * updates(1000, 1)
    for number in range(20 * RECOMPUTED_EVERY):
        pool.replace(number % 2, values[number % 1000])
    held = pool.snapshot().instances
    assert pool.mean_and_spread()[1][0] == pytest.approx(held.std(axis=0, ddof=1)[0], rel=1e-6)


def test_between_exact_computations_the_running_sums_are_used() -> None:
    pool = pool_of(3)
    pool.replace(0, np.zeros(3))
    pool._instances += 1.0  # behind its back: the next exact computation sees it, the running sums do not
    assert pool.weights()[0] != pytest.approx(pool._instances.mean(axis=0)[0])
    for _ in range(RECOMPUTED_EVERY):
        pool.replace(0, np.zeros(3))
    assert pool.weights()[0] == pytest.approx(pool._instances.mean(axis=0)[0])


def test_draws_and_discards_are_fair_and_independent() -> None:
    pool = Pool(np.zeros((4, 1)), randomness=SEEDED)
    pairs = np.array([(pool.draw_index()[0], pool.choose()) for _ in range(16_000)])
    counts = np.bincount(4 * pairs[:, 0] + pairs[:, 1], minlength=16)
    assert chi_square(counts, np.ones(16)) > ODD
    tilted = counts.copy()
    tilted[0] += 300  # the check would see a pair that is 30 % too frequent
    assert chi_square(tilted, np.ones(16)) < ODD


def test_a_drawn_instance_is_a_copy() -> None:
    pool = pool_of(3)
    before = pool.snapshot().instances
    for given_out in (pool.draw(), pool.instance(0), pool.weights(), pool.snapshot().instances):
        given_out[...] = 1.0
    np.testing.assert_array_equal(pool.snapshot().instances, before)


def test_a_discard_replaces_one_instance() -> None:
    pool = pool_of(5)
    before = pool.snapshot().instances
    update = np.array([7.0, 8.0, 9.0])
    pool.discard(update)
    after = pool.snapshot().instances
    changed = (before != after).any(axis=1)
    assert changed.sum() == 1
    np.testing.assert_array_equal(after[changed][0], update)


def test_a_restored_pool_goes_on_like_the_one_that_was_saved() -> None:
    whole, update = pool_of(4), updates(300, 3)
    for number in range(100):
        whole.discard(whole.draw() + update[number])
    resumed = Pool.restore(whole.snapshot(), randomness=SeededRandomness(seed=5))
    for number in range(100, 300):
        whole.discard(whole.draw() + update[number])
        resumed.discard(resumed.draw() + update[number])
    np.testing.assert_array_equal(whole.snapshot().instances, resumed.snapshot().instances)
    for kept, again in zip(whole.mean_and_spread(), resumed.mean_and_spread(), strict=True):
        np.testing.assert_array_equal(kept, again)


def test_a_snapshot_travels_as_plain_numbers() -> None:
    pool = pool_of(4)
    pool.discard(pool.draw())
    bare = pool.snapshot()
    for snapshot in (bare, replace(bare, remembered=np.array([1.0, 2.0, 1 / 3]), asked=9)):
        again = Snapshot.from_bytes(snapshot.to_bytes())
        for field in fields(Snapshot):
            np.testing.assert_array_equal(getattr(again, field.name), getattr(snapshot, field.name))
    assert (bare.draws, bare.discards, bare.replaced) == (1, 1, 1)


def test_bytes_that_are_no_snapshot_are_refused() -> None:
    good = pool_of(2).snapshot()
    whole = good.to_bytes()
    bad = (
        {"draws": -1},
        {"asked": -1},
        {"instances": np.zeros((2, 3), np.float32)},
        {"instances": np.zeros(3)},
        {"instances": np.full((2, 3), np.nan)},
        {"mean": np.zeros(2)},
        {"squares": np.full(3, np.inf)},
        {"remembered": np.zeros(4)},
    )
    surplus = save({"instances": np.zeros((2, 2)), "counts": np.zeros(4, np.int64), "other": np.zeros(2)})
    contents = [replace(good, **change).to_bytes() for change in bad]
    for content in (b"", whole[:-1], b"x" * 100, save({"instances": np.zeros((2, 2))}), surplus, *contents):
        with pytest.raises(DataError, match="no snapshot"):
            Snapshot.from_bytes(content)


def test_devices_in_flight_spread_the_pool() -> None:
    """The variance that a pool keeps where others arrive between a draw and its discard."""
    instances, weights, in_flight = 5, 4000, 8
    pool = Pool.initial(np.zeros(weights), instances=instances, update_variance=1.0, randomness=SEEDED)
    noise, waiting, seen = SEEDED.stream("noise"), deque[Floats](), []
    for number in range(6000):
        waiting.append(pool.draw() + noise.normals(weights))
        if len(waiting) > in_flight:
            pool.discard(waiting.popleft())
        if number >= 1000:
            seen.append(float(np.square(pool.mean_and_spread()[1]).mean()))
    blocks = np.array(seen).reshape(10, -1).mean(axis=1)
    error = 3 * blocks.std(ddof=1) / np.sqrt(10)
    assert abs(blocks.mean() - stable_variance(instances, 1.0, in_flight=in_flight)) < error
    for wrong in (0, in_flight // 2, 2 * in_flight):
        assert abs(blocks.mean() - stable_variance(instances, 1.0, in_flight=wrong)) > error


@pytest.mark.parametrize("taken", [0, 1, Picks.BLOCK - 1, Picks.BLOCK, Picks.BLOCK + 1])
def test_picks_go_on_from_their_count(taken: int) -> None:
    whole = Picks(SEEDED, "draw")
    expected = [whole.among(10) for _ in range(taken + 5)][taken:]
    resumed = Picks(SEEDED, "draw", taken=taken)
    assert [resumed.among(10) for _ in range(5)] == expected


def test_the_pool_starts_with_the_variance_that_it_keeps() -> None:
    pool = Pool.initial(np.full(4000, 3.0), instances=10, update_variance=0.5, randomness=SEEDED)
    deviations = ((pool.snapshot().instances - 3.0) / np.sqrt(10 / 2 * 0.5)).ravel()
    assert stats.kstest(deviations, "norm").pvalue > ODD
    assert stats.kstest(deviations * 1.5, "norm").pvalue < ODD


def test_one_instance_or_no_noise_start_at_the_starting_weights() -> None:
    start = np.array([1.0, 2.0])
    one = Pool.initial(start, instances=1, update_variance=9.0, randomness=SEEDED)
    np.testing.assert_array_equal(one.snapshot().instances, [start])
    quiet = Pool.initial(start, instances=3, update_variance=0.0, randomness=SEEDED)
    np.testing.assert_array_equal(quiet.snapshot().instances, [start] * 3)
    assert stable_variance(1, 9.0) == 0


def test_a_pool_predicts_by_the_mean_of_weights_or_of_predictions() -> None:
    model = Glm(features=2, link=LOGISTIC)
    pool, features = pool_of(4), np.array([[0.2, 0.9], [1.0, 0.0]])
    held = pool.snapshot().instances
    by_weights = model.predict(pool.weights(), features)
    np.testing.assert_allclose(by_weights, model.predict(held.mean(axis=0), features))
    by_predictions = pool.predict(model, features)
    np.testing.assert_allclose(by_predictions, np.mean([model.predict(one, features) for one in held], axis=0))
    assert not np.allclose(by_weights, by_predictions)


@pytest.mark.parametrize("update", [np.zeros(2), np.zeros((1, 3)), np.array([1, np.nan, 2]), np.array([1, np.inf, 2])])
def test_what_is_not_an_instance_is_refused_and_changes_nothing(update: Floats) -> None:
    pool = pool_of(3)
    before = pool.snapshot()
    with pytest.raises(DataError, match="an instance"):
        pool.discard(update)
    with pytest.raises(DataError, match="an instance"):
        pool.replace(0, update)
    after = pool.snapshot()
    np.testing.assert_array_equal(before.instances, after.instances)
    assert (before.draws, before.discards) == (after.draws, after.discards)


def test_what_is_not_a_pool_is_refused() -> None:
    for shape in [(3,), (0, 3), (3, 0)]:
        with pytest.raises(ConfigError, match="one row an instance"):
            Pool(np.zeros(shape), randomness=SEEDED)
    with pytest.raises(DataError, match="finite numbers"):
        Pool([[1.0], [np.nan]], randomness=SEEDED)
    with pytest.raises(ConfigError, match="instances"):
        Pool.initial(np.zeros(3), instances=0, update_variance=1.0, randomness=SEEDED)
    with pytest.raises(ConfigError, match="update_variance"):
        Pool.initial(np.zeros(3), instances=2, update_variance=-1.0, randomness=SEEDED)


def test_threads_may_share_a_pool() -> None:
    pool = Pool(np.zeros((6, 40)), randomness=SystemRandomness())

    def work(mark: float) -> None:
        for _ in range(400):
            drawn = pool.draw()
            assert len(set(drawn)) == 1, "half of one instance and half of another"
            pool.discard(np.full(40, mark))

    threads = [threading.Thread(target=work, args=(float(mark),)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    snapshot = pool.snapshot()
    assert (snapshot.draws, snapshot.discards) == (1600, 1600)
    np.testing.assert_allclose(pool.weights(), snapshot.instances.mean(axis=0), atol=1e-9)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_huge_answer_leaves_nothing_behind_when_it_is_gone(k: int) -> None:
    """Mean and spread are those of the instances, whatever was among them before."""
    pool = Pool(SEEDED.stream("start").normals(k * 3).reshape(k, 3), randomness=SEEDED)
    for size in (1e4, -1e12, LARGEST, 1e-3):
        pool.replace(0, np.full(3, size))
        pool.replace(k - 1, np.ones(3))
        pool.replace(0, np.zeros(3))
        instances = pool.snapshot().instances
        mean, spread = pool.mean_and_spread()
        np.testing.assert_allclose(mean, instances.mean(axis=0), atol=1e-9)
        np.testing.assert_allclose(spread, instances.std(axis=0, ddof=1) if k > 1 else 0 * mean, rtol=1e-6)
        Pool.restore(Snapshot.from_bytes(pool.snapshot().to_bytes()), randomness=SEEDED)


@pytest.mark.parametrize("size", [1.001 * LARGEST, 1e200, 1.7e308, np.inf, np.nan])
def test_what_is_larger_has_no_place_in_a_pool(size: float) -> None:
    pool = Pool(np.zeros((2, 3)), randomness=SEEDED)
    before = pool.snapshot().to_bytes()
    for sign in (1, -1):
        with pytest.raises(DataError, match="finite numbers of at most"):
            pool.discard([0.0, sign * size, 0.0])
    assert pool.snapshot().to_bytes() == before
