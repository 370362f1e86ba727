import threading
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd._random import Floats, SeededRandomness, SystemRandomness
from incrowd.drawdiscard.pool import LARGEST, Instance, Picks, Pool, as_weights, stable_variance
from incrowd.drawdiscard.snapshot import Snapshot
from incrowd.errors import DataError
from tests.statistics import ODD, chi_square

SEEDED = SeededRandomness(seed=5)


def pool_of(instances: int, size: int = 3, *, seed: int = 5) -> Pool:
    values = SeededRandomness(seed=seed).stream("values").normals(instances * size)
    return Pool(values.reshape(instances, size), randomness=SeededRandomness(seed=seed))


def updates(count: int, size: int, *, seed: int = 6) -> Floats:
    return SeededRandomness(seed=seed).stream("updates").normals(count * size).reshape(count, size)


@pytest.mark.slow
@given(instances=st.integers(1, 5), size=st.integers(1, 4), scale=st.sampled_from([1e-6, 1.0, 1e6]))
def test_mean_and_spread_are_those_of_the_instances(instances: int, size: int, scale: float) -> None:
    pool = Pool(scale * pool_of(instances, size).snapshot().instances, randomness=SEEDED)
    for update in scale * updates(30, size):
        pool.discard(update)
        held = pool.snapshot().instances.astype(np.float64)
        mean, spread = pool.mean_and_spread()
        np.testing.assert_allclose(mean, held.mean(axis=0))
        np.testing.assert_allclose(spread, held.std(axis=0, ddof=1) if instances > 1 else np.zeros(size))


