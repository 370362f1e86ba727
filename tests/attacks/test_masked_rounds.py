"""Parties that share noise over a network: a server that wants one party's part, and parties that lie behind masks.

Rosters of the server's own, lists and questions twice; answers to other lists, numbers and keys that are none.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from incrowd.errors import DataError, IncrowdError, RoundUnanswered, SpecificationRefused
from incrowd.parties.asking import Patience
from incrowd.parties.contribution import Part
from incrowd.parties.frames import AskedBefore, Request, opened, sealed
from incrowd.parties.guard import given
from incrowd.parties.keys import answer_key, question_key, read_enrolment
from incrowd.parties.network import Network, Node
from incrowd.parties.roster import Card
from incrowd.parties.served import SumNetwork
from tests.parties.members import NAMES, Hospitals, MemberLine
from tests.parties.nodes import VirtualClock
from tests.parties.parties import SERVER, Made, offer_for, plan_of
from tests.parties.test_masked import in_earnest, lost, offer_in, served

pytestmark = [
    pytest.mark.watched,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::incrowd.privacy.plan.plan.PrivacyWarning"),
]

ROUNDS = 6


@pytest.fixture
def hospitals(hospitals: Hospitals) -> Hospitals:
    in_earnest(hospitals, rounds=ROUNDS)
    return hospitals


class Server:
    """A server that plays by no rule: it knows all frames that it heard. All parties have accepted its offer."""

    def __init__(self, hospitals: Hospitals, *, accepted: bool = True) -> None:
        self.hospitals, self.line, self.offer = hospitals, MemberLine(hospitals), offer_in(hospitals)
        self.key = question_key(hospitals.folder / "server")
        keys = {name: read_enrolment(hospitals.folder / "enrolled" / f"{name}.pub").verifier() for name in NAMES}
        nodes = [Node(id=place + 1, party=name, key=keys[name]) for place, name in enumerate(NAMES)]
        self.network = Network(
            transport=self.line,
            offer=self.offer,
            nodes=lambda: nodes,
            key=self.key,
            patience=Patience(timeout=1, clock=VirtualClock()),
            history=AskedBefore(plan=self.offer.fingerprint),
        )
        self.sums = SumNetwork(network=self.network)
        for name in NAMES if accepted else ():
            self.said(name, self.offer.to_bytes(self.key))

    def said(self, name: str, frame: bytes) -> bytes:
        """The answer of a party, or what it raised."""
        self.line.parties.setdefault(name, self.hospitals.member(name).open())
        return self.line.parties[name].answer(frame)

    def ready(self, number: int = 0) -> bytes:
        """Ask for a round, from zeros: the list of those who are ready."""
        clip = self.offer.plan.config.clip
        zeros = np.zeros(self.offer.size)
        assert self.sums.ready(number, zeros, clip) == list(NAMES)  # type: ignore[arg-type]  # it is fixed
        return self.sums._list

    def listing(self, **numbers: str) -> bytes:
        """The list of the first round, with other random numbers of some."""
        listed = self.sums.server._listed[0]
        return replace(listed, parties={**listed.parties, **numbers}).to_bytes(self.key)

    def charged(self, name: str) -> int:
        return len(given(self.hospitals.folder / name)["events"])


def test_a_server_that_puts_a_key_of_its_own_on_the_roster_is_refused(hospitals: Hospitals) -> None:
    server = Server(hospitals, accepted=False)
    own = Card.of("cedar", Ed25519PrivateKey.generate())
    cards = [card for card in server.offer.roster if card["name"] != "cedar"]
    rogue = server.offer.replaced(roster=(*cards, {"name": own.name, "key": own.key}))
    with pytest.raises(SpecificationRefused, match="not the one that this party has compared"):
        server.said("amber", rogue.to_bytes(server.key))
    with pytest.raises(SpecificationRefused, match="roster is none"):
        server.said("amber", server.offer.replaced(roster=()).to_bytes(server.key))
    assert server.said("amber", server.offer.to_bytes(server.key))  # the control


def test_a_question_that_is_asked_again_after_its_list_gives_no_second_part(hospitals: Hospitals) -> None:
    """The same weights, and then other ones: a difference of two sums of one round would be one party's part."""
    server = Server(hospitals)
    listed = server.ready()
    asked = [
        content for name, content in server.line.asked if name == "amber" and b'"kind":"request"' in content[:4000]
    ]
    first = server.said("amber", listed)
    assert server.said("amber", listed) == first  # the same bytes, which tell nothing new
    server.said("amber", asked[0])  # ready again, with another random number
    assert server.said("amber", listed) == first
    with pytest.raises(IncrowdError):
        server.said("amber", server.listing(cedar="0" * 64))
    question = Request.read(asked[0], key=server.key.public_key(), most=10**6)
    other = replace(question, weights=question.weights + 1).to_bytes(server.key)
    with pytest.raises(SpecificationRefused, match="another question was asked in round 0"):
        server.said("amber", other)
    assert server.charged("amber") == 1


