"""The server's side of a round: it asks nodes over a transport, and checks their answers."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from incrowd._random import Floats, Stream
from incrowd.errors import DataError
from incrowd.parties.asking import Attendance, Patience, Transport, ask
from incrowd.parties.frames import (
    AskedBefore,
    Place,
    Request,
    decoded,
    longest_answer,
    read_acceptance,
    read_answer,
    read_refusal,
)
from incrowd.parties.keys import read_roster
from incrowd.parties.offer import OF_THIS_MACHINE, Offer, OfferKind, RoundTask, module_of
from incrowd.privacy.mechanism.clipped_sum import ClientNumbers, Observed, Part
from incrowd.privacy.mechanism.clipping import Clip
from incrowd.privacy.mechanism.grid import Whole
from incrowd.runs.data_config import Parties
from incrowd.runs.sources import enrolled
from incrowd.runs.work import ClientWork, RecordWork, SiloWork, Work

T = TypeVar("T")

LONGEST_REPLY = 2**15
"""The most bytes of a party's reply to an offer."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of the transport by its number, the party's name, and the key that signs its answers."""

    id: int
    party: str
    key: Ed25519PublicKey = field(repr=False, compare=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """The parties that answer for an offer; `nodes` are those who are there, asked for before each question.

    Guarantee: a party's signed answer for this round of this plan counts once; a part of another size, or longer than
    clipped contributions can be, counts as zero. Clients report no weights: the denominator is the plan's.

    Edge cases: a party that has no node, refuses, or is late, counts as zero; `told` gets the reason without a name,
    because the cohort is secret. A silent round ends the run (`RoundUnanswered`), before its charge unless noise is
    local: see `Attendance.check_answered`. Parties refuse a server that does not know its own questions, so a server
    that may restart keeps its `history` on disk.
    """

    transport: Transport
    offer: Offer
    nodes: Callable[[], Collection[Node]]
    key: Ed25519PrivateKey = field(repr=False)
    patience: Patience = field(default_factory=Patience)
    history: AskedBefore = field(default_factory=AskedBefore)
    attendance: Attendance = field(default_factory=Attendance)
    told: Callable[[str], object] = str

    def __post_init__(self) -> None:
        if self.offer.together:  # refuses an unusable clip before it asks
            RoundTask.stated(self.offer, 0, self.offer.plan.config.clip)

    def tell(
        self,
        frame: bytes,
        nodes: Iterable[Node],
        *,
        longest: int,
        read: Callable[[Node, bytes], T | None],
        attendance: Attendance | None = None,
    ) -> dict[str, T | None]:
        """The first readable answer of each of these parties to a frame, by its name; None for a refusal."""
        named = {node.id: node for node in nodes}

        def understood(number: int, reply: bytes) -> T | None:
            node = named[number]
            if (why := read_refusal(reply, question=frame, key=node.key)) is not None:
                self.told(why)
                return None  # asked again it would say the same
            return read(node, reply)

        found = ask(
            self.transport,
            named,
            frame,
            longest=longest,
            read=understood,
            patience=self.patience,
            attendance=attendance,
        )
        return {named[number].party: answer for number, answer in found.items()}

    def ask(
        self,
        clients: Sequence[int],
        weights: Floats,
        clip: Mapping[str, Any],
        *,
        round: int,
        longest: int,
        read: Callable[[Node, bytes], T | None],
    ) -> dict[str, T | None]:
        """The answers of these clients to the question of a round: see `tell`."""
        nodes, parties = self.nodes(), {self.offer.parties[client] for client in clients}
        question = self.question(weights, clip, round=round)
        self.history.add(round, question.digest)  # on disk, before the server asks
        frame, asked = question.to_bytes(self.key), [node for node in nodes if node.party in parties]
        return self.tell(frame, asked, longest=longest, read=read, attendance=self.attendance)

    def offered(self, nodes: Iterable[Node], *, kind: OfferKind = "offer", patience: Patience) -> dict[str, str]:
        """The answers of these parties to the offer in time, by name: empty, or the reason of a refusal."""
        named, frame = {node.id: node for node in nodes}, self.offer.to_bytes(self.key, kind=kind)

        def read(number: int, reply: bytes) -> str:
            party, key = named[number].party, named[number].key
            return read_acceptance(reply, question=frame, plan=self.offer.fingerprint, party=party, key=key)

        found = ask(self.transport, named, frame, longest=LONGEST_REPLY, read=read, patience=patience)
        return {named[number].party: why for number, why in found.items()}

    def question(self, weights: Floats, clip: Mapping[str, Any], *, round: int) -> Request:
        """The question of a round, with all questions before it."""
        place, before = Place(plan=self.offer.fingerprint, round=round, party=""), self.history.before(round)
        return Request(place=place, weights=weights.astype(np.float32), clip=dict(clip), history=before)

    def parts(self, clients: Sequence[int], weights: Floats, task: RoundTask) -> dict[str, Part | None]:
        """The parts of a round's sum of the parties that answered, by name; None for a refusal, or a wrong part."""
        records, number = self.offer.records, task.round

        def read(node: Node, frame: bytes) -> Part | None:
            bound = records[self.offer.parties.index(node.party)] if records else 1
            expected = task.expected(self.place(node, number), contributions=bound)
            signed = read_answer(frame, expected=expected, key=node.key)
            try:
                answer = decoded(*signed, expected=expected)
            except DataError:
                return None  # it is the party's own answer, so there is no point in asking again
            seen = Observed(contributions=1, dropped=0, unclipped=answer.unclipped)
            return Part(total=Whole(steps=answer.steps, step=task.step), observed=seen)

        longest = longest_answer(self.offer.size)
        found = self.ask(clients, weights, task.form, round=number, longest=longest, read=read)
        if clients:
            answers = sum(answer is not None for answer in found.values())
            everyone = bool(records) or len(clients) == self.offer.plan.round(number).sampler.clients
            self.attendance.check_answered(number, answers=answers, refusals=len(found) - answers, everyone=everyone)
        return found

    def part(self, weights: Floats, clients: Sequence[int], *, round: int, clip: Clip) -> Part:
        """The sum of the parts of these clients."""
        task = RoundTask.stated(self.offer, round, clip)
        zero = Whole(steps=np.zeros(self.offer.size, np.int64), step=task.step)
        nothing = Part(total=zero, observed=Observed(contributions=1, dropped=1, unclipped=0))
        return added(task, [part or nothing for part in self.parts(clients, weights, task).values()])

    def records(self, number: int, weights: Floats, _: Callable[[int], Stream]) -> Mapping[int, Whole]:
        """The sums over records of a round, by the places of their silos, which draw their batches themselves: see
        `incrowd.algorithms.RecordCohort`.
        """
        parties, task = self.offer.parties, RoundTask.stated(self.offer, number, self.offer.plan.config.clip)
        found = self.parts(range(len(parties)), weights, task)
        return {parties.index(name): part.total for name, part in found.items() if part is not None}

    def trainer(self, weights: Floats) -> "AskedTrainer":
        """The trainer of a round that starts from these weights: see `incrowd.algorithms.clients.Trainers`."""

        def cohort(weights: Floats, clients: Sequence[int], round: int) -> AskedCohort:
            return AskedCohort(clients, lambda clip: self.part(weights, clients, round=round, clip=clip))

        return AskedTrainer(cohort, weights)

    def place(self, node: Node, round: int) -> Place:
        """The place of a node's answer."""
        return Place(plan=self.offer.fingerprint, round=round, party=node.party)


