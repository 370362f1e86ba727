from typing import Any

import numpy as np
import pytest
from flwr.app import Array
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as its
from numpy.typing import NDArray

from incrowd.errors import ConfigError
from incrowd.flower.strategy import NamedArrays, values_in
from tests.flower.stock import record

FLOATS = its.floating_dtypes(endianness="<", sizes=(16, 32, 64)) | its.floating_dtypes(endianness=">", sizes=(32, 64))
ARRAYS = its.arrays(FLOATS, its.array_shapes(min_dims=0, max_dims=4, max_side=5) | st.just((0, 3)))


@pytest.mark.slow
@given(array=ARRAYS, turned=st.booleans())
@settings(deadline=None)
def test_what_numpy_writes_is_read_to_the_last_bit(array: NDArray[Any], turned: bool) -> None:
    array = np.asfortranarray(array) if turned else array
    found = values_in(Array(array), array.shape)
    assert found is not None
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)


@given(data=st.binary(max_size=300))
@settings(deadline=None)
def test_bytes_that_are_none_are_none(data: bytes) -> None:
    assert values_in(Array("float32", (3,), "numpy.ndarray", data), (3,)) is None
    begun = b"\x93NUMPY\x01\x00" + data
    assert values_in(Array("float32", (3,), "numpy.ndarray", begun), (3,)) is None


def test_arrays_come_back_with_their_own_types() -> None:
    start: dict[str, NDArray[Any]] = {
        "a": np.ones((2, 2), np.float16),
        "b": np.zeros(3, np.float64),
        "c": np.array(2.0, np.float32),
    }
    named = NamedArrays.of(record(**start))
    moved = named.moved(np.full(8, 0.5))
    assert {name: (array.numpy().dtype, array.numpy().shape) for name, array in moved.items()} == {
        name: (array.dtype, array.shape) for name, array in start.items()
    }
    difference = named.difference(moved)
    assert difference is not None
    np.testing.assert_array_equal(difference, np.full(8, 0.5))


@pytest.mark.parametrize("kind", [np.int64, np.bool_, np.uint8, np.complex64])
def test_only_floating_point_numbers_are_a_model(kind: type[np.generic]) -> None:
    with pytest.raises(ConfigError, match=r"arrays\['w'\]"):
        NamedArrays.of(record(w=np.zeros(3, kind)))
