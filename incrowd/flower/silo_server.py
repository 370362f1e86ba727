"""Real silos as a server sees them: it asks for rounds, and at the end what each may claim."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from incrowd._random import Floats
from incrowd.algorithms.silos import Answer
from incrowd.errors import ConfigError, DataError
from incrowd.flower.attendance import Attendance
from incrowd.flower.history import AskedBefore
from incrowd.flower.network import Node
from incrowd.flower.rounds import Line, Patience, ask
from incrowd.flower.silo_claims import check_answer, checked_statement
from incrowd.flower.silo_offer import LAST, SiloOffer
from incrowd.flower.silos import read_silo
from incrowd.flower.wire import Place, Request, read_refusal, unsealed
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.statement import Statement
from incrowd.settings import Descent

T = TypeVar("T")

_REFUSALS = ("refused", "daily limit")
_BESIDE = 2**17
"""Bytes of an answer beside its numbers, at most."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Said:
    """What a silo says at the end: its statement, and its noised table if its plan has one and it had room for it."""

    statement: Statement
    table: Floats | None = field(repr=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class SiloServer:
    """Silos behind nodes, which are asked all at once. `nodes` gives those who take part at present, by their places in
    the offer; `plans` are those that it offers, and how they train is its `descent`.

    Guarantee: of a silo's answer counts what it signed for this round of this offer, once. What it signed and its plan
    cannot give is `refused`, by name: numbers that are not finite, too long an update, other noise than planned. Who
    does not take part, or answer in time, has `no answer`; the round goes on without it. A round in which no silo
    answers, or all refuse, ends the run before the server charges it (`RoundUnanswered`).

    Edge cases: a node of another name than its place has is a `ConfigError`.
    """

    line: Line
    offer: SiloOffer
    plans: Mapping[str, Plan]
    nodes: Callable[[], Mapping[int, Node]]
    key: Ed25519PrivateKey = field(repr=False)
    descent: Descent
    patience: Patience = field(default_factory=Patience)
    history: AskedBefore = field(default_factory=AskedBefore)
    attendance: Attendance = field(default_factory=Attendance)

    def answers(self, number: int, weights: Floats) -> Sequence[Answer]:
        """What the silos send in a round that begins with these weights, in their order; an answer of nobody costs 0,
        for what it has spent is not known here.
        """
        small = weights.astype(np.float32).astype(np.float64)
        start = math.sqrt(np.dot(small, small))

        def read(place: int, node: Node, frame: bytes) -> Answer:
            return self._answer(place, node, number, frame, start=start)

        found = self._asked(number, weights, {}, longest=8 * self.offer.size + _BESIDE, read=read)
        answers = sum(each is not None and each.absence not in _REFUSALS for each in found.values())
        self.attendance.check_answered(number, answers=answers, refusals=len(found) - answers, everyone=True)
        absent = [Answer(silo=name, round=number, epsilon=0.0, absence="no answer") for name in self.offer.parties]
        return [found.get(place) or nobody for place, nobody in enumerate(absent)]

    def last(self, weights: Floats, answered: Mapping[str, int]) -> Mapping[str, Said]:
        """What the silos say of the last weights; of one that is silent, or says what cannot be right, nothing.

        `answered` says how many rounds each has answered.
        """

        def read(place: int, node: Node, frame: bytes) -> Said | None:
            return self._said(place, node, frame, answered.get(node.party, 0))

        longest = 8 * self.offer.cells + _BESIDE
        found = replace(self, attendance=Attendance())._asked(  # whoever was away may be back for its last word
            self.offer.rounds, weights, LAST, longest=longest, read=read
        )
        return {self.offer.parties[place]: said for place, said in found.items() if said is not None}

    def _asked(
        self,
        number: int,
        weights: Floats,
        clip: Mapping[str, str],
        *,
        longest: int,
        read: Callable[[int, Node, bytes], T | None],
    ) -> Mapping[int, T | None]:
        """What came from each place, as `read` understands it; None where a silo says that it has no part in it."""
        nodes = self.nodes()
        for place, node in nodes.items():
            if not 0 <= place < len(self.offer.parties) or self.offer.parties[place] != node.party:
                remedy = f"give nodes by their places: {', '.join(self.offer.parties)}"
                raise ConfigError(field="nodes", value=(place, node.party), remedy=remedy)
        where = Place(plan=self.offer.fingerprint, round=number, party="")
        small, before = weights.astype(np.float32), self.history.before(number)
        request = Request(place=where, weights=small, clip=dict(clip), history=before)
        self.history.add(number, request.digest)  # on disk, before anybody is asked
        places = {node.id: place for place, node in nodes.items()}
        question = request.to_bytes(self.key)

        def understood(number: int, answer: bytes) -> T | None:
            place = places[number]
            if read_refusal(answer, question=question, key=nodes[place].key) is not None:
                return None  # asked again it would say the same
            return read(place, nodes[place], answer)

        patience, there = self.patience, self.attendance
        frames = dict.fromkeys(places, question)
        found = ask(self.line, frames, longest=longest, read=understood, patience=patience, attendance=there)
        return {places[number]: answer for number, answer in found.items()}

    def _answer(self, place: int, node: Node, number: int, frame: bytes, *, start: float) -> Answer:
        """What a silo signed for this round, or that it is refused: to ask again what it answered has no point."""
        expected = Place(plan=self.offer.fingerprint, round=number, party=node.party)
        found, _, _ = unsealed(frame, kind="silo", key=node.key, most=8 * self.offer.size)
        if found != expected:
            raise DataError("an answer of another plan, round or silo than was asked")
        try:
            answer = read_silo(frame, place=expected, size=self.offer.size, key=node.key)
            check_answer(answer, self.plans[node.party], descent=self.descent, start=start)
        except DataError:
            return Answer(silo=node.party, round=number, epsilon=0.0, absence="refused")
        return answer

    def _said(self, place: int, node: Node, frame: bytes, answered: int) -> Said | None:
        plan, cells = self.plans[node.party], self.offer.cells
        found, head, body = unsealed(frame, kind="statement", key=node.key, most=8 * cells)
        if found != Place(plan=self.offer.fingerprint, round=self.offer.rounds, party=node.party):
            raise DataError("a statement of another plan or silo than was asked")
        try:
            if body and (plan.config.report_std is None or len(body) != 8 * cells):
                raise DataError("a report that the plan does not ask for, or of another size")
            table = np.frombuffer(body, "<f8").astype(np.float64)
            if not (np.abs(table) < 2.0**60).all():
                raise DataError("a report with numbers that can be none")
            reported = table.size > 0
            statement = checked_statement(head.get("statement"), plan, answered=answered, reported=reported)
        except DataError:
            return None
        return Said(statement=statement, table=table.reshape(self.offer.classes or 0, -1) if reported else None)
