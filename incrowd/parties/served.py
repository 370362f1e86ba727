"""A run over a network of real parties: their silos, their sums, and the sums that stay masked.

keys     server -> party   0: nothing, 1: all hellos, 2: all hellos and sealed secrets; answered in kind
request  server -> party   the weights of a round, as in every plan; answered with `ready`
list     server -> party   the ready parties; answered with the masked part
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from incrowd._random import Floats
from incrowd.algorithms.fedavg import State
from incrowd.algorithms.silos import Answer
from incrowd.errors import ConfigError, DataError, RoundLost, RoundUnanswered
from incrowd.parties.asking import Attendance
from incrowd.parties.frames import MOST_BESIDE, Place, opened, read_silo, sealed
from incrowd.parties.network import AskedCohort, AskedTrainer, Network, Node
from incrowd.parties.offer import LAST, RoundTask
from incrowd.parties.secure_sum import SumPlan, SumServer, is_random, sum_plan
from incrowd.privacy.account.accounting import ACCOUNTANTS, price
from incrowd.privacy.account.events import compose
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.clipped_sum import Observed, Part
from incrowd.privacy.mechanism.clipping import Clip
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.statement import FORGOTTEN, Claims, Statement
from incrowd.runs.round_loop import RoundLoop, SiloSession
from incrowd.runs.run import Run
from incrowd.runs.work import ClientWork, RecordWork, SiloWork
from incrowd.settings import Descent


def served(run: Run, network: Network) -> Run:
    """The same run over a network whose parties have accepted its offer."""
    work = run.work
    masked = SumNetwork(network=network) if network.offer.roster else None
    if isinstance(work, ClientWork):
        return run.asking(trainers=network.trainer if masked is None else masked.trainer)
    if isinstance(work, RecordWork):
        return run.asking(sums=network.records) if masked is None else run.asking(shared=masked.records)
    if not isinstance(work, SiloWork) or not work.elsewhere:
        remedy = 'silos that are asked are real parties: set privacy.unit = "record" and data.name = "parties"'
        raise ConfigError(field="data.name", value=work.config.data.name, remedy=remedy)
    return Run(run.folder, ServedSilos(**vars(work), server=SiloServer(network=network, descent=work.config.local)))


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedSilos(SiloWork):
    """A federation of silos over a network, which hold all ledgers.

    Guarantee: a server that was killed and restarted asks the same questions, and so gets the same bytes.
    """

    server: "SiloServer"

    def __post_init__(self) -> None:
        every = self.config.run.checkpoint_every
        if every != 1:
            remedy = "silos that are asked are asked once: leave it out, and every round is kept"
            raise ConfigError(field="run.checkpoint_every", value=every, remedy=remedy)

    @property
    def asks_others(self) -> bool:
        """See `SiloWork.asks_others`."""
        return True

    @contextmanager
    def open(self, folder: Path) -> Iterator["ServedSession"]:
        """Ready to train, for as long as the `with` block lasts."""
        algorithm = replace(self, together=self.server.answers).asking(())
        yield ServedSession(work=self, algorithm=algorithm, outboxes=())


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedSession(SiloSession):
    """The work, ready to ask the silos."""

    work: ServedSilos

    def restored(self, loop: RoundLoop) -> State:
        """See `SiloSession.restored`: silos state their own spending."""
        past = loop.database.rounds()
        for record in past:  # of a round that is asked again, too: it gets the same answers
            for said in record.silos or ():
                self.work.server.remember(record.round, said)
        done = max((record.round + 1 for record in past), default=0)
        return loop.start_from(self.algorithm.init(), charged=done)

    def claims(self, state: State) -> Claims:
        """The claim of each silo about its records, for which it is asked."""
        return self.work.server.claims(state.published)

    @property
    def _spent(self) -> dict[str, float]:
        return dict(self.work.server.epsilons)


_BESIDE = 2**17
"""The most bytes of a silo's answer around its numbers."""


