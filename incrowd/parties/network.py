"""The server's side of a round: it asks nodes over a transport, and checks their answers."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from incrowd._random import Floats, Stream
from incrowd.algorithms.silos import Answer
from incrowd.errors import ConfigError, DataError, IncrowdError
from incrowd.parties.asking import Attendance, Patience, Transport, ask
from incrowd.parties.frames import (
    AskedBefore,
    PartyAnswer,
    Place,
    Request,
    decoded,
    longest_answer,
    read_answer,
    read_refusal,
    read_silo,
    unsealed,
)
from incrowd.parties.keys import read_roster
from incrowd.parties.offer import LAST, OF_THIS_MACHINE, Offer, RoundTask, module_of
from incrowd.privacy.account.accounting import ACCOUNTANTS, Price, price
from incrowd.privacy.account.events import compose
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.clipped_sum import ClientNumbers, Observed, Part
from incrowd.privacy.mechanism.clipping import Clip
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.plan import forms
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.statement import FORGOTTEN, Statement
from incrowd.runs.data_config import Parties
from incrowd.runs.sources import enrolled
from incrowd.runs.work import ClientWork, RecordWork, SiloWork
from incrowd.settings import Descent

T = TypeVar("T")

_REFUSALS = ("refused", "daily limit")

_BESIDE = 2**17
"""The most bytes of a silo's answer around its numbers."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of the transport by its number, the party's name, and the key that signs its answers.

    A `block` of simulated clients gets the numbers of its clients.
    """

    id: int
    party: str
    key: Ed25519PublicKey = field(repr=False, compare=False)
    block: bool = False


Dealt = Mapping[Node, tuple[int, ...]]
"""The nodes of a round, each with its clients. Every party gets the same question."""

Deal = Callable[[Sequence[int]], Dealt]
"""Deals a cohort to nodes."""


def in_blocks(nodes: Sequence[Node]) -> Deal:
    """Each node trains a block of the cohort."""

    def deal(clients: Sequence[int]) -> Dealt:
        parts = np.array_split(np.asarray(clients, dtype=np.int64), len(nodes))
        return {node: tuple(map(int, part)) for node, part in zip(nodes, parts, strict=True) if part.size}

    return deal


def by_party(nodes: Mapping[int, Node]) -> Deal:
    """Each client is a party; a client without a node counts as zero."""
    return lambda clients: {nodes[client]: (client,) for client in clients if client in nodes}


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """The nodes that answer for an offer.

    Guarantee: a node's signed answer for this round of this plan counts once; a part of another size, or longer than
    clipped contributions can be, counts as zero. Clients report no weights: the denominator is the plan's.

    Edge cases: a node that refuses, or is late, counts as zero; `told` gets the reason without a name, because the
    cohort is secret. A silent round ends the run (`RoundUnanswered`), before its charge unless noise is local: see
    `Attendance.check_answered`. Parties refuse a server that does not know its own questions, so a server that may
    restart keeps its `history` on disk. A node whose name is not its place's is a `ConfigError`.
    """

    transport: Transport
    offer: Offer
    deal: Deal
    key: Ed25519PrivateKey = field(repr=False)
    patience: Patience = field(default_factory=Patience)
    history: AskedBefore = field(default_factory=AskedBefore)
    attendance: Attendance = field(default_factory=Attendance)
    told: Callable[[str], object] = str

    def __post_init__(self) -> None:
        if self.offer.together:  # refuses an unusable clip before it asks
            RoundTask.stated(self.offer, 0, self.offer.plan.config.clip)

    def ask(
        self,
        clients: Sequence[int],
        weights: Floats,
        clip: Mapping[str, Any],
        *,
        round: int,
        longest: int,
        read: Callable[[Node, tuple[int, ...], bytes], T | None],
    ) -> dict[int, tuple[Node, tuple[int, ...], T | None]]:
        """The first readable answer of each node with some of these clients, by its number; None for a refusal."""
        plain = self.question(weights, clip, round=round)
        dealt, parties = dict[int, tuple[Node, tuple[int, ...]]](), self.offer.parties
        for node, its in self.deal(clients).items():
            if not node.block and [parties[place] for place in its] != [node.party]:
                remedy = f"give nodes by their places: {', '.join(parties)}"
                raise ConfigError(field="nodes", value=(*its, node.party), remedy=remedy)
            dealt[node.id] = node, its
        self.history.add(round, plain.digest)  # on disk, before the server asks
        frames, signed = dict[int, bytes](), dict[tuple[int, ...], bytes]()
        for number, (node, its) in dealt.items():
            asked = its if node.block else ()
            if asked not in signed:
                signed[asked] = replace(plain, clients=asked).to_bytes(self.key)
            frames[number] = signed[asked]

        def understood(number: int, frame: bytes) -> T | None:
            node, its = dealt[number]
            if (why := read_refusal(frame, question=frames[number], key=node.key)) is not None:
                self.told(why)
                return None  # asked again it would say the same
            return read(node, its, frame)

        found = ask(
            self.transport,
            frames,
            longest=longest,
            read=understood,
            patience=self.patience,
            attendance=self.attendance,
        )
        return {number: (*dealt[number], answer) for number, answer in found.items()}

    def question(self, weights: Floats, clip: Mapping[str, Any], *, round: int) -> Request:
        """The question of a round, with all questions before it."""
        place, before = Place(plan=self.offer.fingerprint, round=round, party=""), self.history.before(round)
        return Request(place=place, weights=weights.astype(np.float32), clip=dict(clip), history=before)

    def parts(
        self, clients: Sequence[int], weights: Floats, *, round: int, clip: Clip
    ) -> dict[int, tuple[tuple[int, ...], PartyAnswer | None]]:
        """The parts of a round's sum, by the nodes that answered, each with its clients."""
        task, records = RoundTask.stated(self.offer, round, clip), self.offer.records

        def read(node: Node, its: tuple[int, ...], frame: bytes) -> PartyAnswer | None:
            bound = sum(records[place] for place in its) if records else len(its)
            expected = task.expected(self.place(node, round), contributions=bound)
            signed = read_answer(frame, expected=expected, key=node.key)
            try:
                return decoded(*signed, expected=expected)
            except DataError:
                if self.patience.all_needed:
                    raise
                return None  # it is the party's own answer, so there is no point in asking again

        told = forms.RoundForm(plan=self.offer.fingerprint, round=round, clip=clip)
        form: dict[str, Any] = forms.to_json(told)["clip"]
        longest = longest_answer(self.offer.size)
        found = self.ask(clients, weights, form, round=round, longest=longest, read=read)
        if clients:
            answers = sum(answer is not None for _, _, answer in found.values())
            everyone = bool(records) or len(clients) == self.offer.plan.round(round).sampler.clients
            self.attendance.check_answered(round, answers=answers, refusals=len(found) - answers, everyone=everyone)
        return {number: (its, answer) for number, (_, its, answer) in found.items()}

    def part(self, weights: Floats, clients: Sequence[int], *, round: int, clip: Clip) -> Part:
        """The sum of the parts of these clients."""
        found = self.parts(clients, weights, round=round, clip=clip)
        steps, unclipped, dropped = np.zeros(self.offer.size, np.int64), 0, 0
        for its, answer in found.values():
            if answer is None:
                dropped += len(its)
            else:
                np.add(steps, answer.steps, out=steps)
                unclipped, dropped = unclipped + answer.unclipped, dropped + answer.dropped
        came = sum(len(its) for its, _ in found.values())
        observed = Observed(contributions=came, dropped=dropped, unclipped=unclipped)
        return Part(total=Whole(steps=steps, step=RoundTask.stated(self.offer, round, clip).step), observed=observed)

    def records(self, number: int, weights: Floats, _: Callable[[int], Stream]) -> Mapping[int, Whole]:
        """The sums over records of a round, by the places of their silos, which draw their batches themselves: see
        `incrowd.algorithms.RecordCohort`.
        """
        clip = self.offer.plan.config.clip
        task = RoundTask.stated(self.offer, number, clip)
        found = self.parts(range(len(self.offer.parties)), weights, round=number, clip=task.clip)
        return {
            place: Whole(steps=answer.steps, step=task.step)
            for (place,), answer in found.values()
            if answer is not None
        }

    def trainer(self, weights: Floats) -> "NetworkTrainer":
        """The trainer of a round that starts from these weights: see `incrowd.algorithms.clients.Trainers`."""
        return NetworkTrainer(self, weights)

    def place(self, node: Node, round: int) -> Place:
        """The place of a node's answer."""
        return Place(plan=self.offer.fingerprint, round=round, party=node.party)


