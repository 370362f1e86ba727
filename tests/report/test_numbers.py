"""Numbers of a page: short, and bounds are never rounded down."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.privacy import statement
from incrowd.report import markup
from incrowd.report.result import found_at_most


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0"),
        (1234.5678, "1,235"),
        (0.001, "0.001"),
        (1e-5, "10⁻⁵"),
        (2.5e-6, "2.5·10⁻⁶"),
        (float("nan"), markup.UNKNOWN),
    ],
)
def test_numbers_are_short(value: float, said: str) -> None:
    assert markup.number(value) == said


@given(st.floats(0, 1))
def test_the_odds_of_a_promise_are_never_rounded_down(share: float) -> None:
    assert float(markup.percent_at_most(share).removesuffix("\u00a0%")) >= 100 * share


def test_powers_and_minus_signs_are_as_in_print() -> None:
    assert "2⁻⁴² to epsilon and 2⁻⁶¹ to" in markup.typeset(statement.FINITE)
    assert markup.typeset("-0.5 of what-if 3-4 a-1") == "\u22120.5 of what-if 3-4 a-1"


@given(st.floats(0, 20), st.floats(0, 0.5))
def test_who_is_found_at_most_is_what_the_promise_allows(epsilon: float, delta: float) -> None:
    """The two inequalities of differential privacy (Kairouz, Oh, Viswanath 2015), one of which is tight."""
    found = found_at_most(epsilon, delta)
    room = [math.exp(epsilon) * 0.01 + delta - found, math.exp(epsilon) * (1 - found) + delta - 0.99]
    assert min(room) == pytest.approx(0, abs=1e-6) or found == 1
    assert min(room) >= -1e-6 * math.exp(epsilon)
