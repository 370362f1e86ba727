import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.data import Partition
from incrowd.errors import ConfigError, DataError

LISTS = st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=9), min_size=1, max_size=20)


@pytest.mark.slow
@given(LISTS)
def test_a_partition_gives_back_its_lists(lists: list[list[int]]) -> None:
    partition = Partition.of(lists)
    assert partition.clients == len(lists)
    assert [partition.client(k).tolist() for k in range(len(lists))] == lists
    assert partition.sizes.tolist() == [len(rows) for rows in lists]


@pytest.mark.slow
@given(LISTS)
def test_the_holder_of_a_place_is_its_client(lists: list[list[int]]) -> None:
    partition = Partition.of(lists)
    expected = [k for k, rows in enumerate(lists) for _ in rows]
    assert [partition.holder(place) for place in range(len(expected))] == expected


def test_a_client_is_a_view() -> None:
    partition = Partition.of([[1, 2], [3]])
    assert partition.client(1).base is partition.indices


@pytest.mark.parametrize("k", [-1, 2])
def test_a_client_that_is_not_there_is_refused(k: int) -> None:
    with pytest.raises(ConfigError, match=f"client = {k}.*0 to 1"):
        Partition.of([[1], [2]]).client(k)


def test_memory_is_the_index_lists() -> None:
    partition = Partition(offsets=np.array([0, 2, 3]), indices=np.array([0, 1, 2], np.int32))
    assert partition.nbytes == 3 * 8 + 3 * 4


def test_representation_shows_no_data() -> None:
    assert repr(Partition.of([[1, 2], [3]])) == "Partition(clients=2)"


def test_two_clients_may_hold_the_same_example_and_one_may_hold_it_twice() -> None:
    assert Partition.of([[5, 5], [5]]).sizes.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([], "there is no client"),
        ([[1], []], "client 1 has no examples"),
        ([[1], [2, -3]], "client 1 holds the index -3"),
        ([[1], [0.5]], "client 1 has float64"),
        ([[1], [[2]]], r"client 1 has int64 of shape \(1, 1\)"),
        ([[1], [True]], "client 1 has bool"),
    ],
)
def test_unusable_lists_are_refused(lists: list[list[int]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Partition.of(lists)


@pytest.mark.parametrize(
    ("offsets", "indices", "message"),
    [
        (np.array([0, 2, 2]), np.array([0, 1]), "client 1 has no examples"),
        (np.array([0, 2, 1, 2]), np.array([0, 1]), "client 1 has no examples"),
        (np.array([1, 2]), np.array([0, 1]), "start at 0 and end at 2"),
        (np.array([0, 1]), np.array([0, 1]), "start at 0 and end at 2"),
        (np.array([0]), np.array([], np.int64), "there must be a client"),
        (np.array([[0, 2]]), np.array([0, 1]), "offsets must be int64"),
        (np.array([0, 2], np.int32), np.array([0, 1]), "offsets must be int64"),
        (np.array([0, 2]), np.array([0.0, 1.0]), "indices are float64"),
        (np.array([0, 2]), np.array([[0, 1]]), r"indices are int64 of shape \(1, 2\)"),
    ],
)
def test_unusable_arrays_are_refused(offsets: np.ndarray, indices: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Partition(offsets=offsets, indices=indices)