@dataclass(frozen=True, eq=False)
class NetworkTrainer:
    """A network that trains: see `incrowd.privacy.release.Trainer`."""

    network: Network
    weights: Floats = field(repr=False)

    def cohort(self, clients: ClientNumbers, *, round: int) -> "NetworkCohort":
        """These clients, whom the server asks when it needs their sum."""
        return NetworkCohort(trainer=self, clients=[int(client) for client in clients], round=round)


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkCohort:
    """Clients whose sum comes over the network: see `incrowd.privacy.mechanism.clipped_sum.Elsewhere`."""

    trainer: NetworkTrainer
    clients: Sequence[int] = field(repr=False)
    round: int

    def collected(self, clip: Clip) -> Part:
        """Their part, without missing answers."""
        return self.trainer.network.part(self.trainer.weights, self.clients, round=self.round, clip=clip)


def offer_of(work: ClientWork | RecordWork | SiloWork) -> Offer:
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
    else:
        more["records"] = work.declared
    if isinstance(data, Parties) and work.plan.noise_by == "parties":
        more["roster"] = tuple(read_roster(Path(data.enrolled), enrolled(data)).to_json())
    return Offer.of_plan(work.plan, parties=enrolled(data) if isinstance(data, Parties) else (), **more)


def settings_of(work: ClientWork | RecordWork | SiloWork, *, sections: tuple[str, ...]) -> Mapping[str, Any]:
    """The settings of a run in these sections that parties need."""
    settings = work.config.model_dump(mode="json")
    if "data" in sections:  # canonical JSON does not keep the order of columns, so it is said
        settings["data"]["features"] = list(work.data.columns)
    found = {
        section: {key: value for key, value in settings[section].items() if key not in OF_THIS_MACHINE.get(section, ())}
        for section in sections
    }
    return {**found, "module": module_of(work.model)}


