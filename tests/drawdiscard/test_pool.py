import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd._random import Floats, SeededRandomness
from incrowd.drawdiscard.pool import Instance, Picks, Pool, stable_variance
from tests.statistics import ODD, chi_square

SEEDED = SeededRandomness(seed=5)


def updates(count: int, size: int, *, seed: int = 6) -> Floats:
    return SeededRandomness(seed=seed).stream("updates").normals(count * size).reshape(count, size)


@given(share=st.sampled_from([0.05, 0.25, 0.5, 1.0]), history=st.integers(0, 5))
def test_a_pool_is_what_a_slow_twin_says(share: float, history: int) -> None:
    """Merging, versions, and the versions that were replaced lately."""
    start = updates(3, 2, seed=9).astype(np.float32)
    pool = Pool(start, randomness=SEEDED, merge=share, history=history)
    picks, rows = Picks(SEEDED, "discard"), list(enumerate(start))
    replaced: list[tuple[int, Instance]] = []
    for number, update in enumerate(updates(20, 2).astype(np.float32)):
        pool.discard(update)
        index = picks.among(3)
        replaced.append(rows[index])
        rows[index] = 3 + number, np.float32(1 - np.float32(share)) * rows[index][1] + np.float32(share) * update
    for version, row in rows + replaced[len(replaced) - history :]:
        np.testing.assert_array_equal(pool.version(version), row)
    for version, _ in replaced[: len(replaced) - history]:
        assert pool.version(version) is None
    np.testing.assert_allclose(pool.weights(), np.mean([row for _, row in rows], axis=0), rtol=1e-6)


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
        seen.append(float(pool.instances.var(axis=0, ddof=1, dtype=np.float64).mean()))
    blocks = np.array(seen).reshape(10, -1).mean(axis=1)
    error = 4 * blocks.std(ddof=1) / np.sqrt(10)
    assert abs(blocks.mean() - expected) < error
    wrong = stable_variance(instances, 1.0, merge=share / 2)
    assert abs(blocks.mean() - wrong) > error


def test_draws_and_discards_are_fair_and_independent() -> None:
    pool, pairs = Pool(np.zeros((4, 1)), randomness=SEEDED, history=0), np.empty((16_000, 2), np.int64)
    for pair in pairs:
        before = pool.state().versions
        pair[0] = before.index(pool.draw_version()[0])
        pool.discard([1.0])
        pair[1] = next(at for at, version in enumerate(pool.state().versions) if version != before[at])
    counts = np.bincount(4 * pairs[:, 0] + pairs[:, 1], minlength=16)
    assert chi_square(counts, np.ones(16)) > ODD
    tilted = counts.copy()
    tilted[0] += 300  # the check would see a pair that is 30 % too frequent
    assert chi_square(tilted, np.ones(16)) < ODD


def test_nobody_can_write_to_an_instance() -> None:
    start = np.zeros((3, 4), np.float32)
    pool, update = Pool(start, randomness=SEEDED), np.ones(4, np.float32)
    pool.discard(update)
    before = pool.instances
    start[:], update[:] = 7.0, 7.0
    for given_out in (pool.draw(), pool.state().rows[0], pool.version(0)):
        assert given_out is not None
        with pytest.raises(ValueError, match="read-only"):
            given_out[...] = 1.0
    for copied in (pool.weights(), pool.instances):
        copied[...] = 1.0
    np.testing.assert_array_equal(pool.instances, before)
    shown = np.broadcast_to(np.float32(2), 4)  # a view without a right to write, of memory that others may write to
    single = Pool(start[:1], randomness=SEEDED)
    single.discard(shown)
    assert single.draw().base is None
    sent = np.frombuffer(np.ones(4, np.float32).tobytes(), np.float32)
    single.discard(sent)
    assert single.draw() is sent, "bytes never change, so they are not copied"
