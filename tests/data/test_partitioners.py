from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from incrowd._random import SeededRandomness, SystemRandomness
from incrowd.data import Partition, by_column, by_sizes, dirichlet, iid, lognormal_sizes, sorted_shards
from incrowd.errors import ConfigError, DataError

SEEDS = st.integers(0, 2**32).map(lambda seed: SeededRandomness(seed=seed))
LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=120).map(np.array)
BALANCED = np.repeat(np.arange(10), 60)[np.random.default_rng(5).permutation(600)]
SEED = SeededRandomness(seed=1)


def assert_each_once(partition: Partition, examples: int) -> None:
    assert sorted(partition.indices.tolist()) == list(range(examples))


def lists(partition: Partition) -> list[list[int]]:
    return [partition.client(k).tolist() for k in range(partition.clients)]


@pytest.mark.slow
@given(st.data(), LABELS, SEEDS)
def test_iid_gives_each_example_to_one_client_and_equal_sizes(
    data: st.DataObject, labels: NDArray[np.int64], seed: SeededRandomness
) -> None:
    clients = data.draw(st.integers(1, len(labels)))
    partition = iid(labels, clients=clients, randomness=seed)
    assert partition.clients == clients
    assert_each_once(partition, len(labels))
    assert partition.sizes.max() - partition.sizes.min() <= 1


def test_iid_clients_have_the_labels_of_the_whole() -> None:
    labels = np.repeat(np.arange(2), [3000, 1000])

    def share(seed: int) -> float:
        return float(labels[iid(labels, clients=2, randomness=SeededRandomness(seed=seed)).client(0)].mean())

    shares = np.array([share(seed) for seed in range(100)])
    # Hypergeometric: half of 4,000 drawn without replacement, so the standard error is smaller by sqrt(1/2).
    error = np.sqrt(0.25 * 0.75 / 2000 / 2)
    assert abs(shares.mean() - 0.25) < 4 * error / 10
    assert 0.75 * error < shares.std() < 1.25 * error


@pytest.mark.slow
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), LABELS, SEEDS)
def test_given_sizes_are_met_and_examples_repeat_evenly(
    sizes: list[int], labels: NDArray[np.int64], seed: SeededRandomness
) -> None:
    partition = by_sizes(labels, sizes=sizes, randomness=seed)
    assert partition.sizes.tolist() == sizes
    times = np.bincount(partition.indices, minlength=len(labels))
    assert len(times) == len(labels)
    assert times.max() - times.min() <= 1


@pytest.mark.parametrize("sizes", [[], [1, 0], [[1]], [1.5], [True]])
def test_unusable_sizes_are_refused(sizes: list[int]) -> None:
    with pytest.raises(ConfigError, match="sizes"):
        by_sizes(BALANCED, sizes=sizes, randomness=SEED)


@given(st.data(), st.integers(1, 500), st.floats(0, 1000), SEEDS)
def test_lognormal_sizes_use_every_example(
    data: st.DataObject, examples: int, sigma: float, seed: SeededRandomness
) -> None:
    clients = data.draw(st.integers(1, examples))
    sizes = lognormal_sizes(clients=clients, examples=examples, sigma=sigma, randomness=seed)
    assert (len(sizes), sizes.sum()) == (clients, examples)
    assert sizes.min() >= 1


def test_lognormal_sizes_have_the_stated_spread() -> None:
    def spread(sigma: float) -> float:
        return float(np.log(lognormal_sizes(clients=2000, examples=10**9, sigma=sigma, randomness=SEED)).std())

    tolerance = 5 / np.sqrt(2 * 2000)  # five standard errors of a standard deviation of 1
    assert abs(spread(1.0) - 1) < tolerance
    assert abs(spread(2 / 3) - 1) > tolerance
    assert abs(spread(3 / 2) - 1) > tolerance


def test_lognormal_sizes_without_spread_are_equal() -> None:
    sizes = lognormal_sizes(clients=7, examples=100, sigma=0, randomness=SEED)
    assert set(sizes.tolist()) == {14, 15}


