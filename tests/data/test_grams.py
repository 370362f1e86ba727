"""Pieces of texts in buckets."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.data import Reading, Text, column_of
from incrowd.data.grams import hashed
from incrowd.errors import DataError


def seen(text: str, **changed: Any) -> list[float]:
    usual: dict[str, Any] = {"buckets": 4096, "characters": (2, 3), "words": False}
    return sorted(abs(number) for number in hashed(text, **usual | changed) if number)


def test_what_a_text_becomes_is_the_same_everywhere() -> None:
    made = hashed("to be", buckets=8, characters=(1, 1), words=True)
    assert made == pytest.approx([-0.6546536707, 0.377964473, -0.5345224838, 0, 0, -0.377964473, 0, 0], abs=1e-9)


def test_pieces_count_by_their_square_roots() -> None:
    assert seen("aaaa") == pytest.approx([math.sqrt(2 / 5), math.sqrt(3 / 5)])  # aaa twice, aa three times
    assert seen("ab") == [1.0]
    assert seen("ab", words=True) == pytest.approx([math.sqrt(1 / 2)] * 2)  # the word, and the same letters as a piece


def test_pieces_have_both_signs() -> None:
    signs = [sum(hashed(letter, buckets=64, characters=(1, 1), words=False)) for letter in "abcdefghijklmnopqrstuvwxyz"]
    assert {-1.0, 1.0} == set(signs)


@pytest.mark.slow
@given(st.text(max_size=40), st.integers(1, 50), st.booleans())
def test_every_text_is_of_length_one_or_zeros(text: str, buckets: int, words: bool) -> None:
    made = hashed(text, buckets=buckets, characters=(1, 3), words=words)
    assert len(made) == buckets
    length = math.sqrt(sum(number**2 for number in made))
    assert length == pytest.approx(1) or set(made) <= {0.0}


@given(st.text(alphabet="abcXYZ ./-", max_size=40))
def test_case_does_not_matter(text: str) -> None:
    assert hashed(text, buckets=16, characters=(1, 3), words=True) == hashed(
        text.lower(), buckets=16, characters=(1, 3), words=True
    )


def test_a_missing_text_is_refused_unless_something_stands_for_it() -> None:
    with pytest.raises(DataError, match="is missing"):
        Text().encoded("", Reading())
    assert set(Text(missing="").encoded("", Reading())) == {0.0}
    assert Text(buckets=9, missing="none", indicator=True).encoded("NA", Reading())[-1] == 1.0


def test_settings_spell_a_text() -> None:
    assert column_of({"buckets": 64, "words": False}) == Text(buckets=64, words=False)
    assert column_of("text") == Text()