@dataclass(kw_only=True, eq=False)
class SiloServer:
    """Silos that noise their own steps, asked over a network: for rounds, and at the end for their claims.

    Guarantee: a silo's signed answer for this round of this offer counts once. The server marks a signed answer that
    the plan cannot give `refused`, by name: infinite numbers, too long an update, other noise than planned. A silo that
    does not take part, or answer in time, has `no answer`, and has spent at least its last figure; the round goes on
    without it. A round in which all silos are silent or refuse ends the run before the server charges it
    (`RoundUnanswered`).
    """

    network: Network
    descent: Descent
    epsilons: dict[str, float] = field(init=False)
    answered: dict[str, set[int]] = field(init=False)

    def __post_init__(self) -> None:
        names = self.network.offer.parties
        self.epsilons, self.answered = dict.fromkeys(names, 0.0), {name: set() for name in names}

    def answers(self, number: int, weights: Floats) -> Sequence[Answer]:
        """The silos' answers to a round from these weights, in order."""
        offer = self.network.offer
        small, size = weights.astype(np.float32).astype(np.float64), offer.size
        start = math.sqrt(np.dot(small, small))

        def read(node: Node, frame: bytes) -> Answer:
            expected = self.network.place(node, number)
            _, where, _head, _body = opened(frame, ("silo",), key=node.key, most=8 * size)
            if where != expected:
                raise DataError("an answer of another plan, round or silo than was asked")
            try:
                answer = read_silo(frame, place=expected, size=size, key=node.key)
                check_answer(answer, offer.plan_of(node.party), descent=self.descent, start=start)
            except DataError:  # to ask again what it signed has no point
                return Answer(silo=node.party, round=number, epsilon=0.0, absence="refused")
            return answer

        longest, everybody = 8 * size + _BESIDE, range(len(offer.parties))
        found = self.network.ask(everybody, weights, {}, round=number, longest=longest, read=read)
        counted = {name: each for name, each in found.items() if each is not None and each.absence != "refused"}
        answers = sum(each.absence != "daily limit" for each in counted.values())
        refusals = len(found) - answers
        self.network.attendance.check_answered(number, answers=answers, refusals=refusals, everyone=True)
        for each in counted.values():
            self.remember(number, vars(each))
        absent = [
            Answer(silo=name, round=number, epsilon=self.epsilons[name], absence="no answer") for name in offer.parties
        ]
        return [replace(found.get(nobody.silo) or nobody, epsilon=nobody.epsilon) for nobody in absent]

    def remember(self, number: int, said: Mapping[str, Any]) -> None:
        """Remember what a silo has spent after a round, and whether it answered."""
        self.epsilons[said["silo"]] = said["epsilon"]
        if said["absence"] is None:
            self.answered[said["silo"]].add(number)

    def claims(self, weights: Floats) -> Claims:
        """The silos' claims, for which they are asked with the last weights; for a silent silo or an invalid claim, the
        recomputed statement.
        """
        offer = self.network.offer

        def read(node: Node, frame: bytes) -> Statement | None:
            _, found, head, _body = opened(frame, ("statement",), key=node.key, most=0)
            if found != self.network.place(node, offer.rounds):
                raise DataError("a statement of another plan or silo than was asked")
            said, plan = head.get("statement"), offer.plan_of(node.party)
            with suppress(DataError):  # to ask again what it signed has no point
                return checked_statement(said, plan, answered=len(self.answered[node.party]))
            return None

        everyone = replace(self.network, attendance=Attendance())  # an absent silo may be back for its claim
        places = range(len(offer.parties))
        asked = everyone.ask(places, weights, LAST, round=offer.rounds, longest=_BESIDE, read=read)
        found = {name: said for name, said in asked.items() if said is not None}
        self.epsilons |= {name: said.epsilon for name, said in found.items()}
        return Claims(
            by_party={
                name: found.get(name) or recomputed(offer.plan_of(name), len(self.answered[name]))
                for name in offer.parties
            }
        )


UNSAID = (
    "the silo has not said this itself: it is what the answers that it gave come to by its plan. "
    "Rounds that it paid for and lost, and what others spent on its records, are not in epsilon"
)

LARGEST = 1e18
"""No update is longer than this, whatever its settings are: weights stay finite in float32 for any number of rounds."""

_TOLERANCE = 1e-6  # for epsilons, which another kind of processor may round otherwise

