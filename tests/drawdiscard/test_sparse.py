"""Sparse rows against dense ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd._random import Floats, SeededRandomness
from incrowd.drawdiscard.sparse import SparseRows


def dense(rows: int, width: int, seed: int) -> Floats:
    stream = SeededRandomness(seed).stream("dense", rows, width)
    values = stream.normals(rows * width).reshape(rows, width)
    return np.where(values > 0.3, values, 0.0)


SHAPES = st.tuples(st.integers(0, 6), st.integers(0, 5), st.integers(0, 4), st.integers(0, 9))


@given(SHAPES)
def test_rows_crossed_and_side_by_side_are_those_of_dense_features(shape: tuple[int, int, int, int]) -> None:
    rows, one, two, seed = shape
    first, second = dense(rows, one, seed), dense(rows, two, seed + 10)
    sparse = [SparseRows.from_dense(features) for features in (first, second)]
    crossed = sparse[0].crossed(sparse[1])
    slowly = [[a * b for a in x for b in y] for x, y in zip(first, second, strict=True)]
    assert crossed.dense().tolist() == np.array(slowly).reshape(rows, one * two).tolist()
    beside = SparseRows.beside([*sparse, crossed], count=rows)
    assert beside.dense().tolist() == np.concatenate([first, second, crossed.dense()], axis=1).tolist()
    order = np.arange(rows)[::-1].repeat(2)
    assert beside.chosen(order).dense().tolist() == beside.dense()[order].tolist()


def test_a_wide_cross_takes_the_room_of_what_is_there() -> None:
    wide = SparseRows.ones([[3], [7]], 10**6)
    crossed = wide.crossed(wide)
    assert crossed.width == 10**12
    assert crossed.places.tolist() == [3 * 10**6 + 3, 7 * 10**6 + 7]
    with pytest.raises((MemoryError, ValueError)):
        crossed.dense()
