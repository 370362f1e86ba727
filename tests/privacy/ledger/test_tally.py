"""Entries that are well chained, and nonsense."""

from collections.abc import Iterator

import pytest

from incrowd.errors import LedgerDamaged
from incrowd.privacy.account.events import event_to_json
from incrowd.privacy.ledger.chain import APPLICATION, FORMAT, SCHEMA, Chain, Entry, link
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Tally
from tests.privacy.ledgers import EVENT, SMALL


@pytest.fixture
def chain() -> Iterator[Chain]:
    chain = Chain(None)
    with chain.transaction(write=True):
        for statement in (*SCHEMA, f"PRAGMA application_id = {APPLICATION}", f"PRAGMA user_version = {FORMAT}"):
            chain._connection.execute(statement)
    yield chain
    chain.close()


Content = dict[str, object]

TERMS: Content = {
    "budget": {"epsilon": 1.0, "delta": 1e-5},
    "relation": "ADD_OR_REMOVE_ONE",
    "data_identity": {"name": "x"},
    "forgets": [],
    "id": "1",
}
CHARGE: Content = {"event": event_to_json(SMALL), "reservation": None, "note": {}, "key": None, "randomness": "system"}
PLAN: Content = {"label": "run", "runs": [[event_to_json(SMALL), 1]]}


def append(chain: Chain, *contents: tuple[str, Content]) -> None:
    with chain.transaction(write=True):
        for kind, content in contents:
            chain.append(kind, content)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("terms", TERMS),
        ("gift", {}),
        ("charge", {}),
        ("charge", {**CHARGE, "event": {"kind": "gaussian", "noise_multiplier": -1.0}}),
        ("charge", {**CHARGE, "event": 3}),
        ("charge", {**CHARGE, "reservation": "walk"}),
        ("charge", {**CHARGE, "reservation": ["run"]}),
        ("charge", {**CHARGE, "event": event_to_json(EVENT), "reservation": "run"}),
        ("reserve", PLAN),
        ("reserve", {"label": "other", "runs": [[event_to_json(SMALL), 0]]}),
        ("reserve", {"label": "other", "runs": 3}),
        ("release", {"label": "walk"}),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(chain: Chain, kind: str, content: Content) -> None:
    append(chain, ("terms", TERMS), ("reserve", PLAN), (kind, content))
    with pytest.raises(LedgerDamaged, match=rf"entry 2 of the ledger \({kind}\) makes no sense"):
        Ledger(chain)


@pytest.mark.parametrize("charged", [{"reservation": "run"}, {"key": "a"}])
def test_a_key_or_a_reservation_that_is_charged_once_too_often_is_refused(chain: Chain, charged: Content) -> None:
    append(chain, ("terms", TERMS), ("reserve", PLAN), ("charge", {**CHARGE, **charged}))
    assert Ledger(chain).paid("a") is ("key" in charged)
    append(chain, ("charge", {**CHARGE, **charged}))
    with pytest.raises(LedgerDamaged, match="entry 3"):
        Ledger(chain)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("budget", {"epsilon": -1.0, "delta": 0.5}),
        ("budget", {}),
        ("relation", "FRIENDS"),
        ("data_identity", {"name": ""}),
    ],
)
def test_terms_that_make_no_sense_are_refused(chain: Chain, field: str, value: object) -> None:
    append(chain, ("terms", {**TERMS, field: value}))
    with pytest.raises(LedgerDamaged, match="entry 0"):
        Ledger(chain)


@pytest.mark.parametrize("contents", [[], [("charge", CHARGE)], [("gift", TERMS)]], ids=["nothing", "charge", "gift"])
def test_a_ledger_without_terms_is_refused(chain: Chain, contents: list[tuple[str, Content]]) -> None:
    append(chain, *contents)
    with pytest.raises(LedgerDamaged):
        _ = Ledger(chain).budget


@pytest.mark.parametrize("body", ["", "[]", "7", "{", "[" * 10**5], ids=lambda body: body[:3])
def test_a_body_that_is_no_json_object_is_refused(body: str) -> None:
    entry = Entry(position=3, kind="charge", at="", body=body, hash="")
    with pytest.raises(LedgerDamaged, match="entry 3 of the ledger is not"):
        Tally().apply(entry)


def test_no_two_entries_are_hashed_alike() -> None:
    rows = [("ab", "c", "d"), ("a", "bc", "d"), ("a", "b", "cd"), ('a","b', "c", "d"), ("a", 'b","c', "d")]
    hashes = {link("", position=1, kind=kind, at=at, body=body) for kind, at, body in rows}
    hashes |= {link(previous, position=1, kind="ab", at="c", body="d") for previous in ("x", "y")}
    hashes |= {link("", position=2, kind="ab", at="c", body="d")}
    assert len(hashes) == len(rows) + 3