_CAVEATS, _LONGEST, _MOST_SPENT = 20, 500, 1e300


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
    nothing = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    said = plan.statement(nothing, own=0)
    event = compose([(plan.round(0).event, answered)] if answered else [])
    cost = price(event, delta=plan.budget.delta, relation=plan.relation)
    caveats = (UNSAID, *(caveat for caveat in said.caveats if caveat != FORGOTTEN))
    return replace(said, epsilon=cost.epsilon, accountant=cost.accountant, caveats=caveats)


def checked_statement(form: object, plan: Plan, *, answered: int) -> Statement:
    """A silo's own statement, checked against the number of its answers.

    Guarantee: its words are the plan's, or weaker; its epsilon is at least the epsilon of the answered rounds.
    """
    said, ours = form if isinstance(form, Mapping) else {}, recomputed(plan, answered)
    epsilon, accountant, caveats = (said.get(name) for name in ("epsilon", "accountant", "caveats"))
    if not isinstance(caveats, list) or len(caveats) > _CAVEATS or not all(map(_is_caveat, caveats)):
        raise DataError("a statement whose caveats are not a few short lines")
    if not set(ours.caveats) <= {UNSAID, *caveats}:
        raise DataError("a statement that leaves out what weakens it")
    if not isinstance(epsilon, float | int) or not ours.epsilon * (1 - _TOLERANCE) <= epsilon < _MOST_SPENT:
        raise DataError(f"a statement of epsilon = {epsilon}, and its rounds come to {ours.epsilon:.6g}")
    if not isinstance(accountant, str) or accountant not in ACCOUNTANTS:
        raise DataError("a statement of another accountant than there are")
    found = replace(ours, epsilon=float(epsilon), accountant=accountant, caveats=tuple(caveats))
    if json.loads(json.dumps(found.to_json())) != said:
        raise DataError("a statement whose words are not the plan's, or not those of its facts")
    return found


def _is_caveat(words: object) -> bool:
    return isinstance(words, str) and len(words) <= _LONGEST and words.isprintable()


_MOST_LOST = 2
"""The server drops a listed party after so many silent rounds: each such round is lost for all parties."""


