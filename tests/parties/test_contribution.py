"""A party's part of a round: what can be no part is refused, before anything is paid."""

from dataclasses import replace
from pathlib import Path

import pytest

from incrowd._random import SeededRandomness
from incrowd.errors import ConfigError, SpecificationRefused
from incrowd.parties.contribution import MOST_BATCH, alone, check_records, part
from incrowd.parties.frames import Place
from incrowd.parties.offer import RoundTask
from tests.parties.parties import CLIP, NAMES, SERVER, Made, offer_for, own, plan_of, request
from tests.parties.silo_parties import federation_of, own_of


def test_local_noise_without_a_receipt_is_refused(tmp_path: Path) -> None:
    made = Made(tmp_path / "north")
    offer = offer_for(plan_of(noise_by="party"))
    place = Place(plan=offer.fingerprint, round=0, party=NAMES[0])
    asked = replace(request(offer, 0), clients=(0,))
    task, drawn = RoundTask.stated(offer, 0, CLIP), SeededRandomness(1)
    with pytest.raises(ConfigError, match="charge the round"):
        part(task, asked, place=place, engine=made.engine(offer), randomness=drawn, receipt=None)


def test_one_client_has_one_number() -> None:
    with pytest.raises(ConfigError, match="one of 3"):
        alone(own(0), number=3, clients=3)


def test_more_records_at_once_than_memory_has_are_refused() -> None:
    found = replace(own_of(federation_of(), 0), physical_batch=2 * MOST_BATCH)
    offer = replace(offer_for(plan_of()), size=found.engine.size, classes=found.classes)
    with pytest.raises(SpecificationRefused, match="records at once"):
        check_records(offer, found, stated=found.stated)


def test_a_disk_full_of_offers_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(tmp_path / "north")
    party = made.start()
    party.answer(offer_for(plan_of()).to_bytes(SERVER))
    monkeypatch.setattr("incrowd.parties.guard.MOST_OFFERED", 1000)
    with pytest.raises(SpecificationRefused, match="bytes of offers"):
        party.answer(offer_for(plan_of(5)).to_bytes(SERVER))
    party.check_ledger()  # which is open, and as it was
    party.close()
