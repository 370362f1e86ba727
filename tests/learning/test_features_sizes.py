"""Numbers of unknown size by their size: fixed places, each row by itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.learning.features.sizes import PLACES, sizes, sizes_or_numbers

NUMBERS = st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=3, max_size=3)
SIDE = PLACES // 2


def by_size(row: list[float]) -> bool:
    """Whether this row is seen by its sizes."""
    found = sizes_or_numbers(np.array([row], np.float32))[0]
    return bool(found[: -len(row)].any())


def test_sizes_are_between_fixed_places() -> None:
    numbers = np.array([[1.0, -1.0, 1e9, 1e30, -1e30, 10 ** (1 / 6), 0.0]], np.float32)
    near = sizes(numbers).reshape(7, PLACES)
    assert np.allclose(near.sum(1), 1, atol=1e-5)
    assert [int(np.argmax(one)) for one in near[:5]] == [SIDE + 9, SIDE - 9, PLACES - 1, PLACES - 1, 0]
    assert np.allclose(near[5][[SIDE + 9, SIDE + 10]], [0.5, 0.5], atol=1e-6)
    assert near[6][SIDE] == 1


def test_all_zeros_of_a_row_together_are_as_loud_as_one_number() -> None:
    near = sizes(np.array([[0, 0, 1e-4, -1e-9, 700]], np.float32)).reshape(5, PLACES)
    assert np.allclose(near[:4, SIDE], 0.5)
    assert np.isclose(near[4].sum(), 1)


@given(row=NUMBERS, other=NUMBERS)
def test_a_row_is_seen_by_itself(row: list[float], other: list[float]) -> None:
    alone, beside = (sizes_or_numbers(np.array(rows, np.float32)) for rows in ([row], [other, row, other]))
    assert np.array_equal(beside[1], alone[0])


@given(row=NUMBERS)
def test_a_row_is_its_sizes_or_its_numbers_and_never_both(row: list[float]) -> None:
    rows = np.array([row], np.float32)
    seen, as_it_is = np.split(sizes_or_numbers(rows), [3 * PLACES], axis=1)
    if seen.any():
        assert not as_it_is.any()
        assert np.array_equal(seen, sizes(rows))
        assert np.abs(rows).max() > 10
    else:
        assert np.array_equal(as_it_is, rows)


SEEN: dict[str, tuple[list[float], bool]] = {
    "standardised": ([-1.2, 0.3, 2.0, -0.4], False),
    "all small": ([9, 10, 1, 2], False),
    "around 0": ([-300, 120, 45, -20], False),
    "around 0, a long tail": ([-3, 900, -450, -20], False),
    "of two scales": ([-0.3, 0.2, -4000, 3900], True),
    "all of one sign": ([40, 13, 38, 60], True),
    "mostly nothing": ([0, 0, 0, 40, 12], False),
    "mostly nothing, and of two scales": ([0, 0, 0, 3000, 1], True),
    "nothing": ([0, 0, 0], False),
}


@pytest.mark.parametrize("name", SEEN)
def test_a_row_on_one_scale_stays_as_it_is(name: str) -> None:
    row, by = SEEN[name]
    assert by_size(row) == by
    assert by_size([-one for one in row]) == by