@pytest.mark.slow
@given(st.data(), LABELS, SEEDS)
def test_sorted_shards_without_a_size_give_each_example_to_one_client(
    data: st.DataObject, labels: NDArray[np.int64], seed: SeededRandomness
) -> None:
    each = data.draw(st.integers(1, min(3, len(labels))))
    clients = data.draw(st.integers(1, len(labels) // each))
    partition = sorted_shards(labels, clients=clients, shards_per_client=each, randomness=seed)
    assert partition.clients == clients
    assert_each_once(partition, len(labels))
    assert partition.sizes.max() - partition.sizes.min() <= each


@pytest.mark.slow
@given(LABELS, st.integers(1, 12), st.integers(1, 30), st.integers(1, 3), SEEDS)
def test_sorted_shards_of_a_size_are_met(
    labels: NDArray[np.int64], clients: int, shard: int, each: int, seed: SeededRandomness
) -> None:
    partition = sorted_shards(labels, clients=clients, per_client=shard * each, shards_per_client=each, randomness=seed)
    assert partition.sizes.tolist() == [shard * each] * clients
    repeats = -(-clients * shard * each // len(labels))
    assert np.bincount(partition.indices).max() <= repeats
    for shard_indices in partition.indices.reshape(-1, shard):
        found = labels[shard_indices]
        assert (np.diff(found) >= 0).all(), "a shard is a piece of the sorted labels"


def test_shards_of_the_paper_hold_two_labels_at_most() -> None:
    # 600 examples, 60 of a class: 40 shards of 15 end with the classes, as 300 does with 6,000.
    partition = sorted_shards(BALANCED, clients=20, per_client=30, randomness=SEED)
    assert_each_once(partition, 600)
    held = [len(set(BALANCED[rows].tolist())) for rows in lists(partition)]
    assert max(held) == 2
    # Two shards at random of 40, 4 of a class: the same label for 3 of 39.
    assert Counter(held)[1] <= 6


def test_shards_without_a_size_are_the_same_kind_of_shards() -> None:
    partition = sorted_shards(BALANCED, clients=20, randomness=SEED)
    assert set(partition.sizes.tolist()) == {30}
    assert max(len(set(BALANCED[rows].tolist())) for rows in lists(partition)) == 2


def test_repeated_classes_use_each_example_equally_often_in_independent_orders() -> None:
    partition = sorted_shards(BALANCED, clients=200, per_client=30, randomness=SEED)
    assert np.bincount(partition.indices).tolist() == [10] * 600
    shards = partition.indices.reshape(400, 15)
    for label in range(10):
        of_class = [frozenset(shard.tolist()) for shard in shards if BALANCED[shard[0]] == label]
        assert len(of_class) == 40
        assert len(set(of_class)) == 40, "the same shard came twice: the repeats were not shuffled anew"


def test_shards_are_matched_at_random() -> None:
    def first(seed: int) -> int:
        partition = sorted_shards(BALANCED, clients=20, per_client=30, randomness=SeededRandomness(seed=seed))
        return int(BALANCED[partition.client(0)[0]])

    counts = np.bincount([first(seed) for seed in range(500)], minlength=10)
    assert ((counts - 50) ** 2 / 50).sum() < 27.9  # chi-squared with 9 degrees of freedom, p = 0.001


def test_left_over_shards_are_left_over_at_random() -> None:
    used = {
        int(label)
        for seed in range(100)
        for label in BALANCED[
            sorted_shards(BALANCED, clients=1, per_client=30, randomness=SeededRandomness(seed=seed)).client(0)
        ]
    }
    assert used == set(range(10))


@pytest.mark.slow
@given(st.data(), LABELS, st.floats(1e-9, 1e9), SEEDS)
def test_dirichlet_gives_each_example_to_one_client_and_enough_to_each(
    data: st.DataObject, labels: NDArray[np.int64], alpha: float, seed: SeededRandomness
) -> None:
    clients = data.draw(st.integers(1, len(labels)))
    at_least = data.draw(st.integers(1, len(labels) // clients))
    partition = dirichlet(labels, clients=clients, alpha=alpha, at_least=at_least, randomness=seed)
    assert partition.clients == clients
    assert_each_once(partition, len(labels))
    assert partition.sizes.min() >= at_least


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.3, 3.0])
def test_dirichlet_shares_have_the_stated_spread(alpha: float) -> None:
    """The share of client 0 in a class is Beta(alpha, (K - 1) alpha), whose variance is known."""
    clients, runs = 5, 400
    labels = np.repeat(np.arange(5), 2000)

    def variance(used: float) -> float:
        shares = [
            np.bincount(
                labels[dirichlet(labels, clients=clients, alpha=used, randomness=SeededRandomness(seed=s)).client(0)],
                minlength=5,
            )
            / 2000
            for s in range(runs)
        ]
        return float(np.var(np.concatenate(shares)))

    expected = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    tolerance = 5 * expected * np.sqrt(4 / (runs * 5))  # a kurtosis of at most 5
    assert abs(variance(alpha) - expected) < tolerance
    assert abs(variance(alpha * 2 / 3) - expected) > tolerance
    assert abs(variance(alpha * 3 / 2) - expected) > tolerance


def test_dirichlet_fills_up_from_the_largest() -> None:
    labels = np.zeros(100, np.int64)
    partition = dirichlet(labels, clients=10, alpha=1e-9, at_least=4, randomness=SEED)
    assert sorted(partition.sizes.tolist()) == [4] * 9 + [64]


def test_dirichlet_mixes_the_order_of_a_clients_examples() -> None:
    labels = np.repeat(np.arange(2), 500)
    found = labels[dirichlet(labels, clients=1, alpha=1, randomness=SEED).client(0)]
    assert 400 < np.count_nonzero(np.diff(found)) < 600


@given(st.lists(st.sampled_from(["ann", "bob", "cy", "dee", "éva"]), min_size=1, max_size=40))
def test_a_user_column_gives_each_user_their_own_examples(column: list[str]) -> None:
    partition = by_column(column)
    assert_each_once(partition, len(column))
    for k, name in enumerate(sorted(set(column))):
        assert partition.client(k).tolist() == [row for row, user in enumerate(column) if user == name]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([], "shape"),
        ([[1, 2]], "shape"),
        ([1.0, np.nan], "NaN at example 1"),
        ([None, "ann"], "objects"),
    ],
)
def test_an_unusable_user_column_is_refused(column: list[object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        by_column(np.array(column))


WAYS: list[Callable[..., Partition]] = [
    partial(iid, clients=10),
    partial(by_sizes, sizes=[50, 60, 900]),
    partial(sorted_shards, clients=10),
    partial(sorted_shards, clients=10, per_client=100),
    partial(dirichlet, clients=10, alpha=0.5),
]


@pytest.mark.parametrize("way", WAYS)
def test_the_same_seed_deals_the_same_and_another_does_not(way: Callable[..., Partition]) -> None:
    once, again = (way(BALANCED, randomness=SeededRandomness(seed=3)) for _ in range(2))
    np.testing.assert_array_equal(once.indices, again.indices)
    np.testing.assert_array_equal(once.offsets, again.offsets)
    other = way(BALANCED, randomness=SeededRandomness(seed=4))
    assert lists(once) != lists(other)


@pytest.mark.parametrize("way", WAYS)
def test_the_operating_systems_randomness_never_deals_the_same(way: Callable[..., Partition]) -> None:
    assert lists(way(BALANCED, randomness=SystemRandomness())) != lists(way(BALANCED, randomness=SystemRandomness()))


@pytest.mark.parametrize("way", WAYS)
def test_labels_are_not_changed(way: Callable[..., Partition]) -> None:
    labels = BALANCED.copy()
    labels.flags.writeable = False
    way(labels, randomness=SEED)


@pytest.mark.parametrize("way", WAYS)
def test_no_examples_are_refused(way: Callable[..., Partition]) -> None:
    with pytest.raises(DataError, match="examples"):
        way(BALANCED[:0], randomness=SEED)


@pytest.mark.parametrize(
    "way",
    [
        partial(iid, clients=11),
        partial(sorted_shards, clients=6),
        partial(dirichlet, clients=11, alpha=1),
        partial(dirichlet, clients=4, alpha=1, at_least=3),
    ],
)
def test_more_clients_than_examples_are_refused(way: Callable[..., Partition]) -> None:
    with pytest.raises(DataError, match=r"10 examples are too few: .* clients need at least 1[12]"):
        way(BALANCED[:10], randomness=SEED)


@pytest.mark.parametrize(
    ("way", "field"),
    [
        (partial(iid, clients=0), "clients"),
        (partial(sorted_shards, clients=0), "clients"),
        (partial(sorted_shards, clients=2, shards_per_client=0), "shards_per_client"),
        (partial(sorted_shards, clients=2, per_client=0), "per_client"),
        (partial(sorted_shards, clients=2, per_client=3), "per_client = 3: give a multiple of shards_per_client"),
        (partial(dirichlet, clients=2, alpha=0), "alpha"),
        (partial(dirichlet, clients=2, alpha=np.nan), "alpha"),
        (partial(dirichlet, clients=2, alpha=1, at_least=0), "at_least"),
    ],
)
def test_unusable_settings_are_refused(way: Callable[..., Partition], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        way(BALANCED, randomness=SEED)


@settings(max_examples=20)
@given(SEEDS)
def test_float_labels_can_be_sorted_too(seed: SeededRandomness) -> None:
    labels = np.linspace(1, 0, 40, dtype=np.float32)
    partition = sorted_shards(labels, clients=5, randomness=seed)
    assert_each_once(partition, 40)
    assert all(np.ptp(rows[:4]) == 3 and np.ptp(rows[4:]) == 3 for rows in map(sorted, lists(partition)))