UNSAID = (
    "the silo has not said this itself: it is what the answers that it gave come to by its plan. "
    "Rounds that it paid for and lost, and what others spent on its records, are not in epsilon"
)

LARGEST = 1e18
"""No update is longer than this, whatever its settings are: weights stay finite in float32 for any number of rounds."""

_TOLERANCE = 1e-6  # for epsilons, which another kind of processor may round otherwise

_CAVEATS, _LONGEST = 20, 500


def longest_update(plan: Plan, *, size: int, descent: Descent, start: float = 0.0) -> float:
    """A bound on the norm of an update of so many numbers, from weights of the norm `start`.

    In a step a silo moves along a sum of clipped gradients and noise. Noise of d numbers is longer than sqrt(d) + t
    deviations with probability e^(-t^2 / 2), and a batch exceeds this bound with less than 10^-20. Momentum makes a
    step at most 1 / (1 - momentum) times as long, and weight decay moves towards 0.
    """
    training = plan.training()
    expected = training.expected_batch
    batch = min(training.most_records, expected + 10 * math.sqrt(expected) + 50)
    noise = 1.01 * training.noise_multiplier * (math.sqrt(size) + grid.REACH)
    pull = training.sensitivity * (batch + noise) / expected
    rate, decay = descent.learning_rate / (1 - descent.momentum), descent.weight_decay
    rounding, moved = 2.0**-22, 0.0
    for _ in range(training.steps):
        moved = (1 + rounding) * moved + rate * (pull + decay * (start + moved)) + rounding * start
        if moved > LARGEST:
            return LARGEST
    return 1.01 * moved


def check_answer(answer: Answer, plan: Plan, *, descent: Descent, start: float) -> None:
    """Refuse (`DataError`) an answer that a silo with this plan cannot give, to weights of the norm `start`."""
    if answer.update is None:
        return
    size = answer.update.size
    longest = longest_update(plan, size=size, descent=descent, start=start)
    with np.errstate(over="ignore"):
        norm = math.sqrt(np.dot(answer.update, answer.update))
    if not norm <= longest:
        raise DataError(f"an update longer than its plan can give, {longest:.4g}")


def recomputed(plan: Plan, answered: int) -> Statement:
    """A silo's statement, recomputed from the number of its answers."""
    said, cost = _stated(plan), _price(plan, answered)
    return replace(said, epsilon=cost.epsilon, accountant=cost.accountant, caveats=(UNSAID, *said.caveats))


def checked_statement(form: object, plan: Plan, *, answered: int) -> Statement:
    """A silo's own statement, checked against the number of its answers.

    Guarantee: its words are the plan's, or weaker; its epsilon is at least the epsilon of the answered rounds.
    """
    said = _read(form)
    ours = _stated(plan)
    for name in ("unit", "relation", "trust", "delta", "sampler", "assumed", "not_covered"):
        if getattr(said, name) != getattr(ours, name):
            raise DataError(f"a statement whose {name} is not the plan's")
    if not set(ours.caveats) <= set(said.caveats):
        raise DataError("a statement that leaves out what weakens it")
    cost = _price(plan, answered).epsilon
    if not cost * (1 - _TOLERANCE) <= said.epsilon < math.inf:
        raise DataError(f"a statement of epsilon = {said.epsilon:.6g}, and its rounds come to {cost:.6g}")
    return said


def _read(form: object) -> Statement:
    if not isinstance(form, Mapping) or not _is_plain(form):
        raise DataError("a statement that is none")
    try:
        return Statement.from_json(form)
    except (IncrowdError, ArithmeticError, KeyError, StopIteration, TypeError, ValueError) as error:
        raise DataError("a statement that is not whole, or says two things") from error


