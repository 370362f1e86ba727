"""A silo that learns from records of its own, as a process of its own: FOLDER ADDRESS AUTHORITY."""

import os
import signal
import sys
import threading
from pathlib import Path

from incrowd.flower.brake import Identity
from incrowd.flower.child import end_with
from incrowd.flower.node import Connection, attend
from incrowd.flower.policy import PartyPolicy
from incrowd.flower.silo_offer import SiloOffer
from incrowd.flower.silo_party import OwnRecords, SiloParty
from tests.flower.silo_parties import BUDGET, federation_of, own_of
from tests.flower.training_party import key_of

OVERRIDES = ("privacy.count_std=5.0", "privacy.report_std=3.0")


def main(folder: Path, address: str, authority: Path) -> None:
    federation, name = federation_of(*OVERRIDES), folder.name

    def learner(offer: SiloOffer) -> OwnRecords:
        return own_of(federation, offer.parties.index(name))

    party = SiloParty(
        folder / "party",
        identity=Identity(name=name, key=key_of(name), server=key_of("server").public_key()),
        policy=PartyPolicy(budget=BUDGET),
        learner=learner,
        randomness=federation.randomness,
    )
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    attend(Connection(address, authority, folder), party.reply, stop)


if __name__ == "__main__":
    end_with(os.getppid())
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
