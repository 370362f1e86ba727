"""Text, its words, parts and buckets, against rules spelt out slowly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.drawdiscard.texts import LONGEST_TEXT, UrlParts, buckets_of, lowered, ngrams, part_of, text_of, words_of

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
    ("text", "value"),
    [("", 0x811C9DC5), ("a", 0xE40C292C), ("foobar", 0xBF9CF968), ("hello", 0x4F9F2CAB)],
)
def test_buckets_come_from_the_published_hash(text: str, value: int) -> None:
    assert hashed_slowly(text) == value  # the vectors of its authors
    assert buckets_of([text], 2**32).tolist() == [value]


@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=8),
    buckets=st.integers(1, 2**20),
)
def test_all_buckets_at_once_are_those_one_by_one(texts: list[str], buckets: int) -> None:
    assert buckets_of(texts, buckets).tolist() == [hashed_slowly(text) % buckets for text in texts]


@given(ANY_TEXT)
def test_words_are_runs_of_letters_digits_and_what_is_not_ascii(text: str) -> None:
    assert words_of(text) == words_slowly(text)


def test_only_ascii_has_small_letters() -> None:
    assert lowered("ABZ az ÄİΣ") == "abz az ÄİΣ"


@given(value=ANY_TEXT | st.integers() | st.floats() | st.none() | st.booleans() | st.binary())
def test_whatever_a_value_is_its_text_can_be_written(value: object) -> None:
    text = text_of(value)
    assert text is None or text.encode().decode() == text


def test_the_text_of_numbers_is_their_digits() -> None:
    values = [7, 7.0, -3.0, -0.0, True, 7.5, float("inf"), float("nan"), 2.0**53, 2.0**54, None, b"7"]
    assert [text_of(value) for value in values] == [
        *("7", "7", "-3", "0", "1", None, None, None, str(2**53), None, None, None)
    ]


def test_half_a_character_counts_as_a_replacement_and_two_halves_as_one() -> None:
    assert text_of("a\ud83d") == "a\ufffd"
    assert text_of("\ud83d\ude00") == "\U0001f600"
    assert text_of("\ude00\ud83d") == "\ufffd\ufffd"


def test_ngrams_of_words_and_of_characters() -> None:
    assert ngrams(["a", "b", "c"], shortest=1, longest=2, between=" ") == ["a", "b", "c", "a b", "b c"]
    assert ngrams("abc", shortest=2, longest=3, between="") == ["ab", "bc", "abc"]
    assert ngrams("abc", shortest=4, longest=5, between="") == []


def test_a_url_falls_into_its_parts() -> None:
    parts = UrlParts.of(" https://user:pw@mail.shop.example.co.uk:8443/a/b.php?x=1&y=2#top@mail\t")
    assert (parts.scheme, parts.host, parts.port) == ("https", "mail.shop.example.co.uk", "8443")
    assert (parts.path, parts.query, parts.fragment) == ("/a/b.php", "x=1&y=2", "top@mail")
    assert parts.rest == "/a/b.php?x=1&y=2#top@mail"
    assert (parts.ending, parts.name, parts.inner) == ("uk", "example", "mail.shop")


@pytest.mark.parametrize(
    ("url", "host", "name", "inner"),
    [
        ("https://www.river.org/", "www.river.org", "river", ""),
        ("http://river.org?next=1", "river.org", "river", ""),
        ("river.org/path", "river.org", "river", ""),
        ("http://co.uk/", "co.uk", "co", ""),
        ("http://localhost", "localhost", "localhost", ""),
        ("http://a?b://c", "a", "a", ""),
        ("", "", "", ""),
        ("://", "", "", ""),
    ],
)
def test_parts_of_short_and_odd_hosts(url: str, host: str, name: str, inner: str) -> None:
    parts = UrlParts.of(url)
    assert (parts.host, parts.name, parts.inner) == (host, name, inner)


@given(ANY_TEXT)
def test_every_text_has_parts_and_the_rest_holds_the_last_three(text: str) -> None:
    parts = UrlParts.of(text)
    assert parts.path + "?" * ("?" in parts.rest.partition("#")[0]) + parts.query in parts.rest
    assert parts.rest.endswith(parts.fragment)
    assert parts.host.endswith(parts.ending)


def test_only_the_first_characters_count() -> None:
    long = "http://a.org/" + "x" * LONGEST_TEXT
    assert part_of(long, part="all", lower=True) == long[:LONGEST_TEXT]
    assert part_of(long + "?q", part="query", lower=True) == ""
    assert part_of("A" + "b" * 3, part="all", lower=False) == "Abbb"
    assert part_of(0.5, part="all", lower=True) is None
