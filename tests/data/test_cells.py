import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.data.reading import Reading, as_float32, text_of
from incrowd.errors import DataError

USUAL = Reading()
GERMAN = Reading(decimal=",", thousands=".")


@pytest.mark.parametrize(
    ("reading", "text", "number"),
    [
        (USUAL, "12", 12),
        (USUAL, "-0012", -12),
        (USUAL, "+1.50", 1.5),
        (USUAL, "12.00", 12),
        (USUAL, ".5", 0.5),
        (USUAL, "5.", 5),
        (USUAL, "1e3", 1000.0),
        (USUAL, "-2.5E-3", -0.0025),
        (USUAL, "9007199254740993", 9007199254740993),  # beyond what a float64 tells apart
        (GERMAN, "1.234.567,5", 1234567.5),
        (GERMAN, "12,5", 12.5),
        (GERMAN, "1234", 1234),
        (Reading(thousands=","), "1,234.5", 1234.5),
        (Reading(thousands="'"), "1'234", 1234),
    ],
)
def test_numbers_are_read_exactly(reading: Reading, text: str, number: float) -> None:
    assert reading.number(text) == number
    assert type(reading.number(text)) is type(number)


@pytest.mark.parametrize(
    ("reading", "text", "why"),
    [
        (USUAL, "1,234", "',' in it is: decimal or thousands"),
        (USUAL, "1,5", "',' in it is: decimal or thousands"),
        (USUAL, "1.234,5", "fill it in"),
        (Reading(decimal=","), "1.234", r"'\.' in it is"),
        (Reading(decimal=","), "1.5", r"'\.' in it is"),
        (GERMAN, "12.34", "is not a number"),  # no group of three
        (GERMAN, "1.2345,6", "is not a number"),
        (USUAL, "1_000", "is not a number"),  # Python would take it
        (USUAL, "\u0661\u0662", "is not a number"),  # and these digits
        (USUAL, "inf", "is not a number"),
        (USUAL, "0x10", "is not a number"),
        (USUAL, "", "is not a number"),
        (USUAL, ".", "is not a number"),
        (USUAL, "1e999", "is beyond every float32"),
        (USUAL, "9" * 500, "is not a number"),
        (USUAL, True, "is true or false"),
        (USUAL, math.inf, "is not a number"),
        (USUAL, b"1", "is not a number"),
        (USUAL, None, "is not a number"),
    ],
)
def test_what_is_no_number_as_stated_is_refused(reading: Reading, text: Any, why: str) -> None:
    with pytest.raises(DataError, match=why):
        reading.number(text)


@given(st.text(max_size=8) | st.from_regex(r"[0-9.,eE+-]{1,8}", fullmatch=True))
def test_a_number_that_is_taken_is_one_that_python_knows(text: str) -> None:
    try:
        number = USUAL.number(text)
    except DataError:
        return
    assert float(number) == float(text)


@pytest.mark.parametrize("cell", [7.5, 2.0**53, Fraction(1, 2), math.nan])
def test_a_number_that_is_not_exact_is_no_id(cell: Any) -> None:
    with pytest.raises(DataError, match="fraction, or too large to be exact"):
        text_of(cell)


def test_blanks_are_refused_or_dropped_or_kept_as_stated() -> None:
    with pytest.raises(DataError, match='has blanks around it; drop them, or state blanks = "strip" or "keep"'):
        USUAL.cleaned("ann ")
    assert USUAL.cleaned("ann lee") == "ann lee"
    assert Reading(blanks="strip").cleaned("\u00a0ann\t") == "ann"
    assert Reading(blanks="keep").cleaned(" ann") == " ann"
    assert USUAL.cleaned(7) == 7


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (2**24 + 1, "whole number beyond 2"),
        (float(2**24 + 1), "whole number beyond 2"),
        (-(2**53) - 1, "whole number beyond 2"),
        (1e39, "beyond every float32"),
        (10**400, "beyond every float32"),
        (1e-60, "nearer to 0"),
        (3e-45, "nearer to 0"),
    ],
)
def test_what_float32_would_change_is_refused(number: float, why: str) -> None:
    with pytest.raises(DataError, match=why):
        as_float32(number)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_nothing_moves_further_than_half_a_step(number: float) -> None:
    try:
        kept = as_float32(number)
    except DataError:
        return
    assert kept == float(np.float32(number))
    assert abs(kept - number) <= 2**-24 * abs(number)
    assert kept == number or number != int(number)
