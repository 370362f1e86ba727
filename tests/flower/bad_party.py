"""A party that is there, has the right keys, and answers each round with something else that is wrong: FOLDER."""

import itertools
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from incrowd.errors import DataError
from incrowd.flower.fleet import PartyLine
from incrowd.flower.node import attend
from incrowd.flower.superlink import end_with
from incrowd.parties.folder import PartyFolder
from incrowd.parties.frames import PartyAnswer, Place, Request, sealed
from incrowd.parties.participant import Participant

WRONG = ("nan", "shape", "header", "huge")
"""Answers that are its own, and are seen to be wrong at once."""
UNREADABLE = ("long", "another round")
"""What a network may have done as well: the server asks again, until the round's time is over."""


@dataclass
class BadParty:
    """It accepts what is offered, and then lies."""

    party: Participant
    key: Ed25519PrivateKey
    kinds: Iterator[str] = field(default_factory=lambda: itertools.chain(UNREADABLE, itertools.cycle(WRONG)))
    last: bytes = b""

    def __call__(self, frame: bytes) -> bytes:
        try:
            request = Request.read(frame, key=self.party.identity.server, most=10**7)
        except DataError:
            return self.party.answer(frame)
        answer = self._wrong(next(self.kinds), request)
        self.last = answer
        return answer

    def _wrong(self, kind: str, request: Request) -> bytes:
        size, number, name = request.weights.size, request.place.round, self.party.identity.name
        place = Place(plan=request.place.plan, round=number, party=name)
        if kind == "nan":
            head = {"unclipped": 0, "dropped": 0}
            return sealed("answer", place, head, np.full(size, np.nan, "<f4").tobytes(), key=self.key)
        if kind == "header":
            return sealed("answer", place, {"unclipped": 10**12, "dropped": 0}, bytes(64), key=self.key)
        if kind == "long":
            return os.urandom(100 * (8 * size + 2**13))
        if kind == "nothing":
            return b""
        steps = np.full(size + (kind == "shape"), 2**40 if kind == "huge" else 1, np.int64)
        if kind == "another round":
            place = Place(plan=place.plan, round=number + 1, party=name)
        if kind == "another party":
            place = Place(plan=place.plan, round=number, party="amber")
        return PartyAnswer(place=place, steps=steps, unclipped=0).to_bytes(self.key, wide=8)


def main(folder: Path) -> None:
    member = PartyFolder.read(folder)
    line = PartyLine(member.invitation.address, member.invitation.authority, folder)
    party = member.open()
    assert isinstance(party, Participant)
    attend(line, BadParty(party, member.identity.key), threading.Event())


if __name__ == "__main__":
    end_with(os.getppid())
    main(Path(sys.argv[1]))
