"""Numbers of unknown size by their size: fixed places, each row by itself."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from incrowd.learning.features import UnitNorm
from incrowd.learning.features.sizes import PLACES, near_sizes, sizes, sizes_or_numbers

NUMBERS = st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=3, max_size=3)


def test_sizes_are_between_fixed_places() -> None:
    numbers = np.array([[0.0, 1e-3, -1e-9, 1e6, 1e30, -1e30, 10 ** (1 / 6)]], np.float32)
    near = near_sizes(numbers)[0]
    assert near.shape == (7, PLACES)
    assert np.allclose(near.sum(1), 1)
    assert [int(np.argmax(one)) for one in near[:-1]] == [27, 27, 27, 54, 54, 0]
    assert np.allclose(near[-1][[36, 37]], [0.5, 0.5], atol=1e-6)


@given(row=NUMBERS, other=NUMBERS)
def test_a_row_is_seen_by_itself(row: list[float], other: list[float]) -> None:
    alone, beside = (sizes_or_numbers(np.array(rows, np.float32)) for rows in ([row], [other, row, other]))
    assert np.array_equal(beside[1], alone[0])


@given(row=NUMBERS)
def test_a_row_is_its_sizes_or_its_numbers_and_never_both(row: list[float]) -> None:
    rows = np.array([row], np.float32)
    by_size, as_it_is = np.split(sizes_or_numbers(rows), [3 * PLACES], axis=1)
    if np.abs(rows).max() <= 10:
        assert not by_size.any()
        assert np.array_equal(as_it_is, rows)
    else:
        assert not as_it_is.any()
        assert np.array_equal(by_size, sizes(rows))
        assert np.allclose(by_size.sum(), 0, atol=1e-9)


def test_at_length_one_the_largest_number_is_not_all_of_a_row() -> None:
    rows = np.array([[1, 30_000], [2, 30_000], [1, 2]], np.float32)
    plain, seen = UnitNorm()(rows), UnitNorm(sizes=True)(rows)
    assert np.allclose(plain[0], plain[1], atol=1e-4)
    assert np.linalg.norm(seen[0] - seen[1]) > 0.5
    assert np.allclose(seen[2, -2:], plain[2])
    assert np.allclose(np.linalg.norm(seen, axis=1), 1, atol=1e-5)
    assert UnitNorm(sizes=True).name != UnitNorm().name
