"""Numbers of a page: short, and bounds are never rounded down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.privacy import statement
from incrowd.report import numbers


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0"),
        (1234.5678, "1,235"),
        (0.001, "0.001"),
        (1e-5, "10⁻⁵"),
        (2.5e-6, "2.5·10⁻⁶"),
        (float("nan"), numbers.UNKNOWN),
    ],
)
def test_numbers_are_short(value: float, said: str) -> None:
    assert numbers.number(value) == said


@given(st.floats(0, 1))
def test_the_odds_of_a_promise_are_never_rounded_down(share: float) -> None:
    assert float(numbers.percent_at_most(share).removesuffix("\u00a0%")) >= 100 * share


def test_powers_and_minus_signs_are_as_in_print() -> None:
    assert "2⁻⁴² to epsilon and 2⁻⁶¹ to" in numbers.typeset(statement.FINITE)
    assert numbers.typeset("-0.5 of what-if 3-4 a-1") == "\u22120.5 of what-if 3-4 a-1"
