"""Silos that are asked over a network: what each sends is released already, noised by itself and paid for by itself."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from incrowd._random import Floats
from incrowd.algorithms.silos import Absence, Answer
from incrowd.errors import DataError
from incrowd.flower.network import Node
from incrowd.flower.rounds import Line, Patience, ask
from incrowd.flower.wire import Place, Request, sealed, unsealed
from incrowd.privacy.plan import forms
from incrowd.runs.outbox import DurableSilo
from incrowd.runs.silo_work import SiloWork

_ABSENCES: Mapping[str, Absence | None] = {
    "": None,
    "budget spent": "budget spent",
    "round lost": "round lost",
    "daily limit": "daily limit",
}


def fingerprint_of(work: SiloWork) -> str:
    """What tells the plans of some silos from all others."""
    plans = dict(zip(work.names, map(forms.to_json, work.plans), strict=True))
    return forms.fingerprint({"format": "incrowd silos 2", "plans": plans, "size": work.model.size})


def sealed_answer(answer: Answer, place: Place, *, key: Ed25519PrivateKey) -> bytes:
    """What a silo sends after a round, as a frame that it has signed."""
    head = {"epsilon": answer.epsilon, "absence": answer.absence or ""}
    body = b"" if answer.update is None else answer.update.astype("<f8").tobytes()
    return sealed("silo", place, head, body, key=key)


def read_silo(frame: object, *, place: Place, size: int, key: Ed25519PublicKey) -> Answer:
    """What a frame says that this silo signed for this round.

    Edge cases: everything else is a `DataError`: an update of another size, figures that are none, what is not finite.
    """
    found, head, body = unsealed(frame, kind="silo", key=key, most=8 * size)
    absence = head.get("absence")
    if found != place or not isinstance(absence, str) or absence not in _ABSENCES:
        raise DataError("an answer of another plan, round or silo than was asked")
    if len(body) != (0 if absence else 8 * size):
        raise DataError("an answer of another size than was asked for")
    update = None if absence else np.frombuffer(body, "<f8").astype(np.float64)
    epsilon = _figure(head.get("epsilon"))
    if epsilon < 0 or (update is not None and not np.isfinite(update).all()):
        raise DataError("an answer with numbers that can be none")
    return Answer(silo=place.party, round=place.round, epsilon=epsilon, update=update, absence=_ABSENCES[absence])


@dataclass(frozen=True, kw_only=True, eq=False)
class SiloNetwork:
    """Silos, each behind a node, who are asked all at once.

    Guarantee: of a silo's answer counts what it signed for this round, once.

    Edge cases: a silo that does not answer in time is a `DataError`: what it has spent is not known.
    """

    line: Line
    plan: str
    size: int
    silos: Sequence[Node]
    key: Ed25519PrivateKey = field(repr=False)
    patience: Patience = field(default_factory=Patience)

    def answers(self, number: int, weights: Floats) -> Sequence[Answer]:
        """What the silos send in a round that begins with these weights: see `SiloCohort`."""
        small, frames = weights.astype(np.float32), {}
        for place, silo in enumerate(self.silos):
            asked = Place(plan=self.plan, round=number, party="")
            clients = (place,) if silo.block else ()
            frames[silo.id] = Request(place=asked, weights=small, clip={}, clients=clients).to_bytes(self.key)
        named = {silo.id: silo for silo in self.silos}

        def read(node: int, frame: bytes) -> Answer:
            silo = named[node]
            place = Place(plan=self.plan, round=number, party=silo.party)
            return read_silo(frame, place=place, size=self.size, key=silo.key)

        longest = 8 * self.size + 2**13
        found = ask(self.line, frames, longest=longest, read=read, patience=self.patience)
        missing = [silo.party for silo in self.silos if silo.id not in found]
        if missing:
            raise DataError(f"{', '.join(missing)} did not answer in round {number}: see to them, then resume the run")
        return [found[silo.id] for silo in self.silos]


@dataclass(frozen=True, kw_only=True, eq=False)
class SiloStock:
    """What a worker needs to answer for the silos of a run on its machine: the work, and the folder they lie in."""

    work: SiloWork
    folder: Path

    def block(self, *, server: Ed25519PublicKey, key: Ed25519PrivateKey) -> "SiloBlock":
        """What answers."""
        return SiloBlock(self, server=server, key=key)


class SiloBlock:
    """Simulated silos, each on its own ledger, opened when it is first asked and kept from round to round."""

    def __init__(self, stock: SiloStock, *, server: Ed25519PublicKey, key: Ed25519PrivateKey) -> None:
        self._stock = stock
        self._server = server
        self._key = key
        self._plan = fingerprint_of(stock.work)
        self._open = ExitStack()
        self._silos: dict[int, DurableSilo] = {}

    def answer(self, frame: bytes | None) -> bytes:
        """What one silo sends."""
        work = self._stock.work
        request = Request.read(frame, key=self._server, most=work.model.size)
        if request.place.plan != self._plan or len(request.clients) != 1:
            raise DataError("a question that is not for one of these silos")
        [number] = request.clients
        if number not in self._silos:
            self._silos[number] = self._open.enter_context(work.open_silo(number, self._stock.folder))
        answer = self._silos[number].answer(request.place.round, request.weights.astype(np.float64))
        place = Place(plan=self._plan, round=request.place.round, party=answer.silo)
        return sealed_answer(answer, place, key=self._key)


def _figure(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2.0**1000:
        raise DataError("an answer with numbers that can be none")
    return float(value)
