"""Text, its words, parts and buckets, against rules spelt out slowly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.drawdiscard.texts import buckets_of, text_of, url_parts, words_of

ANY_TEXT = st.text(st.characters(), max_size=40)  # halves of surrogate pairs among them


def hashed_slowly(text: str) -> int:
    value = 2_166_136_261
    for byte in text.encode():
        value = ((value ^ byte) * 16_777_619) % 2**32
    return value


def words_slowly(text: str) -> list[str]:
    kept = "".join(
        character if ord(character) >= 0x80 or (character.isascii() and character.isalnum()) else " "
        for character in text
    )
    return [word for word in kept.split(" ") if word]


@pytest.mark.parametrize(
    ("text", "value"), [("", 0x811C9DC5), ("a", 0xE40C292C), ("foobar", 0xBF9CF968), ("hello", 0x4F9F2CAB)]
)
def test_buckets_come_from_the_published_hash(text: str, value: int) -> None:
    assert hashed_slowly(text) == value  # the vectors of its authors
    assert buckets_of([text], 2**32).tolist() == [value]


@given(ANY_TEXT)
def test_words_are_runs_of_letters_digits_and_what_is_not_ascii(text: str) -> None:
    assert words_of(text) == words_slowly(text)


@given(value=ANY_TEXT | st.integers() | st.floats() | st.none() | st.booleans() | st.binary())
def test_whatever_a_value_is_its_text_can_be_written(value: object) -> None:
    text = text_of(value)
    assert text is None or text.encode().decode() == text


def test_a_url_falls_into_its_parts() -> None:
    parts = url_parts(" https://user:pw@mail.shop.example.co.uk:8443/a/b.php?x=1&y=2#top@mail\t")
    assert (parts["scheme"], parts["host"], parts["port"]) == ("https", "mail.shop.example.co.uk", "8443")
    assert (parts["path"], parts["query"], parts["fragment"]) == ("/a/b.php", "x=1&y=2", "top@mail")
    assert parts["rest"] == "/a/b.php?x=1&y=2#top@mail"
    assert (parts["ending"], parts["name"], parts["inner"]) == ("uk", "example", "mail.shop")


@given(ANY_TEXT)
def test_every_text_has_parts_and_the_rest_holds_the_last_three(text: str) -> None:
    parts = url_parts(text)
    assert parts["path"] + "?" * ("?" in parts["rest"].partition("#")[0]) + parts["query"] in parts["rest"]
    assert parts["rest"].endswith(parts["fragment"])
    assert parts["host"].endswith(parts["ending"])
