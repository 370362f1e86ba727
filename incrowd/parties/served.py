"""A run over a network of real parties: their silos, their sums, and the sums that stay masked.

keys     server -> party   0: nothing, 1: all hellos, 2: all hellos and sealed secrets; answered in kind
request  server -> party   the weights of a round, as in every plan; answered with `ready`
list     server -> party   the ready parties; answered with the masked part
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from incrowd._random import Floats
from incrowd.algorithms.fedavg import State
from incrowd.algorithms.silos import Answer
from incrowd.errors import ConfigError, DataError, RoundLost, RoundUnanswered
from incrowd.parties.asking import ask
from incrowd.parties.frames import MOST_BESIDE, Place, read_refusal, sealed, unsealed
from incrowd.parties.network import Network, Node, SiloServer, recomputed
from incrowd.parties.offer import RoundTask
from incrowd.parties.secure_sum import SumPlan, SumServer, is_random, sum_plan
from incrowd.privacy.mechanism.clipped_sum import ClientNumbers, Observed, Part
from incrowd.privacy.mechanism.clipping import Clip
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.plan import forms
from incrowd.privacy.statement import Claims, Statement
from incrowd.runs.folder import Record
from incrowd.runs.round_loop import RoundLoop, SiloSession
from incrowd.runs.run import Run
from incrowd.runs.work import ClientWork, RecordWork, SiloWork


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

    server: SiloServer

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
        heard = Heard(self.server)
        algorithm = replace(self, together=heard.answers).asking(())
        yield ServedSession(work=self, algorithm=algorithm, outboxes=(), heard=heard)


class Heard:
    """The server's latest answers and claims of its silos in a run."""

    def __init__(self, server: SiloServer) -> None:
        names = server.offer.parties
        self.server = server
        self.epsilons: dict[str, float] = dict.fromkeys(names, 0.0)
        self.answered: dict[str, set[int]] = {name: set() for name in names}
        self.last: Mapping[str, Statement] = {}

    def answers(self, number: int, weights: Floats) -> Sequence[Answer]:
        """See `SiloServer.answers`; a silent silo has spent at least its last figure."""
        heard = self.server.answers(number, weights)
        for answer in heard:
            if answer.absence not in ("no answer", "refused"):
                self.epsilons[answer.silo] = answer.epsilon
        return [replace(answer, epsilon=self.epsilons[answer.silo]) for answer in heard]

    def remember(self, number: int, standings: Iterable[Mapping[str, Any]]) -> None:
        """Remember the state of the silos after a round."""
        for standing in standings:
            name = standing["silo"]
            self.epsilons[name] = standing["epsilon"]
            if standing["absence"] is None:
                self.answered[name].add(number)

    def claims(self) -> Claims:
        """The claims of all silos; for a missing or wrong claim, the recomputed statement."""
        offer = self.server.offer
        return Claims(
            by_party={
                name: self.last.get(name) or recomputed(offer.plan_of(name), len(self.answered[name]))
                for name in offer.parties
            }
        )

    def ask_last(self, weights: Floats) -> None:
        """Ask the silos for their claims."""
        self.last = self.server.last(weights, {name: len(rounds) for name, rounds in self.answered.items()})
        self.epsilons |= {name: said.epsilon for name, said in self.last.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedSession(SiloSession):
    """The work, ready to ask the silos."""

    work: ServedSilos
    heard: Heard = field(repr=False)

    def restored(self, loop: RoundLoop) -> State:
        """See `SiloSession.restored`: silos state their own spending."""
        past = loop.database.rounds()
        done = max((record.round + 1 for record in past), default=0)
        state = loop.start_from(self.algorithm.init(), charged=done)
        for record in past:  # of a round that is asked again, too: it gets the same answers
            self.heard.remember(record.round, record.silos or ())
        return state

    def rehearse(self, state: State) -> None:
        """Nothing: each silo has tried the plan before it accepted."""

    def step(self, state: State) -> tuple[State, Record]:
        """Take a state through its round."""
        after, record = super().step(state)
        self.heard.remember(record.round, record.silos or ())
        return after, record

    def claims(self, state: State) -> Claims:
        """The claim of each silo about its records, for which it is asked."""
        self.heard.ask_last(state.published)
        return self.heard.claims()

    @property
    def _spent(self) -> dict[str, float]:
        return dict(self.heard.epsilons)


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
        found = self._told(self._nodes(names), frame, kind, number=0)
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
        network, longest = self.network, 2**13
        told = forms.RoundForm(plan=network.offer.fingerprint, round=number, clip=clip)
        form = forms.to_json(told)["clip"]

        digest = network.question(weights, form, round=number).digest

        def read(node: Node, _: tuple[int, ...], frame: bytes) -> bytes:
            head = self._own(node, frame, "ready", number)
            if head.get("question") != digest or not is_random(head.get("random")):
                raise DataError("a party that is ready for another question, or has no random number")
            return frame

        everybody = range(len(network.offer.parties))
        found = network.ask(everybody, weights, form, round=number, longest=longest, read=read)
        frames = {node.party: frame for node, _, frame in found.values() if frame is not None}
        self._there = {node.party: node for node, _, _ in found.values()}  # no pause comes between charge and list
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
        answers = self._told({name: self._there[name] for name in names}, self._list, "masked", number=number)
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

    def trainer(self, weights: Floats) -> "SumTrainer":
        """The trainer of a round that starts from these weights: see `incrowd.algorithms.clients.Trainers`."""
        return SumTrainer(self, weights)

    def _nodes(self, names: Sequence[str]) -> dict[str, Node]:
        dealt = self.network.deal(range(len(self.network.offer.parties)))
        return {node.party: node for node in dealt if node.party in names}

    def _own(self, node: Node, frame: bytes, kind: str, number: int) -> Mapping[str, Any]:
        """The head of a frame that this party has signed for this round of the sum, with a body of the right length."""
        length = self.plan.length(kind, node.party)
        place, head, body = unsealed(frame, kind=kind, key=node.key, most=length)
        if place != Place(plan=self.plan.name, round=number, party=node.party) or len(body) != length:
            raise DataError("an answer of another sum, round, party or length than was asked")
        return head

    def _told(self, nodes: Mapping[str, Node], frame: bytes, kind: str, *, number: int) -> dict[str, bytes]:
        """The answers of these parties in time, by name."""
        by_id = {node.id: node for node in nodes.values()}

        def read(number_of: int, reply: bytes) -> bytes:
            node = by_id[number_of]
            if (why := read_refusal(reply, question=frame, key=node.key)) is not None:
                self.network.told(why)
                return b""
            head = self._own(node, reply, kind, number)
            if kind == "hello":
                self.server.check_hello(node.party, reply)
            if kind == "masked" and head.get("list") != self.server.asked(number):
                raise DataError("an answer to another list")
            return reply

        frames, longest = dict.fromkeys(by_id, frame), 4 * self.plan.size + MOST_BESIDE
        found = ask(self.network.transport, frames, longest=longest, read=read, patience=self.network.patience)
        return {by_id[place].party: reply for place, reply in found.items() if reply}


@dataclass(frozen=True, eq=False)
class SumTrainer:
    """A network whose clients mask their parts: see `incrowd.privacy.release.Trainer`."""

    network: SumNetwork
    weights: Floats = field(repr=False)

    def cohort(self, clients: ClientNumbers, *, round: int) -> "SumCohort":
        """The ready clients, which are then listed."""
        offer = self.network.network.offer
        clip = RoundTask.stated(offer, round, offer.plan.config.clip).clip
        names = self.network.ready(round, self.weights, clip)
        listed = [client for client in clients if offer.parties[client] in names]
        return SumCohort(network=self.network, names=names, clients=listed, round=round)


@dataclass(frozen=True, kw_only=True, eq=False)
class SumCohort:
    """Listed clients: see `incrowd.privacy.mechanism.clipped_sum.Elsewhere`."""

    network: SumNetwork
    names: Sequence[str]
    clients: Sequence[int] = field(repr=False)
    round: int

    def collected(self, clip: Clip) -> Part:
        """Their sum, with all noise."""
        total = self.network.total(self.round, self.names)
        return Part(total=total, observed=Observed(contributions=len(self.clients), dropped=0, unclipped=0))