@dataclass(kw_only=True, eq=False)
class SumNetwork:
    """The server's side of an offer whose parties share the noise.

    Guarantee: the server learns a sum of all listed parts with the noise of their shares, or nothing. It charges a
    round before it sends the list.

    Edge cases: all parties of the roster agree on keys before the first round. Too few ready parties for a list end the
    run (`RoundUnanswered`), unpaid. A listed party that stays silent loses the round (`RoundLost`); after two such
    rounds it is listed no more. After two rounds that are lost although all answered, the run ends: a party lies, and
    masks hide which.
    """

    network: Network
    plan: SumPlan = field(init=False)
    server: SumServer = field(init=False)
    _lost: Counter[str] = field(default_factory=Counter, init=False)
    _garbled: int = field(default=0, init=False)
    _agreed: bool = field(default=False, init=False)
    _there: dict[str, Node] = field(default_factory=dict, init=False)
    _list: bytes = field(default=b"", init=False, repr=False)

    def __post_init__(self) -> None:
        self.plan = sum_plan(self.network.offer.plan, self.network.offer)
        self.server = SumServer(self.plan, key=self.network.key)

    def agree(self) -> None:
        """Have all parties agree on keys; a second call before the first round changes nothing."""
        names = self.plan.roster.names
        hellos = self._keys(0, {})
        hidden = self._keys(1, hellos)
        self.server.check_zeros(self._keys(2, {**hellos, **{f"sealed {name}": hidden[name] for name in names}}))

    def _keys(self, stage: int, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        names, network = self.plan.roster.names, self.network
        pieces = [frames[name] for name in names] if stage else []
        pieces += [frames[f"sealed {name}"] for name in names] if stage == 2 else []
        place = Place(plan=network.offer.fingerprint, round=stage, party="")
        sizes = {"sizes": [len(piece) for piece in pieces]}
        frame = sealed("keys", place, sizes, b"".join(pieces), key=network.key)
        kind = ("hello", "sealed", "zeros")[stage]
        found = self._told([node for node in network.nodes() if node.party in names], frame, kind, number=0)
        missing = [name for name in names if name not in found]
        if missing:
            raise DataError(f"all parties of the roster have to agree on keys, and these did not: {', '.join(missing)}")
        return found

    def ready(self, number: int, weights: Floats, clip: Clip) -> list[str]:
        """Ask for a round from these weights, and list the ready parties."""
        if not self._agreed and not any(self.network.history.before(number)):
            self.agree()
        self._agreed = True
        if self._garbled >= _MOST_LOST:
            raise RoundUnanswered(
                f"round {number + 1}: {self._garbled} rounds were lost although all listed parties answered, so one of "
                "them sends wrong numbers, and masks hide which: find it, and begin a new run without it"
            )
        network = self.network
        form = RoundTask.stated(network.offer, number, clip).form
        digest = network.question(weights, form, round=number).digest

        def read(node: Node, frame: bytes) -> bytes:
            head = self._own(node, frame, "ready", number)
            if head.get("question") != digest or not is_random(head.get("random")):
                raise DataError("a party that is ready for another question, or has no random number")
            self._there[node.party] = node  # nothing is offered between charge and list
            return frame

        everybody = range(len(network.offer.parties))
        found = network.ask(everybody, weights, form, round=number, longest=2**13, read=read)
        frames = {name: frame for name, frame in found.items() if frame is not None}
        ready = {name: frame for name, frame in frames.items() if self._lost[name] < _MOST_LOST}
        if len(ready) <= network.offer.plan.config.sharing[1]:
            raise RoundUnanswered(
                f"round {number + 1}: {len(ready)} parties are ready, and so many may collude: see to the others, and "
                "give the same command again; nothing was charged"
            )
        self._list = self.server.listed(number, ready, question=digest)
        return sorted(ready)

    def total(self, number: int, names: Sequence[str]) -> Whole:
        """The sum of the parts of all listed parties, with the noise of their shares."""
        answers = self._told([self._there[name] for name in names], self._list, "masked", number=number)
        try:
            return self.server.total(number, answers)
        except DataError as error:
            silent = set(names) - set(answers)
            self._lost.update(silent)
            self._garbled += not silent
            raise RoundLost(str(error)) from error

    def records(self, number: int, weights: Floats) -> tuple[int, Callable[[], Whole]]:
        """The number of listed silos in a round, and their sum: see `incrowd.algorithms.silos.AskShared`."""
        clip = RoundTask.stated(self.network.offer, number, self.network.offer.plan.config.clip).clip
        names = self.ready(number, weights, clip)
        return len(names), lambda: self.total(number, names)

    def trainer(self, weights: Floats) -> AskedTrainer:
        """The trainer of a round that starts from these weights: see `incrowd.algorithms.clients.Trainers`."""
        return AskedTrainer(self._cohort, weights)

    def _cohort(self, weights: Floats, clients: Sequence[int], number: int) -> AskedCohort:
        """The ready clients, which are then listed."""
        offer = self.network.offer
        names = self.ready(number, weights, RoundTask.stated(offer, number, offer.plan.config.clip).clip)
        listed = [client for client in clients if offer.parties[client] in names]

        def collected(_: Clip) -> Part:
            observed = Observed(contributions=len(listed), dropped=0, unclipped=0)
            return Part(total=self.total(number, names), observed=observed)

        return AskedCohort(listed, collected)

    def _own(self, node: Node, frame: bytes, kind: str, number: int) -> Mapping[str, Any]:
        """The head of a frame that this party has signed for this round of the sum, with a body of the right length."""
        length = self.plan.length(kind, node.party)
        _, place, head, body = opened(frame, (kind,), key=node.key, most=length)
        if place != Place(plan=self.plan.name, round=number, party=node.party) or len(body) != length:
            raise DataError("an answer of another sum, round, party or length than was asked")
        return head

    def _told(self, nodes: Collection[Node], frame: bytes, kind: str, *, number: int) -> dict[str, bytes]:
        """The answers of these parties in time, by name."""

        def read(node: Node, reply: bytes) -> bytes:
            head = self._own(node, reply, kind, number)
            if kind == "hello":
                self.server.check_hello(node.party, reply)
            if kind == "masked" and head.get("list") != self.server.asked(number):
                raise DataError("an answer to another list")
            return reply

        found = self.network.tell(frame, nodes, longest=4 * self.plan.size + MOST_BESIDE, read=read)
        return {name: reply for name, reply in found.items() if reply is not None}
