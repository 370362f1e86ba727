from datetime import date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.data import Category, Column, Date, Ignored, Number, Text, YesNo, column_of
from incrowd.data.reading import Reading, as_float32
from incrowd.data.schema import BUCKETS, numbered
from incrowd.errors import DataError

USUAL = Reading()
EAST = timezone(timedelta(hours=2))
YEARS = (date(2015, 1, 1), date(2025, 12, 31))


@pytest.mark.parametrize(
    ("column", "cell", "values"),
    [
        (Number(), "2.5", (2.5,)),
        (Number(range=(0, 120)), "60", (0.0,)),
        (Number(range=(0, 120)), 120, (1.0,)),
        (Number(range=(0, 120), to=(0, 1)), "30", (0.25,)),
        (Number(range=(0, 120), outside="clip"), "130", (1.0,)),
        (Number(range=(0, 120), outside="clip"), "-1", (-1.0,)),
        (Number(range=(0, 120), missing=60), "NA", (0.0,)),
        (Number(range=(0, 120), missing=60, indicator=True), "", (0.0, 1.0)),
        (Number(range=(0, 120), missing=60, indicator=True), "0", (-1.0, 0.0)),
        (Number(range=(0, 1e10)), "16777217", (2 * 16777217 / 1e10 - 1,)),
        (Number(whole=True), "12.0", (12.0,)),
        (Category(levels=("f", "m")), "m", (0.0, 1.0)),
        (Category(levels=("f", "m"), other=True), "x", (0.0, 0.0, 1.0)),
        (Category(levels=("f", "m"), other=True), "f", (1.0, 0.0, 0.0)),
        (Category(levels=("f", "m"), other=True, missing="other"), "", (0.0, 0.0, 1.0)),
        (Category(levels=("f", "m"), missing="f"), None, (1.0, 0.0)),
        (Category(levels=("DE", "NA")), "NA", (0.0, 1.0)),  # Namibia is not missing
        (Category(levels=("1", "2")), 2.0, (0.0, 1.0)),
        (YesNo(), "Yes", (1.0,)),
        (YesNo(), False, (0.0,)),
        (YesNo(), 1, (1.0,)),
        (YesNo(yes=("ja",), no=("nein",)), "NEIN", (0.0,)),
        (YesNo(yes=("ja",), no=("", "nein")), "", (0.0,)),
        (YesNo(missing=False, indicator=True), "NA", (0.0, 1.0)),
        (Date(dates=YEARS), "2015-01-01", (-1.0,)),
        (Date(dates=(date(2020, 1, 1), date(2020, 1, 2)), to=(0, 1)), "2020-01-02", (0.5,)),
        (Date(dates=(date(2020, 1, 1), date(2020, 1, 2)), to=(0, 1)), "2020-01-02T12:00", (0.75,)),
        (Date(dates=(date(2020, 1, 1), date(2020, 1, 2)), to=(0, 1)), datetime(2020, 1, 2), (0.5,)),
        (Date(dates=(date(2020, 1, 1), date(2020, 1, 2)), to=(0, 1)), date(2020, 1, 2), (0.5,)),
        (Date(dates=(date(2020, 1, 1), date(2020, 1, 2)), to=(0, 1), format="%d.%m.%Y"), "02.01.2020", (0.5,)),
        (Date(dates=(date(2020, 1, 1), date(2020, 1, 2)), to=(0, 1)), "2020-01-02T02:00+02:00", (0.5,)),
        (Date(dates=(date(2020, 1, 1), date(2020, 1, 2)), to=(0, 1)), datetime(2020, 1, 2, 2, tzinfo=EAST), (0.5,)),
        (Date(dates=YEARS, outside="clip"), "1900-01-01", (-1.0,)),
        (Date(dates=YEARS, missing=date(2015, 1, 1)), None, (-1.0,)),
        (Text(pieces=3, missing=""), None, (0.0, 0.0, 0.0)),
        (Ignored(), "anything ", ()),
        (Ignored(), None, ()),
    ],
)
def test_a_cell_becomes_what_is_stated(column: Column, cell: Any, values: tuple[float, ...]) -> None:
    assert column.encoded(cell, USUAL) == values
    assert len(column.features("age")) == len(values)