def test_a_list_for_a_life_that_is_over_is_refused_unpaid(hospitals: Hospitals) -> None:
    """A copy of the machine, or a party that was killed: no mask is used in two lives."""
    server = Server(hospitals)
    listed = server.ready()
    server.line.close()
    with pytest.raises(SpecificationRefused, match="not ready"):
        server.said("amber", listed)
    assert server.charged("amber") == 0
    server.said("amber", server.ready(1))  # the control: the next round
    assert server.charged("amber") == 1


@pytest.mark.parametrize("replayed", [True, False], ids=["replayed", "control"])
def test_a_list_of_a_round_before_that_comes_again_takes_no_part_from_the_next(
    replayed: bool, hospitals: Hospitals
) -> None:
    server = Server(hospitals)
    before = server.ready(0)
    first = server.said("amber", before)
    listed = server.ready(1)
    if replayed:
        assert server.said("amber", before) == first
    assert server.said("amber", listed)
    assert server.charged("amber") == 2


def test_a_list_with_random_numbers_that_are_none_is_refused_unpaid(hospitals: Hospitals) -> None:
    server = Server(hospitals)
    listed = server.ready()
    part = server.line.parties["amber"]._parts[server.offer.fingerprint]
    for number in ("\ud800", "0" * 63, "G" * 64, "0" * 65):
        with pytest.raises((DataError, UnicodeError)):
            server.said("amber", server.listing(birch=number))
        assert (part.ready, server.charged("amber")) == (True, 0)
    server.said("amber", listed)  # the control
    assert (part.ready, server.charged("amber")) == (False, 1)


def test_a_part_that_waits_for_its_list_stays_while_other_offers_come(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = (offer_for(plan_of(), settings={"model": {"kind": "linear"}, "again": n}) for n in range(4))
    party = made.start()
    for waits in (False, True):
        waiting = [first] if waits else []
        monkeypatch.setattr(Part, "ready", property(lambda self: self.offer in waiting))  # noqa: B023 - used at once
        for offer in (first, *others):
            party.answer(offer.to_bytes(SERVER))
        assert (first.fingerprint in party._parts) == waits
    party.close()


# Parties that lie


class Lying(MemberLine):
    """A line on which cedar's answers of one kind are others, which it signs as it signs its own."""

    def __init__(
        self, hospitals: Hospitals, kind: str, head: dict[str, Any], body: Callable[[bytes], bytes] = bytes
    ) -> None:
        super().__init__(hospitals)
        self.kind, self.head, self.body = kind, head, body

    def _answer(self, name: str, content: bytes) -> bytes | None:
        answer = super()._answer(name, content)
        if name != "cedar" or answer is None:
            return answer
        key = answer_key(self.hospitals.folder / "cedar")
        try:
            _, place, head, body = opened(answer, (self.kind,), key=key.public_key(), most=2**24)
        except DataError:
            return answer
        rest = {each: value for each, value in head.items() if each not in ("kind", "plan", "round", "party")}
        return sealed(self.kind, place, rest | self.head, self.body(bytes(body)), key=key)


LIES: dict[str, tuple[str, dict[str, Any], int]] = {  # and the rounds that it costs the others at most
    "an answer to another list": ("masked", {"list": "another"}, 2),
    "ready for another question": ("ready", {"question": "0" * 64}, 2),
    "ready without a random number": ("ready", {"random": "0"}, 2),
    "control": ("masked", {}, 0),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_party_that_signs_something_else_costs_the_others_no_more_than_a_silent_one(
    lie: str, hospitals: Hospitals
) -> None:
    kind, head, most = LIES[lie]
    line = Lying(hospitals, kind, head)
    served(hospitals, line)
    line.close()
    assert len(given(hospitals.folder / "amber")["events"]) == ROUNDS
    assert (len(lost(hospitals)), sum(lost(hospitals)) <= most) == (ROUNDS, True)


def test_a_party_that_sends_wrong_numbers_costs_the_others_two_rounds(hospitals: Hospitals) -> None:
    """Masks hide which party lies, so the run ends before all budgets are spent on nothing."""
    line = Lying(hospitals, "masked", {}, lambda body: os.urandom(len(body)))
    with pytest.raises(RoundUnanswered, match="one of them sends wrong numbers"):
        served(hospitals, line)
    line.close()
    assert len(given(hospitals.folder / "amber")["events"]) == 2
    assert lost(hospitals) == [True, True]


NONE: dict[str, Callable[[bytes], bytes]] = {
    "X25519": lambda body: bytes(32) + body[32:],
    "ML-KEM": lambda body: body[:32] + b"\xff" * len(body[32:]),
}


@pytest.mark.parametrize("kind", NONE)
def test_a_party_whose_keys_are_none_is_the_one_that_is_named(kind: str, hospitals: Hospitals) -> None:
    """Others could make no secret of them, and would be silent in its place."""
    line = Lying(hospitals, "hello", {}, NONE[kind])
    with pytest.raises(DataError, match=r"and these did not: cedar$"):
        served(hospitals, line)
    line.close()
    assert not given(hospitals.folder / "amber")["events"]
    honest = MemberLine(hospitals)  # the control: nothing was paid, and it has its own keys
    served(hospitals, honest)
    honest.close()
    assert len(given(hospitals.folder / "amber")["events"]) == ROUNDS
