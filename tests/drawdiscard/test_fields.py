import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.drawdiscard.fields import BooleanField, CategoryField, IntegerField, NumberField, TableField, known

NUMBER = NumberField(low=-1.0, high=3.0)
INTEGER = IntegerField(low=0, high=4)
CATEGORY = CategoryField(levels=("a", "b", "7"), baseline="b")
ANY_VALUE = st.none() | st.integers() | st.floats() | st.text() | st.booleans() | st.binary()


@pytest.mark.slow
@given(values=st.lists(ANY_VALUE, max_size=5))
@pytest.mark.parametrize("field", [NUMBER, INTEGER, BooleanField(), CATEGORY], ids=lambda field: field.type)
def test_every_value_becomes_numbers_from_0_to_1(field: TableField, values: list[object]) -> None:
    features = field.encode(values).toarray()
    assert features.shape == (len(values), len(field.columns("x")))
    assert np.all((features >= 0) & (features <= 1))


def test_a_response_is_known_where_it_makes_sense() -> None:
    assert known(NUMBER, [1, 2.5, None, "1", math.nan]) == [True, True, False, False, False]
    assert known(CATEGORY, ["a", "b", "unknown", None, 7]) == [True, True, False, False, True]
