import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.data import Partition
from incrowd.errors import DataError

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


def test_representation_shows_no_data() -> None:
    assert repr(Partition.of([[1, 2], [3]])) == "Partition(clients=2)"


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