@given(share=st.sampled_from([0.05, 0.25, 0.5, 1.0]), tail=st.sampled_from([None, 0.0, 2.0]), history=st.integers(0, 5))
def test_a_pool_is_what_a_slow_twin_says(share: float, tail: float | None, history: int) -> None:
    """Merging, versions, the versions that were replaced lately, and the average over time."""
    start = updates(3, 2, seed=9).astype(np.float32)
    pool = Pool(start, randomness=SEEDED, merge=share, tail=tail, history=history)
    picks, rows = Picks(SEEDED, "discard"), list(enumerate(start))
    replaced: list[tuple[int, Instance]] = []
    looks: list[Floats] = []
    for number, update in enumerate(updates(20, 2).astype(np.float32)):
        pool.discard(update)
        index = picks.among(3)
        replaced.append(rows[index])
        rows[index] = 3 + number, np.float32(1 - np.float32(share)) * rows[index][1] + np.float32(share) * update
        if number % 3 == 2:
            looks.append(np.mean([row for _, row in rows], axis=0, dtype=np.float64))
    for version, row in rows + replaced[len(replaced) - history :]:
        np.testing.assert_array_equal(pool.version(version), row)
    for version, _ in replaced[: len(replaced) - history]:
        assert pool.version(version) is None
    if tail is None:
        np.testing.assert_allclose(pool.weights(), np.mean([row for _, row in rows], axis=0), rtol=1e-6)
    else:
        weights = np.cumprod([1.0, *((count + tail) / count for count in range(1, len(looks)))])
        np.testing.assert_allclose(pool.weights(), np.average(looks, axis=0, weights=weights), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_merging_keeps_the_variance_that_is_said_to_be_stable(share: float) -> None:
    weights, instances = 4000, 5
    start = SEEDED.stream("start").normals(instances * weights).reshape(instances, weights)
    expected = stable_variance(instances, 1.0, merge=share)
    pool = Pool(np.sqrt(expected) * start, randomness=SEEDED, merge=share, history=0)
    noise, seen = SEEDED.stream("noise"), []
    for _ in range(3000):
        pool.discard(pool.draw() + noise.normals(weights))
        seen.append(float(np.square(pool.mean_and_spread()[1]).mean()))
    blocks = np.array(seen).reshape(10, -1).mean(axis=1)
    error = 4 * blocks.std(ddof=1) / np.sqrt(10)
    assert abs(blocks.mean() - expected) < error
    wrong = stable_variance(instances, 1.0, merge=share / 2)
    assert abs(blocks.mean() - wrong) > error


@given(st.lists(st.floats(width=64), min_size=3, max_size=3))
def test_what_is_no_row_of_float32_is_refused(numbers: list[float]) -> None:
    with np.errstate(over="ignore"):
        expected = np.array(numbers).astype(np.float32)
    if (np.abs(expected) <= np.float32(LARGEST)).all():
        np.testing.assert_array_equal(as_weights(numbers, 3), expected)
    else:
        with pytest.raises(DataError):
            as_weights(numbers, 3)


def test_draws_and_discards_are_fair_and_independent() -> None:
    pool = Pool(np.zeros((4, 1)), randomness=SEEDED)
    pairs = np.array([(pool.draw_index()[0], pool.choose()) for _ in range(16_000)])
    counts = np.bincount(4 * pairs[:, 0] + pairs[:, 1], minlength=16)
    assert chi_square(counts, np.ones(16)) > ODD
    tilted = counts.copy()
    tilted[0] += 300  # the check would see a pair that is 30 % too frequent
    assert chi_square(tilted, np.ones(16)) < ODD


def test_nobody_can_write_to_an_instance() -> None:
    start = np.zeros((3, 4), np.float32)
    pool, update = Pool(start, randomness=SEEDED), np.ones(4, np.float32)
    pool.discard(update)
    before = pool.snapshot().instances
    start[:], update[:] = 7.0, 7.0
    for given_out in (pool.draw(), pool.instance(0), pool.version(0)):
        assert given_out is not None
        with pytest.raises(ValueError, match="read-only"):
            given_out[...] = 1.0
    for copied in (pool.weights(), pool.snapshot().instances):
        copied[...] = 1.0
    np.testing.assert_array_equal(pool.snapshot().instances, before)
    shown = np.broadcast_to(np.float32(2), 4)  # a view without a right to write, of memory that others may write to
    pool.replace(0, shown)
    assert pool.instance(0).base is None
    sent = np.frombuffer(np.ones(4, np.float32).tobytes(), np.float32)
    pool.replace(0, sent)
    assert pool.instance(0) is sent, "bytes never change, so they are not copied"


def test_a_discard_replaces_one_instance() -> None:
    pool = pool_of(5)
    before = pool.snapshot().instances
    update = np.array([7.0, 8.0, 9.0])
    pool.discard(update)
    after = pool.snapshot().instances
    changed = (before != after).any(axis=1)
    assert changed.sum() == 1
    np.testing.assert_array_equal(after[changed][0], update)


@pytest.mark.parametrize("keys", [{}, {"merge": 0.5, "tail": 1.0, "history": 3}])
def test_a_restored_pool_goes_on_like_the_one_that_was_saved(keys: dict[str, Any]) -> None:
    start = updates(4, 3, seed=8)
    whole, update = Pool(start, randomness=SEEDED, **keys), updates(300, 3)
    for number in range(100):
        whole.discard(whole.draw() + update[number])
    resumed = Pool.restore(whole.snapshot(), randomness=SEEDED, **keys)
    for number in range(100, 300):
        for pool in (whole, resumed):
            pool.discard(pool.draw() + update[number])
    for field in fields(Snapshot):
        kept, again = (getattr(pool.snapshot(), field.name) for pool in (whole, resumed))
        np.testing.assert_array_equal(np.asarray(kept), np.asarray(again))


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
        Pool.restore(pool.snapshot(), randomness=SEEDED)


@pytest.mark.parametrize("few", [0, 1, 3, 7])
def test_a_pool_is_frozen_with_the_newest_of_its_replaced_versions(few: int) -> None:
    pool = Pool(np.zeros((2, 5)), randomness=SeededRandomness(1), history=7)
    for number in range(20):
        pool.discard(np.full(5, number))
    whole, size = pool.freeze(), 4 * 5 * few + 19
    assert len(whole.replaced) == 7
    assert list(pool.freeze(size).replaced) == list(whole.newest(size).replaced) == list(whole.replaced)[7 - few :]
