import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism.contribution import Layout


@given(st.lists(array_shapes(min_dims=0, min_side=0, max_side=4), max_size=5))
def test_flatten_and_unflatten_are_inverse(shapes: list[tuple[int, ...]]) -> None:
    layout = Layout(names=tuple(f"w{i}" for i in range(len(shapes))), shapes=tuple(shapes))
    vector = np.arange(float(layout.size))
    arrays = layout.unflatten(vector)
    assert [a.shape for a in arrays.values()] == shapes
    assert np.array_equal(layout.flatten(arrays), vector)
    assert Layout.of(arrays) == layout


def test_arrays_become_one_vector_with_one_norm() -> None:
    layout = Layout(names=("a", "b"), shapes=((2,), (1, 1)))
    assert np.linalg.norm(layout.flatten({"b": np.array([[12.0]]), "a": np.array([3.0, 4.0])})) == 13


def test_whole_numbers_and_truth_values_count_like_any_other() -> None:
    arrays = {"steps": np.array([3]), "frozen": np.array([True, False]), "w": np.array([0.5], np.float32)}
    assert list(Layout.of(arrays).flatten(arrays)) == [3, 1, 0, 0.5]


@pytest.mark.parametrize(
    "arrays",
    [{"a": np.zeros(2)}, {"a": np.zeros(2), "b": np.zeros(1), "c": np.zeros(1)}, {"a": np.zeros(3), "b": np.zeros(1)}],
    ids=["missing", "unknown", "other shape"],
)
def test_a_contribution_of_another_layout_is_refused(arrays: dict[str, np.ndarray]) -> None:
    layout = Layout(names=("a", "b"), shapes=((2,), (1,)))
    with pytest.raises(DataError, match="layout"):
        layout.flatten(arrays)


def test_a_vector_of_another_size_is_refused() -> None:
    with pytest.raises(DataError, match="2 numbers"):
        Layout(names=("a",), shapes=((2,),)).unflatten(np.zeros(3))


def test_impossible_layouts_are_refused() -> None:
    with pytest.raises(ConfigError, match="shapes"):
        Layout(names=("a",), shapes=())
    with pytest.raises(ConfigError, match="names"):
        Layout(names=("a", "a"), shapes=((1,), (2,)))
