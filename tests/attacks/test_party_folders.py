"""A party's folder after an accident, filled up, or of an owner who changes his mind: what was promised still holds."""

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from incrowd.errors import LedgerMismatch, LedgerRolledBack, SpecificationRefused
from incrowd.federation import Federation
from incrowd.flower.node import join
from incrowd.parties import guard
from incrowd.parties.frames import Place, Request
from incrowd.parties.guard import LEDGER, MEMORY, given
from incrowd.parties.keys import question_key
from incrowd.parties.network import offer_of
from incrowd.parties.offer import Offer
from incrowd.runs.work import assemble, assemble_silos
from tests.parties.members import ALLOW, ROWS, Hospitals, settings_text
from tests.parties.parties import request

pytestmark = pytest.mark.watched

CLIENTS = "epsilon = 50.0\ndelta = 1e-5\nrounds = 3\n"
DRAWN = f'{CLIENTS}cohort = 2\nsampling = "poisson"\n'
RECORDS = f'unit = "record"\nepsilon = 10.0\ndelta = 1e-5\nrounds = 3\nrecords = {ROWS}\nclip_norm = 1.0\n'
OF_RECORDS = f'unit = "record"\nrecords = {ROWS}\n'


def offer_for(hospitals: Hospitals, privacy: str = CLIENTS) -> Offer:
    (hospitals.folder / "there.toml").write_text(settings_text(here=False, privacy=privacy))
    federation = Federation.from_settings(hospitals.folder / "there.toml")
    work = assemble_silos if federation.settings.of_records else assemble
    return offer_of(work(federation.settings, given=federation.given))


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
    begin = weights * np.arange(offer.size, dtype=np.float32)
    if offer.form_of("amber")["unit"] == "record":
        question = Request(place=Place(plan=offer.fingerprint, round=0, party=""), weights=begin, clip={})
    else:
        clip = offer.plan.config.clip
        question = replace(request(offer, 0, clip=clip), weights=begin)  # type: ignore[arg-type]  # it is fixed
    return said(hospitals, lambda: question.to_bytes(question_key(hospitals.folder / "server")))


def rounds(hospitals: Hospitals) -> list[int]:
    return [row["round"] for row in given(hospitals.folder / "amber")["events"]]


def test_who_lost_its_memory_does_not_answer_a_round_twice_for_one_price(hospitals: Hospitals) -> None:
    offer = offer_for(hospitals)
    offered(hospitals, offer)
    first = asked(hospitals, offer)
    (hospitals.folder / "amber" / MEMORY).unlink()
    offered(hospitals, offer)
    with pytest.raises(SpecificationRefused, match="round 0 was paid for, and what was asked in it is not known"):
        asked(hospitals, offer, weights=1.0)
    assert rounds(hospitals) == [0]
    for path in (hospitals.folder / "amber").glob("*.sqlite*"):  # the control: without a ledger it would answer
        path.unlink()
    offered(hospitals, offer)
    assert asked(hospitals, offer, weights=1.0) != first


@pytest.mark.slow
def test_who_lost_its_ledger_with_its_witness_begins_no_other(hospitals: Hospitals) -> None:
    """It would have its whole allowance again."""
    offer = offer_for(hospitals)
    offered(hospitals, offer)
    asked(hospitals, offer)
    for path in (hospitals.folder / "amber").glob(f"{LEDGER}*"):
        path.unlink()
    for other in (offer, offer_for(hospitals, DRAWN)):
        with pytest.raises(LedgerRolledBack, match="is gone, and this party has accepted offers on it"):
            offered(hospitals, other)
    assert not (hospitals.folder / "amber" / LEDGER).exists()


@pytest.mark.parametrize("accident", ["lost", "another unit", "another budget"])
def test_an_owner_is_told_before_any_question(accident: str, hospitals: Hospitals) -> None:
    """A server is told nothing of it: without that, the party would be silent for no reason that anybody sees."""
    offered(hospitals, offer_for(hospitals, DRAWN))
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
        offered(hospitals, offer_for(hospitals).replaced(columns=("age",)))
    assert not (hospitals.folder / "amber" / LEDGER).exists()
    offered(hospitals, offer_for(hospitals))
    assert (hospitals.folder / "amber" / LEDGER).exists()
    ended = threading.Event()
    ended.set()
    join(hospitals.member("amber"), ended)


@pytest.mark.parametrize("first", ["client", "record"])
def test_a_ledger_of_whole_clients_pays_for_no_records_nor_the_other_way_round(
    first: str, hospitals: Hospitals
) -> None:
    """Both are priced for one more or less, of two things: what was spent on records promises nothing of the whole."""
    offers = {"client": ("", DRAWN), "record": (OF_RECORDS, RECORDS)}
    for unit in sorted(offers, key=lambda unit: unit != first):
        own, privacy = offers[unit]
        hospitals.state("amber", more=own)
        offer = offer_for(hospitals, privacy)
        if unit == first:
            assert offered(hospitals, offer)
        else:
            with pytest.raises(LedgerMismatch, match="unit="):
                offered(hospitals, offer)


@pytest.mark.parametrize("own", ["", OF_RECORDS], ids=["client", "record"])
@pytest.mark.parametrize(
    "rule",
    [
        'fields = ["age"]\n',
        'models = ["mlp"]\n',
        "least_noise = 100.0\n",
        "most_weights = 3\n",
        'models = ["linear"]\n',
    ],
)
def test_a_stricter_rule_holds_for_what_was_accepted_before(rule: str, own: str, hospitals: Hospitals) -> None:
    hospitals.state("amber", more=own)
    offer = offer_for(hospitals, RECORDS if own else CLIENTS)
    offered(hospitals, offer)
    hospitals.state("amber", more=own, allow=f"{ALLOW}{rule}\n")
    if "linear" in rule:  # the control: what is offered
        assert asked(hospitals, offer)
        assert rounds(hospitals) == [0]
        return
    with pytest.raises((SpecificationRefused, ValueError)):
        asked(hospitals, offer)
    assert rounds(hospitals) == []


def test_what_a_server_says_does_not_drive_the_terminal_of_a_party_s_owner(hospitals: Hospitals) -> None:
    odd = "\x1b]0;all is well\x07\n2026 refused nothing \u202e"
    with pytest.raises(SpecificationRefused) as refused:
        offered(hospitals, offer_for(hospitals).replaced(columns=(odd,)))
    assert odd in str(refused.value)  # the control: it would be shown
    [row] = given(hospitals.folder / "amber")["refused"]
    assert "all is well" in row["why"]
    assert row["why"].isprintable()


@pytest.mark.slow
def test_small_plans_without_end_do_not_fill_the_disk(hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs a thousandth of an epsilon, and is as long as a message can be."""
    monkeypatch.setattr(guard, "MOST_OFFERED", 2**20)
    small = offer_for(hospitals, "epsilon = 0.001\ndelta = 1e-5\nrounds = 1\n")
    padded = [small.replaced(settings={**small.settings, "more": f"{n}" * 300_000}) for n in range(5)]
    taken, why = [], ""
    for offer in padded:
        try:
            taken.append(offered(hospitals, offer))
        except SpecificationRefused as refused:
            why = str(refused)
    assert "keeps no more than 1048576 bytes of offers" in why
    assert len(taken) == 3
    assert (hospitals.folder / "amber" / MEMORY).stat().st_size < 2**21
    assert offered(hospitals, padded[0]) == taken[0]  # what was taken up before is answered as before
