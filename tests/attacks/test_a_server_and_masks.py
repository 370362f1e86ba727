"""A server of parties that share noise, which wants one party's part: rosters of its own, lists and questions twice."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from incrowd.errors import IncrowdError, SpecificationRefused
from incrowd.federation import Federation
from incrowd.parties.asking import Patience
from incrowd.parties.frames import AskedBefore, Request
from incrowd.parties.guard import given
from incrowd.parties.keys import question_key, read_enrolment
from incrowd.parties.network import Network, Node, offer_of
from incrowd.parties.offer import Offer
from incrowd.parties.roster import Card
from incrowd.parties.served import SumNetwork
from incrowd.runs.work import assemble
from tests.parties.members import NAMES, Hospitals, MemberLine
from tests.parties.nodes import VirtualClock
from tests.parties.test_masked import in_earnest

pytestmark = pytest.mark.watched


@pytest.fixture
def hospitals(tmp_path: Path) -> Hospitals:
    made = Hospitals(tmp_path)
    in_earnest(made)
    return made


def offer_from(hospitals: Hospitals) -> Offer:
    federation = Federation.from_settings(hospitals.folder / "there.toml")
    return offer_of(assemble(federation.settings, given=federation.given))


class Server:
    """A server that plays by no rule: it knows all frames that it heard."""

    def __init__(self, hospitals: Hospitals) -> None:
        self.hospitals, self.line, self.offer = hospitals, MemberLine(hospitals), offer_from(hospitals)
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

    def accepted(self) -> "Server":
        for name in NAMES:
            self.said(name, self.offer.to_bytes(self.key))
        return self

    def said(self, name: str, frame: bytes) -> bytes:
        """The answer of a party, or what it raised."""
        self.line.parties.setdefault(name, self.hospitals.member(name).open())
        return self.line.parties[name].answer(frame)

    def ready(self, number: int = 0, weight: float = 0.0) -> list[str]:
        clip = self.offer.plan.config.clip
        return self.sums.ready(number, np.full(self.offer.size, weight), clip)  # type: ignore[arg-type]  # it is fixed

    def charged(self, name: str) -> int:
        return len(given(self.hospitals.folder / name)["events"])


def test_a_server_that_puts_a_key_of_its_own_on_the_roster_is_refused(hospitals: Hospitals) -> None:
    server = Server(hospitals)
    own = Card.of("cedar", Ed25519PrivateKey.generate())
    cards = [card for card in server.offer.roster if card["name"] != "cedar"]
    rogue = server.offer.replaced(roster=(*cards, {"name": own.name, "key": own.key}))
    with pytest.raises(SpecificationRefused, match="not the one that this party has compared"):
        server.said("amber", rogue.to_bytes(server.key))
    with pytest.raises(SpecificationRefused, match="roster is none"):
        server.said("amber", server.offer.replaced(roster=()).to_bytes(server.key))
    assert server.said("amber", server.offer.to_bytes(server.key))  # the control


def test_a_second_list_of_a_round_gets_nothing_and_costs_nothing(hospitals: Hospitals) -> None:
    server = Server(hospitals).accepted()
    names = server.ready()
    server.said("amber", first := server.sums._list)
    fewer = replace(server.sums.server._listed[0], parties={n: r for n, r in _parties(server).items() if n != "cedar"})
    for name in ("amber", "birch"):
        if name == "amber":
            with pytest.raises(IncrowdError):
                server.said(name, fewer.to_bytes(server.key))
    assert server.charged("amber") == 1
    server.line.close()
    other = Server(hospitals)  # in the control all get the one list
    assert names == list(NAMES)
    assert first
    assert other.charged("birch") == 0


def _parties(server: Server) -> dict[str, str]:
    return dict(server.sums.server._listed[0].parties)


def test_a_question_that_is_asked_again_after_its_list_gives_no_second_part(hospitals: Hospitals) -> None:
    """The same weights, and then other ones: a difference of two sums of one round would be one party's part."""
    server = Server(hospitals).accepted()
    server.ready()
    asked = [
        content for name, content in server.line.asked if name == "amber" and b'"kind":"request"' in content[:4000]
    ]
    listed = server.sums._list
    first = server.said("amber", listed)
    assert server.said("amber", listed) == first  # the same bytes, which tell nothing new
    server.said("amber", asked[0])  # ready again, with another random number
    assert server.said("amber", listed) == first
    again = replace(server.sums.server._listed[0], parties=_parties(server) | {"cedar": "0" * 64})
    with pytest.raises(IncrowdError):
        server.said("amber", again.to_bytes(server.key))
    question = Request.read(asked[0], key=server.key.public_key(), most=10**6)
    other = replace(question, weights=question.weights + 1).to_bytes(server.key)
    with pytest.raises(SpecificationRefused, match="another question was asked in round 0"):
        server.said("amber", other)
    assert server.charged("amber") == 1


def test_a_list_for_a_life_that_is_over_is_refused_unpaid(hospitals: Hospitals) -> None:
    """A copy of the machine, or a party that was killed: no mask is used in two lives."""
    server = Server(hospitals).accepted()
    server.ready()
    listed = server.sums._list
    server.line.close()
    with pytest.raises(SpecificationRefused, match="not ready"):
        server.said("amber", listed)
    assert server.charged("amber") == 0
    server.ready(1)
    server.said("amber", server.sums._list)  # the control: the next round
    assert server.charged("amber") == 1
