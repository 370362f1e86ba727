"""Three silos of a small run, each a party with a folder of its own, who can be killed and started again."""

from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from incrowd._random import Floats, Randomness
from incrowd.errors import IncrowdError
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.parties.asking import Patience, Transport
from incrowd.parties.contribution import OwnRecords
from incrowd.parties.frames import ASKED, AskedBefore, Place, Request
from incrowd.parties.guard import LEDGER, Identity
from incrowd.parties.network import Network, Node, offer_of
from incrowd.parties.offer import LAST, Offer
from incrowd.parties.participant import Participant
from incrowd.parties.policy import PartyPolicy
from incrowd.parties.served import SiloServer, served
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.runs.config import Config, parse
from incrowd.runs.run import Run
from incrowd.runs.work import SiloWork, assemble_silos
from tests.parties.nodes import PlainLine, VirtualClock
from tests.runs.test_silo_run import SEEDED
from tests.runs.test_silo_run import small as silos

NAMES = ("silo-1", "silo-2", "silo-3")
SERVER = Ed25519PrivateKey.generate()
KEYS = {name: Ed25519PrivateKey.generate() for name in NAMES}
THREE = ("data.clients=3", "privacy.records=500")
BUDGET = Budget(epsilon=8.0, delta=1e-5)


def federation_of(*overrides: str, seeded: bool = True) -> SiloWork:
    """The silos of a small run, as if they were in one place."""
    return assemble_silos(silos(*THREE, *(SEEDED if seeded else ()), *overrides))


def config_of(federation: SiloWork, enrolled: Path, names: tuple[str, ...]) -> Config:
    """The settings of a server whose silos are parties of these names."""
    enrolled.mkdir(parents=True, exist_ok=True)
    for name in names:
        (enrolled / f"{name}.pub").touch()
    settings = federation.config.model_dump(mode="json")
    settings["data"] = {
        "name": "parties",
        "federation": f"hospitals in {enrolled.parent.name}",  # whose server has a ledger of its own
        "enrolled": str(enrolled),
        "shape": [64],
        "type": "uint8",
        "scale": 0.0625,
        "classes": 10,
    }
    return parse(settings)


def own_of(federation: SiloWork, place: int) -> OwnRecords:
    """What a silo learns from."""
    engine = federation.engines[place]
    assert isinstance(engine, BatchedRecords)
    return OwnRecords(engine=engine, stated=500, classes=10)


@dataclass
class Hospitals:
    """Parties behind a line; what each refused is kept."""

    folder: Path
    federation: SiloWork
    policy: PartyPolicy = field(default_factory=lambda: PartyPolicy(budget=BUDGET))
    randomness: Randomness | None = None
    today: date = date(2026, 3, 1)
    refused: list[str] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    parties: dict[int, Participant] = field(default_factory=dict)

    def party(self, place: int) -> Participant:
        """A silo's present life."""
        if place not in self.parties:
            name = NAMES[place]
            self.parties[place] = Participant(
                self.folder / name,
                identity=Identity(name=name, key=KEYS[name], server=SERVER.public_key()),
                policy=self.policy,
                learner=lambda _: self.own(place),
                unit="record",
                randomness=self.randomness or self.federation.randomness,
                today=lambda: self.today,
            )
        return self.parties[place]

    def own(self, place: int) -> OwnRecords:
        """What a silo learns from."""
        return own_of(self.federation, place)

    def kill(self, place: int) -> None:
        """A silo's life ends; the next begins when it is asked again."""
        if place in self.parties:
            self.parties.pop(place).close()

    def reply(self, place: int, frame: bytes) -> bytes:
        """What the line carries back."""
        if place in self.gone:
            return b""
        try:
            found = self.party(place).answer(frame)
        except IncrowdError as error:
            self.refused.append(str(error))
            return b""
        self.answers.append(found)
        return found

    def line(self) -> PlainLine:
        """The way to them."""

        def node(place: int) -> Any:
            return lambda frame: self.reply(place, frame)

        return PlainLine({10 + place: node(place) for place in range(3)})

    def nodes(self) -> list[Node]:
        """All of them, whether they answer or not."""
        return [Node(id=10 + place, party=name, key=KEYS[name].public_key()) for place, name in enumerate(NAMES)]

    def run(self, folder: Path, line: Transport | None = None) -> Run:
        """A server's run, or the one that is there."""
        there = (folder / "run.sqlite").exists()
        run = Run.open(folder) if there else Run.create(self.config, folder)
        history = AskedBefore(folder / ASKED, plan=self.offer.fingerprint)
        return served(run, self.network(line or self.line(), history=history))

    def network(self, line: Transport, **rest: Any) -> Network:
        """The way of a server to them."""
        given = {"patience": Patience(timeout=3, clock=VirtualClock())} | rest
        return Network(transport=line, offer=self.offer, nodes=self.nodes, key=SERVER, **given)

    def server(self, line: Transport, **rest: Any) -> SiloServer:
        """A server that asks them."""
        return SiloServer(network=self.network(line, **rest), descent=self.federation.config.local)

    @property
    def config(self) -> Config:
        """The settings of a server, which holds no data."""
        return config_of(self.federation, self.folder / "enrolled", NAMES)

    @property
    def offer(self) -> Offer:
        """What the server offers."""
        return offer_of(assemble_silos(self.config))

    def accept(self) -> None:
        """All accept the offer."""
        for place in range(3):
            assert self.party(place).answer(self.offer.to_bytes(SERVER))

    def charged(self, place: int) -> list[int]:
        """The rounds on a silo's ledger, in order."""
        path = self.folder / NAMES[place] / LEDGER
        if not path.exists():
            return []
        with Ledger.read(path) as ledger:
            return [int(e.content()["note"]["round"]) for e in ledger.entries() if e.kind == "charge"]


def asked(offer: Offer, number: int, *, weights: float | Floats = 0.0) -> bytes:
    """The question of a server, in a round or the last one, that asked from zeros in all rounds before."""
    past = b"".join(bytes.fromhex(_question(offer, each, 0.0).digest) for each in range(number))
    return replace(_question(offer, number, weights), history=past).to_bytes(SERVER)


def _question(offer: Offer, number: int, weights: float | Floats) -> Request:
    clip = dict(LAST) if number == offer.rounds else {}
    place = Place(plan=offer.fingerprint, round=number, party="")
    vector = np.full(offer.size, weights, np.float32) if isinstance(weights, float) else weights.astype(np.float32)
    return Request(place=place, weights=vector, clip=clip)