def _is_plain(form: Mapping[str, Any]) -> bool:
    """The facts have the kinds that facts have, and words are few enough to be read."""
    texts = [form.get(name) for name in ("unit", "trust", "accountant", "sampler")]
    numbers = [form.get(name) for name in ("epsilon", "delta")]
    lists = [form.get(name) for name in ("assumed", "not_covered", "caveats")]
    if not all(isinstance(each, list) and len(each) <= _CAVEATS for each in lists):
        return False
    texts += [text for each in lists if isinstance(each, list) for text in each]
    return (
        all(isinstance(text, str) and len(text) <= _LONGEST and text.isprintable() for text in texts)
        and all(isinstance(each, float | int) and not isinstance(each, bool) and 0 <= each < 1e300 for each in numbers)
        and form.get("accountant") in ACCOUNTANTS
    )


def _stated(plan: Plan) -> Statement:
    """The statement of a silo that has spent nothing."""
    nothing = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    said = plan.statement(nothing, own=0)
    return replace(said, caveats=tuple(caveat for caveat in said.caveats if caveat != FORGOTTEN))


def _price(plan: Plan, answered: int) -> Price:
    event = compose([(plan.round(0).event, answered)] if answered else [])
    return price(event, delta=plan.budget.delta, relation=plan.relation)


@dataclass(frozen=True, kw_only=True, eq=False)
class SiloServer:
    """Silos that noise their own steps, asked over a network: for rounds, and at the end for their claims.

    Guarantee: a silo's signed answer for this round of this offer counts once. The server marks a signed answer that
    the plan cannot give `refused`, by name: infinite numbers, too long an update, other noise than planned. A silo that
    does not take part, or answer in time, has `no answer`; the round goes on without it. A round in which all silos are
    silent or refuse ends the run before the server charges it (`RoundUnanswered`).
    """

    network: Network
    descent: Descent

    @property
    def offer(self) -> Offer:
        """The offer that the silos have accepted."""
        return self.network.offer

    def answers(self, number: int, weights: Floats) -> Sequence[Answer]:
        """The silos' answers to a round from these weights, in order; a missing answer costs 0: its cost is unknown."""
        small, size = weights.astype(np.float32).astype(np.float64), self.offer.size
        start = math.sqrt(np.dot(small, small))

        def read(node: Node, _: tuple[int, ...], frame: bytes) -> Answer:
            expected = self.network.place(node, number)
            where, _head, _body = unsealed(frame, kind="silo", key=node.key, most=8 * size)
            if where != expected:
                raise DataError("an answer of another plan, round or silo than was asked")
            try:
                answer = read_silo(frame, place=expected, size=size, key=node.key)
                check_answer(answer, self.offer.plan_of(node.party), descent=self.descent, start=start)
            except DataError:  # to ask again what it signed has no point
                return Answer(silo=node.party, round=number, epsilon=0.0, absence="refused")
            return answer

        longest, everybody = 8 * size + _BESIDE, range(len(self.offer.parties))
        asked = self.network.ask(everybody, weights, {}, round=number, longest=longest, read=read)
        found = {node.party: answer for node, _, answer in asked.values()}
        answers = sum(each is not None and each.absence not in _REFUSALS for each in found.values())
        refusals = len(found) - answers
        self.network.attendance.check_answered(number, answers=answers, refusals=refusals, everyone=True)
        absent = [Answer(silo=name, round=number, epsilon=0.0, absence="no answer") for name in self.offer.parties]
        return [found.get(nobody.silo) or nobody for nobody in absent]

    def last(self, weights: Floats, answered: Mapping[str, int]) -> Mapping[str, Statement]:
        """The silos' claims on the last weights; silent silos and invalid claims are left out.

        `answered` has the number of rounds that each has answered.
        """
        number, offer = self.offer.rounds, self.offer

        def read(node: Node, _: tuple[int, ...], frame: bytes) -> Statement | None:
            found, head, _body = unsealed(frame, kind="statement", key=node.key, most=0)
            if found != self.network.place(node, number):
                raise DataError("a statement of another plan or silo than was asked")
            said, plan = head.get("statement"), offer.plan_of(node.party)
            with suppress(DataError):  # to ask again what it signed has no point
                return checked_statement(said, plan, answered=answered.get(node.party, 0))
            return None

        everyone = replace(self.network, attendance=Attendance())  # an absent silo may be back for its claim
        asked = everyone.ask(range(len(offer.parties)), weights, LAST, round=number, longest=_BESIDE, read=read)
        return {node.party: said for node, _, said in asked.values() if said is not None}
