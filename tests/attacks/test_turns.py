"""A server asks a party in rounds that are others' turns: correlated noise hides one contribution in so many rounds."""

from pathlib import Path

import pytest

from incrowd.errors import SpecificationRefused
from incrowd.federation import Federation
from incrowd.flower.invitation import question_key
from incrowd.flower.offer import Offer
from incrowd.flower.offered import offer_of
from incrowd.privacy.mechanism.clipping import MedianClip
from incrowd.runs.client_work import assemble
from incrowd.runs.config import Config
from tests.flower.members import Hospitals, settings_text
from tests.flower.parties import request

PLAN = "epsilon = 50.0\ndelta = 1e-5\nrounds = 6\n"
TURNS = PLAN + 'noise = "correlated"\ngroups = 3\n'


def answered(hospitals: Hospitals, name: str, privacy: str) -> list[int]:
    """The rounds that a party answers when it is asked in all."""
    (hospitals.folder / "there.toml").write_text(settings_text(here=False, privacy=privacy))
    federation = Federation.from_settings(hospitals.folder / "there.toml")
    assert isinstance(federation.settings, Config)
    offer: Offer = offer_of(assemble(federation.settings, given=federation.given, schedule=federation.schedule))
    assert not isinstance(offer.clip, MedianClip)
    key, party = question_key(hospitals.folder / "server"), hospitals.member(name).open()
    party.reply(offer.to_bytes(key))
    found, history = [], b""
    for number in range(offer.plan.rounds):
        question = request(offer, number, clip=offer.clip, history=history)
        history += bytes.fromhex(question.digest)
        try:
            party.reply(question.to_bytes(key))
        except SpecificationRefused:
            continue
        found.append(number)
    party.close()
    return found


@pytest.mark.parametrize(("name", "own"), [("amber", [0, 3]), ("birch", [1, 4]), ("cedar", [2, 5])])
def test_a_party_answers_when_it_is_its_turn(name: str, own: list[int], tmp_path: Path) -> None:
    assert answered(Hospitals(tmp_path), name, TURNS) == own


def test_control_where_all_take_part_it_answers_every_round(tmp_path: Path) -> None:
    assert answered(Hospitals(tmp_path), "birch", PLAN) == list(range(6))
