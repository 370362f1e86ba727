"""Pieces of texts as numbers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.data import Reading, Text, column_of
from incrowd.data.schema import BUCKETS, numbered
from incrowd.errors import ConfigError, DataError


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


@pytest.mark.parametrize("wrong", [{"buckets": 2**17}, {"pieces": 2**15}, {"pieces": 0}])
def test_settings_spell_a_text(wrong: dict[str, Any]) -> None:
    assert column_of({"buckets": 64, "pieces": 9}) == Text(buckets=64, pieces=9)
    assert column_of("text") == Text()
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Text(**wrong)
