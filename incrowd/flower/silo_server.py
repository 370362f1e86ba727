"""Real silos as a server sees them: it offers, asks for rounds, and asks at the end what each may claim."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from incrowd._random import Floats
from incrowd.errors import ConfigError, DataError
from incrowd.federated.silo import Answer
from incrowd.flower.network import Node
from incrowd.flower.rounds import Line, Patience, ask
from incrowd.flower.silo_claims import check_answer, checked_statement
from incrowd.flower.silo_offer import LAST, SiloOffer
from incrowd.flower.silos import read_silo
from incrowd.flower.wire import Place, Request, unsealed
from incrowd.privacy.statement import Statement
from incrowd.settings.descent import Descent

_BESIDE = 2**17
"""Bytes of an answer beside its numbers, at most."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Said:
    """What a silo says at the end: its statement, and its noised table if its plan has one and it had room for it."""

    statement: Statement
    table: Floats | None = field(repr=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class SiloServer:
    """Silos behind nodes, one for each of the offer's, by their places. How they train is the offer's `descent`.

    Guarantee: of a silo's answer counts what it signed for this round of this offer, once. What it signed and its plan
    cannot give is `refused`, by name: numbers that are not finite, too long an update, other noise than planned. Who
    does not answer in time has `no answer`; its round goes on without it. A silo that has not accepted the offer in
    this process's life is offered it again, in place of the round, and takes part from the next.

    Edge cases: a place without a node, or with one of another name, is a `ConfigError`.
    """

    line: Line
    offer: SiloOffer
    nodes: Mapping[int, Node]
    key: Ed25519PrivateKey = field(repr=False)
    descent: Descent
    patience: Patience = field(default_factory=Patience)
    accepted: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        named = {place: node.party for place, node in self.nodes.items()}
        if named != dict(enumerate(self.offer.silos)):
            remedy = f"give a node for each silo by its place: {dict(enumerate(self.offer.silos))}"
            raise ConfigError(field="nodes", value=named, remedy=remedy)

    def offered(self) -> set[str]:
        """Offer the plans to all who have not accepted them; the names of those who have."""
        frame = self.offer.to_bytes(self.key)
        frames = {node.id: frame for node in self.nodes.values() if node.party not in self.accepted}
        ask(self.line, frames, longest=_BESIDE, read=self._acceptance, patience=self.patience)
        return set(self.accepted)

    def answers(self, number: int, weights: Floats) -> Sequence[Answer]:
        """What the silos send in a round that begins with these weights, in their order; an answer of nobody costs 0,
        for what it has spent is not known here.
        """
        request = self._request(number, weights, {})
        offer, accepted = self.offer.to_bytes(self.key), set(self.accepted)
        frames = {node.id: request if node.party in accepted else offer for node in self.nodes.values()}
        small = weights.astype(np.float32).astype(np.float64)
        start = math.sqrt(np.dot(small, small))

        def read(node: int, frame: bytes) -> Answer | None:
            place = self._places[node]
            if self.nodes[place].party not in accepted:
                self._acceptance(node, frame)
                return None
            return self._answer(place, number, frame, start=start)

        longest = 8 * self.offer.size + _BESIDE
        found = ask(self.line, frames, longest=longest, read=read, patience=self.patience)
        absent = [self._absent(place, number) for place in range(len(self.nodes))]
        return [found.get(self.nodes[place].id) or absent[place] for place in range(len(self.nodes))]

    def last(self, weights: Floats, noises: Mapping[str, Sequence[float]]) -> Mapping[str, Said | None]:
        """What the silos say of the last weights: None of one that says what cannot be right, nothing of a silent one.

        `noises` are the multipliers of the rounds that each has answered.
        """
        frame = self._request(self.offer.rounds, weights, LAST)

        def read(node: int, answer: bytes) -> Said | None:
            place = self._places[node]
            return self._said(place, answer, noises.get(self.nodes[place].party, ()))

        frames = {node.id: frame for node in self.nodes.values() if node.party in self.accepted}
        longest = 8 * self.offer.cells + _BESIDE
        found = ask(self.line, frames, longest=longest, read=read, patience=self.patience)
        return {node.party: found[node.id] for node in self.nodes.values() if node.id in found}

    @property
    def _places(self) -> Mapping[int, int]:
        return {node.id: place for place, node in self.nodes.items()}

    def _request(self, number: int, weights: Floats, clip: dict[str, str]) -> bytes:
        place = Place(plan=self.offer.fingerprint, round=number, party="")
        return Request(place=place, weights=weights.astype(np.float32), clip=dict(clip)).to_bytes(self.key)

    def _place(self, place: int, number: int) -> Place:
        return Place(plan=self.offer.fingerprint, round=number, party=self.nodes[place].party)

    def _acceptance(self, node: int, frame: bytes) -> None:
        """Note who has accepted."""
        number = self._places[node]
        place, _, _ = unsealed(frame, kind="acceptance", key=self.nodes[number].key, most=0)
        if place != self._place(number, 0):
            raise DataError("an acceptance of another offer, or by another silo")
        self.accepted.add(place.party)

    def _answer(self, place: int, number: int, frame: bytes, *, start: float) -> Answer:
        """What a silo signed for this round, or that it is refused: to ask again what it answered has no point."""
        node, expected, size = self.nodes[place], self._place(place, number), self.offer.size
        found, _, _ = unsealed(frame, kind="silo", key=node.key, most=8 * size)
        if found != expected:
            raise DataError("an answer of another plan, round or silo than was asked")
        try:
            answer = read_silo(frame, place=expected, size=size, key=node.key)
            check_answer(answer, self.offer.plans[place], descent=self.descent, start=start)
        except DataError:
            return Answer(silo=node.party, round=number, epsilon=0.0, absence="refused")
        return answer

    def _said(self, place: int, frame: bytes, noises: Sequence[float]) -> Said | None:
        node, plan, cells = self.nodes[place], self.offer.plans[place], self.offer.cells
        found, head, body = unsealed(frame, kind="statement", key=node.key, most=8 * cells)
        if found != self._place(place, self.offer.rounds):
            raise DataError("a statement of another plan or silo than was asked")
        try:
            if body and (plan.report_std is None or len(body) != 8 * cells):
                raise DataError("a report that the plan does not ask for, or of another size")
            table = np.frombuffer(body, "<f8").astype(np.float64)
            if not (np.abs(table) < 2.0**60).all():
                raise DataError("a report with numbers that can be none")
            reported = table.size > 0
            statement = checked_statement(head.get("statement"), plan, noises=noises, reported=reported)
        except DataError:
            return None
        return Said(statement=statement, table=table.reshape(self.offer.classes or 0, -1) if reported else None)

    def _absent(self, place: int, number: int) -> Answer:
        return Answer(silo=self.nodes[place].party, round=number, epsilon=0.0, absence="no answer")