def added(task: RoundTask, parts: Sequence[Part]) -> Part:
    """The sum of the parts of a round, which are on one grid."""
    seen = [part.observed for part in parts]
    steps = sum((part.total.steps for part in parts), start=np.zeros(task.offer.size, np.int64))
    observed = Observed(
        contributions=sum(each.contributions for each in seen),
        dropped=sum(each.dropped for each in seen),
        unclipped=sum(each.unclipped for each in seen),
    )
    return Part(total=Whole(steps=steps, step=task.step), observed=observed)


@dataclass(frozen=True, eq=False)
class AskedCohort:
    """Clients whose sum is collected elsewhere: see `incrowd.privacy.mechanism.clipped_sum.Elsewhere`."""

    clients: Sequence[int] = field(repr=False)
    collected: Callable[[Clip], Part]


@dataclass(frozen=True, eq=False)
class AskedTrainer:
    """Clients who train elsewhere from these weights, a cohort a round: see `incrowd.privacy.release.Trainer`."""

    ask: Callable[[Floats, Sequence[int], int], AskedCohort]
    weights: Floats = field(repr=False)

    def cohort(self, clients: ClientNumbers, *, round: int) -> AskedCohort:
        """These clients, who are asked when their sum is needed, or listed before."""
        return self.ask(self.weights, [int(client) for client in clients], round)


def offer_of(work: Work) -> Offer:
    """The offer of a run."""
    data = work.config.data
    of_parties = isinstance(data, Parties)
    sections = ("model", "local", *(("data", "features") if of_parties else ()))
    more: dict[str, Any] = {
        "size": work.model.size,
        "columns": tuple(work.data.columns),
        "classes": work.data.examples.classes,
        "settings": settings_of(work, sections=sections),
    }
    if isinstance(work, SiloWork):
        plans = dict(zip(work.names, work.plans, strict=True))
        return Offer.of_plans(plans, rounds=work.rounds, **more)
    if isinstance(work, ClientWork):
        more |= {"size": work.engine.size, "classes": None}
    if isinstance(work, RecordWork):
        more["records"] = work.declared
    if isinstance(data, Parties) and work.plan.noise_by == "parties":
        more["roster"] = tuple(read_roster(Path(data.enrolled), enrolled(data)).to_json())
    return Offer.of_plan(work.plan, parties=enrolled(data) if isinstance(data, Parties) else (), **more)


def settings_of(work: Work, *, sections: tuple[str, ...]) -> Mapping[str, Any]:
    """The settings of a run in these sections that parties need."""
    settings = work.config.model_dump(mode="json")
    if "data" in sections:  # canonical JSON does not keep the order of columns, so it is said
        settings["data"]["features"] = list(work.data.columns)
    found = {
        section: {key: value for key, value in settings[section].items() if key not in OF_THIS_MACHINE.get(section, ())}
        for section in sections
    }
    return {**found, "module": module_of(work.model)}
