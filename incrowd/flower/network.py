"""Who trains is a network: the sum of a round comes from nodes, each with its part."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from incrowd._random import Floats
from incrowd.errors import DataError
from incrowd.flower.attendance import Attendance
from incrowd.flower.history import AskedBefore
from incrowd.flower.offer import Offer
from incrowd.flower.rounds import Line, Patience, ask
from incrowd.flower.wire import PartyAnswer, Place, Request, decoded, longest_answer, read_answer, read_refusal
from incrowd.flower.work import RoundTask
from incrowd.privacy.mechanism.clipped_sum import ClientNumbers, Observed, Part
from incrowd.privacy.mechanism.clipping import Clip
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.plan import forms


@dataclass(frozen=True, kw_only=True)
class Node:
    """Who is asked: a node of Flower's by its id, the party's name, and the key that its answers are signed with.

    A `block` of simulated clients is told which of them to train.
    """

    id: int
    party: str
    key: Ed25519PublicKey = field(repr=False, compare=False)
    block: bool = False


Dealt = Mapping[Node, tuple[int, ...]]
"""Which node is asked for which clients. A party is asked for itself, in the words that all others are asked in."""

Deal = Callable[[Sequence[int]], Dealt]
"""Deals a cohort to nodes."""


def in_blocks(nodes: Sequence[Node]) -> Deal:
    """Each node trains a block of the cohort."""

    def deal(clients: Sequence[int]) -> Dealt:
        parts = np.array_split(np.asarray(clients, dtype=np.int64), len(nodes))
        return {node: tuple(map(int, part)) for node, part in zip(nodes, parts, strict=True) if part.size}

    return deal


def by_party(nodes: Mapping[int, Node]) -> Deal:
    """Each client is a party; those that have no node are not asked, and count as zero."""
    return lambda clients: {nodes[client]: (client,) for client in clients if client in nodes}


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """Nodes that are asked for parts of a round's sum: of what they learnt, or of scores where these are offered.

    Guarantee: of a node's answer counts what it signed for this round of this plan, once; a part of another size or
    longer than clipped contributions can be counts as zero. Weights that clients would report do not exist here: the
    denominator is the plan's.

    Edge cases: a node that does not answer in time, or refuses, counts as zero, too; why it refuses is `told`, without
    its name, for who was drawn is nobody's business. A round that nobody answers ends the run (`RoundUnanswered`),
    before it is charged unless noise is local: see `Attendance.check_answered`. Real parties refuse a server that does
    not know what it asked them: one that may be started again gives a `history` that is on disk.
    """

    line: Line
    offer: Offer
    deal: Deal
    key: Ed25519PrivateKey = field(repr=False)
    patience: Patience = field(default_factory=Patience)
    history: AskedBefore = field(default_factory=AskedBefore)
    attendance: Attendance = field(default_factory=Attendance)
    told: Callable[[str], object] = str

    def trainer(self, weights: Floats) -> "NetworkTrainer":
        """The trainer of a round that starts from these weights: see `incrowd.algorithms.clients.Trainers`."""
        return NetworkTrainer(self, weights)

    def part(self, weights: Floats, clients: Sequence[int], *, round: int, clip: Clip) -> Part:
        """What came of these clients."""
        task = RoundTask.stated(self.offer, round, clip)
        dealt = {node.id: (node, its) for node, its in self.deal(clients).items()}
        frames = self._frames(dealt, weights, round=round, clip=clip)
        longest = longest_answer(self.offer.size)

        def read(number: int, frame: bytes) -> PartyAnswer | None:
            node, its = dealt[number]
            if (why := read_refusal(frame, question=frames[number], key=node.key)) is not None:
                self.told(why)
                return None  # asked again it would say the same
            expected = task.expected(self._place(node, round), contributions=len(its))
            signed = read_answer(frame, expected=expected, key=node.key)
            try:
                return decoded(signed, expected=expected)
            except DataError:
                if self.patience.all_needed:
                    raise
                return None  # it is the party's own answer, so there is no point in asking again

        found = ask(self.line, frames, longest=longest, read=read, patience=self.patience, attendance=self.attendance)
        if clients:
            answers = sum(answer is not None for answer in found.values())
            everyone = len(clients) == self.offer.plan.round(round).sampler.clients
            self.attendance.check_answered(round, answers=answers, refusals=len(found) - answers, everyone=everyone)
        steps, unclipped, dropped = np.zeros(self.offer.size, np.int64), 0, 0
        for number, answer in found.items():
            if answer is None:
                dropped += len(dealt[number][1])
            else:
                np.add(steps, answer.steps, out=steps)
                unclipped, dropped = unclipped + answer.unclipped, dropped + answer.dropped
        came = sum(len(dealt[number][1]) for number in found)
        observed = Observed(contributions=came, dropped=dropped, unclipped=unclipped)
        return Part(total=Whole(steps=steps, step=task.step), observed=observed)

    def _frames(
        self, dealt: Mapping[int, tuple[Node, tuple[int, ...]]], weights: Floats, *, round: int, clip: Clip
    ) -> dict[int, bytes]:
        """What each node is asked; the same bytes where it is the same."""
        place = Place(plan=self.offer.fingerprint, round=round, party="")
        form, small, signed = _form(self.offer, round, clip), weights.astype(np.float32), dict[tuple[int, ...], bytes]()
        plain = Request(place=place, weights=small, clip=form, history=self.history.before(round))
        self.history.add(round, plain.digest)  # on disk, before anybody is asked
        frames = {}
        for number, (node, its) in dealt.items():
            clients = its if node.block else ()
            if clients not in signed:
                signed[clients] = replace(plain, clients=clients).to_bytes(self.key)
            frames[number] = signed[clients]
        return frames

    def _place(self, node: Node, round: int) -> Place:
        return Place(plan=self.offer.fingerprint, round=round, party=node.party)


@dataclass(frozen=True, eq=False)
class NetworkTrainer:
    """A network as who trains: see `incrowd.privacy.release.Trainer`."""

    network: Network
    weights: Floats = field(repr=False)

    def cohort(self, clients: ClientNumbers, *, round: int) -> "NetworkCohort":
        """These clients, who are asked as soon as their sum is asked for."""
        return NetworkCohort(trainer=self, clients=[int(client) for client in clients], round=round)


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkCohort:
    """Clients whose sum comes over the network: see `incrowd.privacy.mechanism.clipped_sum.Elsewhere`."""

    trainer: NetworkTrainer
    clients: Sequence[int] = field(repr=False)
    round: int

    def collected(self, clip: Clip) -> Part:
        """Their part, as far as it came."""
        return self.trainer.network.part(self.trainer.weights, self.clients, round=self.round, clip=clip)


def _form(offer: Offer, round: int, clip: Clip) -> dict[str, Any]:
    """The clip as plain data."""
    told = forms.RoundForm(plan=offer.fingerprint, round=round, clip=clip)
    found: dict[str, Any] = forms.to_json(told)["clip"]
    return found
