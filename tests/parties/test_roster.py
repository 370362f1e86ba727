"""Cards, rosters and signed messages: what cannot be read is refused in words."""

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.errors import ConfigError, DataError
from incrowd.parties.roster import MOST_PARTIES, Card, Roster, digest, opened, signed
from tests.parties.crew import key_of

ROSTER = Roster(tuple(Card.of(name, key_of(name)) for name in ("south", "north", "east")))


def test_a_roster_is_the_same_after_its_form() -> None:
    assert Roster.from_json(ROSTER.to_json()) == ROSTER
    assert ROSTER.names == ("east", "north", "south")
    assert ROSTER.card("north").public == key_of("north").public_key()
    assert len(ROSTER.shown.split()) == 8
    with pytest.raises(DataError, match="no party 'west'"):
        ROSTER.card("west")
    with pytest.raises(ConfigError, match="not whole"):
        Roster.from_json([{"name": "a"}])


def test_the_longest_names_of_most_parties_fit_a_list() -> None:
    names = [f"{each:02}" + "\u00e9" * 58 for each in range(MOST_PARTIES)]
    frame = signed("list", {"parties": dict.fromkeys(names, "0" * 64)}, key=key_of("north"))
    assert len(opened("list", frame, key=key_of("north").public_key())[0]["parties"]) == MOST_PARTIES


def test_no_rosters_of_one_or_of_too_many() -> None:
    for many in (1, MOST_PARTIES + 1):
        with pytest.raises(ConfigError, match="give 2 to"):
            Roster(tuple(Card.of(f"p{each}", key_of(f"p{each}")) for each in range(many)))


@pytest.mark.parametrize(
    "name", ["", " north", "nor\nth", "n" * 61, "\ufb00", "Charit\u0435", "\u0410", "\u75c5\u9662"]
)
def test_odd_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="Latin letters"):
        Card.of(name, key_of("x"))


@pytest.mark.parametrize("key", ["", "00", "x" * 64, None, "ab " * 32, "AB" * 32])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="hexadecimal digits"):
        Card(name="north", key=key)


@given(head=st.dictionaries(st.text(max_size=8), st.integers(-9, 9), max_size=4), body=st.binary(max_size=40))
def test_a_message_is_what_was_signed(head: dict[str, int], body: bytes) -> None:
    frame = signed("answer", head, body, key=key_of("north"))
    assert opened("answer", frame, key=key_of("north").public_key(), most=40) == (head, body)
    for place in range(0, len(frame), 7):
        changed = bytearray(frame)
        changed[place] ^= 1
        with pytest.raises(DataError):
            opened("answer", bytes(changed), key=key_of("north").public_key(), most=40)
    with pytest.raises(DataError, match="no list by who"):
        opened("list", frame, key=key_of("north").public_key(), most=40)


def test_messages_that_nobody_should_send_are_refused() -> None:
    key, public = key_of("north"), key_of("north").public_key()
    for frame in (None, b"", b"x" * 200_000, signed("a", {}, b"x" * 9, key=key)):
        with pytest.raises(DataError):
            opened("a", frame, key=public, most=8)
    for text in (b"{", b"[]", b"\xff", b"[" * 60_000):
        front = struct.pack(">8sII", b"incrowd1", len(text), 0) + text
        statement = b"incrowd secure sum a " + hashlib.sha256(front).digest()
        with pytest.raises(DataError, match="whose head is no JSON"):
            opened("a", front + key.sign(statement), key=public)


def test_digests_of_different_values_differ() -> None:
    assert len({digest("a", "b"), digest("ab"), digest(["a", "b"]), digest("a", ["b"])}) == 4
