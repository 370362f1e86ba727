from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from incrowd._random import SeededRandomness, SystemRandomness
from incrowd.data import Clients, Examples, Partition, by_column, dirichlet, iid, sorted_shards
from incrowd.errors import ConfigError, DataError

IMAGES = Examples(features=np.arange(24, dtype=np.uint8).reshape(6, 2, 2), labels=np.arange(6) % 3, classes=3)
PARTITION = Partition.of([[5, 1], [0], [2, 2, 3]])


def test_clients_hold_examples_that_are_there_and_test_examples_of_their_kind() -> None:
    with pytest.raises(DataError, match="client 1 holds the index 6: there are 6 examples, give indices from 0 to 5"):
        Clients(examples=IMAGES, partition=Partition.of([[0], [5, 6], [1]]))
    with pytest.raises(DataError, match="classes is 3 in train and 4 in test"):
        Clients(examples=IMAGES, partition=PARTITION, test=replace(IMAGES, classes=4))


def test_a_description_says_who_holds_the_test_examples() -> None:
    data = Clients(examples=IMAGES, partition=PARTITION, test=IMAGES, name="pictures")
    assert data.describe() == {
        "data": "pictures",
        "clients": 3,
        "test_set": "6 examples, public: held by the server, not by any client",
    }
    assert Clients(examples=IMAGES, partition=PARTITION).describe()["test_set"] == "none"
    assert "array" not in repr(data)


def test_names_are_public_only_where_they_are_said_to_be() -> None:
    parts = {"north": ([[1.0]], [0]), "south": ([[2.0]], [1])}
    data = Clients.from_partitions(parts, classes=2)
    assert (data.owners, data.names) == (("north", "south"), ())
    assert data.named().names == ("north", "south")
    assert "north" not in repr(data)
    with pytest.raises(ConfigError, match=r"names = .*they are not those of the clients"):
        replace(data, names=("north", "west"))
    with pytest.raises(ConfigError, match="it is to be a folder's"):
        Clients.from_partitions({"a/b": ([[1.0]], [0])}, classes=2).named()
    with pytest.raises(ConfigError, match="owners = None: these clients have no names"):
        replace(data, owners=None).named()


SEEDS = st.integers(0, 2**32).map(lambda seed: SeededRandomness(seed=seed))
LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=120).map(np.array)
BALANCED = np.repeat(np.arange(10), 60)[np.random.default_rng(5).permutation(600)]
SEED = SeededRandomness(seed=1)


def assert_each_once(partition: Partition, examples: int) -> None:
    assert sorted(partition.indices.tolist()) == list(range(examples))


def lists(partition: Partition) -> list[list[int]]:
    return [partition.client(k).tolist() for k in range(partition.clients)]


@pytest.mark.slow
@given(st.data(), LABELS, st.floats(1e-9, 1e9), SEEDS)
def test_each_example_has_one_client_and_each_client_an_example(
    data: st.DataObject, labels: NDArray[np.int64], alpha: float, seed: SeededRandomness
) -> None:
    clients = data.draw(st.integers(1, len(labels)))
    equal = iid(labels, clients=clients, randomness=seed)
    for partition in (equal, dirichlet(labels, clients=clients, alpha=alpha, randomness=seed)):
        assert partition.clients == clients
        assert_each_once(partition, len(labels))
    assert equal.sizes.max() - equal.sizes.min() <= 1


def test_shards_of_the_paper_hold_two_labels_at_most() -> None:
    # 600 examples, 60 of a class: 40 shards of 15 end with the classes, as 300 does with 6,000.
    partition = sorted_shards(BALANCED, clients=20, per_client=30, randomness=SEED)
    assert_each_once(partition, 600)
    held = [len(set(BALANCED[rows].tolist())) for rows in lists(partition)]
    assert max(held) == 2
    # Two shards at random of 40, 4 of a class: the same label for 3 of 39.
    assert Counter(held)[1] <= 6


@given(st.lists(st.sampled_from(["ann", "bob", "cy", "dee", "éva"]), min_size=1, max_size=40))
def test_a_user_column_gives_each_user_their_own_examples(column: list[str]) -> None:
    partition = by_column(column)
    assert_each_once(partition, len(column))
    for k, name in enumerate(sorted(set(column))):
        assert partition.client(k).tolist() == [row for row, user in enumerate(column) if user == name]


WAYS: list[Callable[..., Partition]] = [
    partial(iid, clients=10),
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
    systems = [lists(way(BALANCED, randomness=SystemRandomness())) for _ in range(2)]
    assert systems[0] != systems[1]


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=9), min_size=1, max_size=20))
def test_a_partition_gives_back_its_lists(lists: list[list[int]]) -> None:
    partition = Partition.of(lists)
    assert [partition.client(k).tolist() for k in range(partition.clients)] == lists
    assert partition.sizes.tolist() == [len(rows) for rows in lists]
    owners = [k for k, rows in enumerate(lists) for _ in rows]
    assert [partition.holder(place) for place in range(len(owners))] == owners == partition.owners.tolist()
    assert repr(partition) == f"Partition(clients={len(lists)})"
