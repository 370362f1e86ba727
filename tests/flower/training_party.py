"""A party that trains on made-up examples of its own, as a process of its own: FOLDER ADDRESS AUTHORITY."""

import hashlib
import os
import signal
import sys
import threading
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from incrowd.flower.child import end_with
from incrowd.flower.node import Connection, attend
from incrowd.flower.offer import Offer
from incrowd.flower.party import Identity, Party, alone
from incrowd.flower.policy import PartyPolicy
from incrowd.learning import CohortEngine
from tests.flower.deployment import NAMES
from tests.flower.parties import LOCAL, MODEL, RANDOMNESS, ROOMY, own


def key_of(name: str) -> Ed25519PrivateKey:
    """The key that everybody here could make: tests have no secrets."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def main(folder: Path, address: str, authority: Path) -> None:
    number = NAMES.index(folder.name)

    def learner(_: Offer) -> CohortEngine:
        return CohortEngine(MODEL, alone(own(number), number=number, clients=len(NAMES)), LOCAL)

    party = Party(
        folder / "party",
        identity=Identity(name=folder.name, key=key_of(folder.name), server=key_of("server").public_key()),
        policy=PartyPolicy(budget=ROOMY),
        learner=learner,
        randomness=RANDOMNESS,
    )
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    attend(Connection(address, authority, folder), party.reply, stop)


if __name__ == "__main__":
    end_with(os.getppid())
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
