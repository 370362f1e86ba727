"""Cards and rosters: what cannot be read is refused in words."""

import pytest

from incrowd.errors import ConfigError, DataError
from incrowd.parties.roster import MOST_PARTIES, Card, Roster, digest
from tests.parties.crew import key_of, opened, signed

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
    frame = signed("list", {"plan": "p", "parties": dict.fromkeys(names, "0" * 64)}, key=key_of("north"))
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


def test_digests_of_different_values_differ() -> None:
    assert len({digest("a", "b"), digest("ab"), digest(["a", "b"]), digest("a", ["b"])}) == 4
