"""A party's folder after an accident, or of an owner who changes his mind: what was promised still holds."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from incrowd.errors import LedgerMismatch, LedgerRolledBack, SpecificationRefused
from incrowd.federation import Federation
from incrowd.flower.node import join
from incrowd.parties.frames import Place, Request
from incrowd.parties.guard import LEDGER, MEMORY, given
from incrowd.parties.keys import question_key
from incrowd.parties.network import offer_of
from incrowd.parties.offer import Offer
from incrowd.runs.config import Config
from incrowd.runs.work import assemble, assemble_silos
from tests.parties.members import ALLOW, ROWS, Hospitals, settings_text
from tests.parties.parties import request

pytestmark = pytest.mark.watched

DRAWN = 'epsilon = 50.0\ndelta = 1e-5\nrounds = 3\ncohort = 2\nsampling = "poisson"\n'
RECORDS = f'unit = "record"\nepsilon = 10.0\ndelta = 1e-5\nrounds = 3\nrecords = {ROWS}\nclip_norm = 1.0\n'
OF_RECORDS = f'unit = "record"\nrecords = {ROWS}\n'


@pytest.fixture
def hospitals(tmp_path: Path) -> Hospitals:
    return Hospitals(tmp_path)


def of_clients(hospitals: Hospitals, privacy: str = "epsilon = 50.0\ndelta = 1e-5\nrounds = 3\n") -> Offer:
    (hospitals.folder / "there.toml").write_text(settings_text(here=False, privacy=privacy))
    federation = Federation.from_settings(hospitals.folder / "there.toml")
    assert isinstance(federation.settings, Config)
    return offer_of(assemble(federation.settings, given=federation.given, schedule=federation.schedule))


def of_records(hospitals: Hospitals) -> Offer:
    (hospitals.folder / "there.toml").write_text(settings_text(here=False, privacy=RECORDS))
    federation = Federation.from_settings(hospitals.folder / "there.toml")
    assert federation.settings.of_records
    return offer_of(assemble_silos(federation.settings, given=federation.given))


def said(hospitals: Hospitals, frame: Callable[[], bytes]) -> bytes:
    """What amber says in a life of its own."""
    party = hospitals.member("amber").open()
    try:
        return party.answer(frame())
    finally:
        party.close()


def offered(hospitals: Hospitals, offer: Offer) -> bytes:
    return said(hospitals, lambda: offer.to_bytes(question_key(hospitals.folder / "server")))


def asked(hospitals: Hospitals, offer: Offer, *, weights: float = 0.0) -> bytes:
    """The first round, from weights that all differ."""
    question = request(offer, 0, clip=offer.plan.config.clip)  # type: ignore[arg-type]  # a clip that is fixed
    begin = replace(question, weights=weights * np.arange(offer.size, dtype=np.float32))
    return said(hospitals, lambda: begin.to_bytes(question_key(hospitals.folder / "server")))


def rounds(hospitals: Hospitals) -> list[int]:
    return [row["round"] for row in given(hospitals.folder / "amber")["events"]]


def test_who_lost_its_memory_does_not_answer_a_round_twice_for_one_price(hospitals: Hospitals) -> None:
    offer = of_clients(hospitals)
    offered(hospitals, offer)
    asked(hospitals, offer)
    (hospitals.folder / "amber" / MEMORY).unlink()
    offered(hospitals, offer)
    with pytest.raises(SpecificationRefused, match="round 0 was paid for, and what was asked in it is not known"):
        asked(hospitals, offer, weights=1.0)
    assert rounds(hospitals) == [0]


def test_control_another_question_has_another_answer(hospitals: Hospitals) -> None:
    offer = of_clients(hospitals)
    found = set()
    for weights in (0.0, 1.0):
        offered(hospitals, offer)
        found.add(asked(hospitals, offer, weights=weights))
        for path in (hospitals.folder / "amber").glob("*.sqlite*"):
            path.unlink()
    assert len(found) == 2


@pytest.mark.slow
def test_who_lost_its_ledger_with_its_witness_begins_no_other(hospitals: Hospitals) -> None:
    """It would have its whole allowance again."""
    offer = of_clients(hospitals)
    offered(hospitals, offer)
    asked(hospitals, offer)
    for path in (hospitals.folder / "amber").glob(f"{LEDGER}*"):
        path.unlink()
    for other in (offer, of_clients(hospitals, DRAWN)):
        with pytest.raises(LedgerRolledBack, match="is gone, and this party has accepted offers on it"):
            offered(hospitals, other)
    assert not (hospitals.folder / "amber" / LEDGER).exists()


@pytest.mark.parametrize("accident", ["lost", "another unit", "another budget"])
def test_an_owner_is_told_before_any_question(accident: str, hospitals: Hospitals) -> None:
    """A server is told nothing of it: without that, the party would be silent for no reason that anybody sees."""
    offered(hospitals, of_clients(hospitals, DRAWN))
    if accident == "lost":
        for path in (hospitals.folder / "amber").glob(f"{LEDGER}*"):
            path.unlink()
    else:
        unit = accident == "another unit"
        hospitals.state("amber", more=OF_RECORDS if unit else "", allow=ALLOW if unit else ALLOW.replace("100", "99"))
    with pytest.raises((LedgerRolledBack, LedgerMismatch)):
        join(hospitals.member("amber"), threading.Event())


def test_control_who_accepted_nothing_begins_its_ledger(hospitals: Hospitals) -> None:
    with pytest.raises(SpecificationRefused):
        offered(hospitals, of_clients(hospitals).replaced(columns=("age",)))
    assert not (hospitals.folder / "amber" / LEDGER).exists()
    offered(hospitals, of_clients(hospitals))
    assert (hospitals.folder / "amber" / LEDGER).exists()
    ended = threading.Event()
    ended.set()
    join(hospitals.member("amber"), ended)


@pytest.mark.parametrize("first", ["client", "record"])
def test_a_ledger_of_whole_clients_pays_for_no_records_nor_the_other_way_round(
    first: str, hospitals: Hospitals
) -> None:
    """Both are priced for one more or less, of two things: what was spent on records promises nothing of the whole."""
    whole = first == "client"
    for unit in (whole, not whole):
        for name in hospitals.names:
            hospitals.state(name, more="" if unit else OF_RECORDS)
        offer = of_clients(hospitals, DRAWN) if unit else of_records(hospitals)
        if unit is whole:
            assert offered(hospitals, offer)
        else:
            with pytest.raises(LedgerMismatch, match="unit="):
                offered(hospitals, offer)


STRICTER = ['fields = ["age"]\n', 'models = ["mlp"]\n', "least_noise = 100.0\n", "most_weights = 3\n"]


@pytest.mark.parametrize("rule", STRICTER)
def test_a_stricter_rule_holds_for_what_was_accepted_before(rule: str, hospitals: Hospitals) -> None:
    offer = of_clients(hospitals)
    offered(hospitals, offer)
    hospitals.state("amber", allow=ALLOW + rule)
    with pytest.raises((SpecificationRefused, ValueError)):
        asked(hospitals, offer)
    assert rounds(hospitals) == []


@pytest.mark.parametrize("rule", STRICTER)
def test_a_stricter_rule_holds_for_silos(rule: str, hospitals: Hospitals) -> None:
    hospitals.state("amber", more=OF_RECORDS)
    offer = of_records(hospitals)
    offered(hospitals, offer)
    hospitals.state("amber", more=OF_RECORDS, allow=ALLOW + rule)
    with pytest.raises((SpecificationRefused, ValueError)):
        asked_silo(hospitals, offer)
    assert rounds(hospitals) == []


def test_control_as_long_as_the_rules_stay_a_round_is_answered(hospitals: Hospitals) -> None:
    offer = of_clients(hospitals)
    offered(hospitals, offer)
    hospitals.state("amber", allow=ALLOW + 'models = ["linear"]\n')
    assert asked(hospitals, offer)
    assert rounds(hospitals) == [0]


def asked_silo(hospitals: Hospitals, offer: Offer) -> bytes:
    place = Place(plan=offer.fingerprint, round=0, party="")
    question = Request(place=place, weights=np.zeros(offer.size, np.float32), clip={})
    return said(hospitals, lambda: question.to_bytes(question_key(hospitals.folder / "server")))


def test_control_a_silo_whose_rules_stay_answers(hospitals: Hospitals) -> None:
    hospitals.state("amber", more=OF_RECORDS)
    offer = of_records(hospitals)
    offered(hospitals, offer)
    assert asked_silo(hospitals, offer)
    assert rounds(hospitals) == [0]


def test_what_a_server_says_does_not_drive_the_terminal_of_a_party_s_owner(hospitals: Hospitals) -> None:
    odd = "\x1b]0;all is well\x07\n2026 refused nothing \u202e"
    with pytest.raises(SpecificationRefused) as refused:
        offered(hospitals, of_clients(hospitals).replaced(columns=(odd,)))
    assert odd in str(refused.value)  # the control: it would be shown
    [row] = given(hospitals.folder / "amber")["refused"]
    assert "all is well" in row["why"]
    assert row["why"].isprintable()