@pytest.mark.parametrize(
    ("column", "cell", "why"),
    [
        (Number(), "lots", "is not a number"),
        (Number(), "", "is missing; state what stands for it"),
        (Number(), "16777217", "whole number beyond"),
        (Number(whole=True), "1.5", "is not a whole number"),
        (Number(range=(0, 120)), "121", 'is outside of the stated range, 0 to 120; .*outside = "clip"'),
        (Number(range=(0, 120)), " 12", "blanks"),
        (Category(levels=("f", "m")), "x", "is none of the stated levels, f, m"),
        (Category(levels=("f", "m")), "F", "is none of the stated levels"),
        (Category(levels=("f", "m")), "", "is missing"),
        (Category(levels=("1", "2")), 1.5, "fraction"),
        (YesNo(), "perhaps", "says neither yes"),
        (Date(dates=YEARS), "2026-01-01", "outside of the stated range, 2015-01-01 to 2025-12-31"),
        (Date(dates=YEARS), "31.01.2020", "is no date of the form ISO's"),
        (Date(dates=YEARS, format="%d.%m.%Y"), "2020-01-31", "is no date of the form %d.%m.%Y"),
        (Date(dates=YEARS), 43831, "is no date"),
    ],
)
def test_a_cell_that_does_not_fit_is_refused(column: Column, cell: Any, why: str) -> None:
    with pytest.raises(DataError, match=why):
        column.encoded(cell, USUAL)


@given(st.floats(-50, 50), st.floats(0.01, 100), st.floats(0, 1))
def test_a_number_is_found_back(low: float, length: float, share: float) -> None:
    high = low + length
    number = min(low + share * length, high)
    (value,) = Number(range=(low, high)).encoded(number, USUAL)
    assert -1 <= value <= 1
    assert low + (value + 1) / 2 * (high - low) == pytest.approx(number, abs=1e-9)


def pieces(text: str) -> set[float]:
    return set(numbered(text, 100)) - {0.0}


def test_what_a_text_becomes_is_the_same_everywhere() -> None:
    assert numbered("to be", 5) == (61554, -21346, -26649, 63006, 0)


def test_pieces_are_words_and_four_letters_of_them_with_its_edges() -> None:
    assert len(pieces("film")) == 4  # the word, <fil, film, ilm>
    assert len(pieces("a")) == 1  # the word
    assert len(pieces("no!! no")) == 4  # the words no and !!, and these with their edges
    assert pieces("a://b") == pieces("a b") | pieces("://")
    assert pieces("ice cream") == pieces("ice") | pieces("cream")


def test_scripts_without_blanks_are_read_by_characters_and_pairs() -> None:
    numbers = pieces("我们好")
    assert sum(abs(number) > BUCKETS for number in numbers) == 3  # characters, which count half
    assert len(numbers) == 5
    assert pieces("我们") < numbers


@given(st.text(max_size=40), st.integers(1, 50))
def test_numbers_are_whole_and_of_both_signs_and_case_does_not_matter(text: str, most: int) -> None:
    made = numbered(text, most)
    assert len(made) == most
    assert all(number == int(number) and abs(number) <= 2 * BUCKETS for number in made)
    assert made == numbered(text.casefold(), most) == numbered(text, most + 7)[:most]
    assert min(pieces("abcdefghijklm")) < 0 < max(pieces("abcdefghijklm"))


def test_a_missing_text_is_refused_unless_something_stands_for_it() -> None:
    with pytest.raises(DataError, match="is missing"):
        Text().encoded("", Reading())
    assert set(Text(missing="").encoded("", Reading())) == {0.0}
    assert Text(pieces=9, missing="none", indicator=True).encoded("NA", Reading())[-1] == 1.0
    assert column_of({"buckets": 64, "pieces": 9}) == Text(buckets=64, pieces=9)
    assert column_of("text") == Text()


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


def test_blanks_are_dropped_or_kept_as_stated() -> None:
    assert Reading(blanks="strip").cleaned("\u00a0ann\t") == "ann"
    assert Reading(blanks="keep").cleaned(" ann") == " ann"
    assert (USUAL.cleaned("ann lee"), USUAL.cleaned(7)) == ("ann lee", 7)


@given(st.text(max_size=8) | st.from_regex(r"[0-9.,eE+-]{1,8}", fullmatch=True))
def test_a_number_that_is_taken_is_one_that_python_knows(text: str) -> None:
    try:
        number = USUAL.number(text)
    except DataError:
        return
    assert float(number) == float(text)


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
