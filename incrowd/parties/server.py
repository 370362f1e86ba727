"""A run whose clients or silos are real parties, and the evaluation of its model: enrolment, acceptance, rounds."""

import hashlib
import logging
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from incrowd import _validate
from incrowd._log import note
from incrowd.errors import ConfigError, DataError
from incrowd.learning.engine import EngineTrainer
from incrowd.parties.asking import Attendance, Patience, Transport, ask
from incrowd.parties.frames import ASKED, AskedBefore, read_acceptance
from incrowd.parties.keys import Enrolment, question_key, read_enrolment
from incrowd.parties.network import Deal, Dealt, Network, Node, by_party, offer_of
from incrowd.parties.offer import Offer, OfferKind, RoundTask
from incrowd.parties.served import served
from incrowd.privacy.plan.plan import Plan
from incrowd.runs.config import CommonSections
from incrowd.runs.data_config import Parties
from incrowd.runs.evaluation import Evaluation, EvaluationConfig
from incrowd.runs.folder import Summary, database_in
from incrowd.runs.run import Run
from incrowd.runs.sources import enrolled
from incrowd.runs.work import ClientWork, RecordWork, SiloWork, assemble, assemble_records, assemble_silos
from incrowd.types import Tracker

if TYPE_CHECKING:
    from incrowd.federation import Federation

LONGEST_REPLY = 2**15
"""The most bytes of a party's reply to an offer."""

_AGAIN = 60.0

_GATHERING = 30.0

_MOST_REASONS = 100  # parties put them as they like

Say = Callable[[str], None]


def enrolments(data: Parties) -> list[Enrolment]:
    """The enrolments in the folder, without removed parties."""
    found = []
    for name in enrolled(data):
        path = Path(data.enrolled) / f"{name}.pub"
        if not path.exists():
            continue
        enrolment = read_enrolment(path)
        if enrolment.name != name:
            raise ConfigError(field="data.enrolled", value=str(path), remedy=f"it is the enrolment of {enrolment.name}")
        found.append(enrolment)
    return found


class PartyTransport(Transport, Protocol):
    """A transport to named parties, which come and go."""

    @property
    def nodes(self) -> dict[str, int]:
        """The number of each enrolled party."""
        ...

    def present(self) -> frozenset[str]:
        """The parties that are connected."""
        ...

    def remove(self, name: str) -> None:
        """Remove a party."""
        ...


@dataclass(kw_only=True, eq=False)
class Meeting:
    """The enrolled parties, and their answers to an offer."""

    link: PartyTransport
    data: Parties
    offer: Offer
    key: Ed25519PrivateKey = field(repr=False)
    patience: Patience
    say: Say
    least: int | None = None
    accepted: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    attendance: Attendance = field(default_factory=Attendance)
    _asked: dict[str, float] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._keys = {each.name: each.verifier() for each in enrolments(self.data)}

    @property
    def nodes(self) -> dict[int, Node]:
        """The nodes that take part, by client number."""
        places = {name: place for place, name in enumerate(self.offer.parties)}
        there = self.link.nodes
        return {
            places[name]: Node(id=there[name], party=name, key=self._keys[name])
            for name in sorted(self.accepted)
            if name in there
        }

    def told(self, why: str) -> None:
        """Print each reason of a refused round once, without the party, because the cohort is secret."""
        if why not in self._told and len(self._told) < _MOST_REASONS:
            self._told.add(why)
            self.say(f"a party that was asked refuses: {why}")

    def gather(self, *, begun: bool) -> None:
        """Offer until enough have accepted; a resumed run waits half a minute for all, and goes on with some."""
        clock, patience = self.patience.clock, self.patience
        begin, needed = clock.now(), 1 if begun else self.least or len(self.offer.parties)
        told = ""
        self._let_go()
        while True:
            silent = [name for name in self.link.nodes if name not in self.accepted]
            self._offer(silent, seconds=patience.again)
            if (line := self._standing()) != told:
                self.say(line)
                told = line
            elapsed, everyone = clock.now() - begin, len(self.link.nodes)
            enough = len(self.accepted) >= needed
            if enough and (not begun or elapsed >= _GATHERING or len(self.accepted) + len(self.refused) == everyone):
                return
            if elapsed >= patience.timeout or everyone - len(self.refused) < needed:
                raise DataError(f"{line}; {needed} are needed: see to them, or begin with fewer (--least)")

    def renew(self) -> None:
        """Before a round: drop removed parties, and offer to new ones."""
        self._let_go()
        now = self.patience.clock.now()
        waiting = [
            name for name in self.link.present() - self.accepted if now - self._asked.get(name, -_AGAIN) >= _AGAIN
        ]
        if waiting:
            self._offer(waiting, seconds=self.patience.again)
            self.say(self._standing())

    def _let_go(self) -> None:
        """Drop the connections of parties that are enrolled no more."""
        gone = [name for name in self.link.nodes if not (Path(self.data.enrolled) / f"{name}.pub").exists()]
        for name in gone:
            self.link.remove(name)
            self.say(f"{name} is enrolled no longer")

    def answers(self, kind: OfferKind, names: Sequence[str], *, seconds: float) -> dict[str, str]:
        """The parties' answers to the offer in time: empty, or the reason of a refusal."""
        there, patience = self.link.nodes, self.patience
        nodes = [Node(id=there[name], party=name, key=self._keys[name]) for name in names]
        brief = Patience(timeout=seconds, again=min(patience.again, seconds), poll=patience.poll, clock=patience.clock)
        frame = self.offer.to_bytes(self.key, kind=kind)
        found = _acceptances(self.link, self.offer, nodes, frame, patience=brief)
        return {node.party: why for node, why in found.items()}

    def _offer(self, names: Sequence[str], *, seconds: float) -> None:
        for name, why in self.answers("offer", names, seconds=seconds).items():
            self._asked[name] = self.patience.clock.now()
            if why:
                self.refused[name] = why
            else:
                self.accepted.add(name)
                self.refused.pop(name, None)

    def _standing(self) -> str:
        missing = [name for name in self.offer.parties if name not in self.accepted and name not in self.refused]
        words = [f"{len(self.accepted)} of {len(self.offer.parties)} parties take part"]
        words += [f"{name} does not: {why}" for name, why in sorted(self.refused.items())]
        words += [f"not there: {', '.join(missing)}"] if missing else []
        return "; ".join(words)


PAUSED = "paused"
"""A file in a run's folder: no round begins while it exists."""

_LOOK = 0.5

_log = logging.getLogger(__name__)


def to_stderr(line: str) -> None:
    """Print a line."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def as_event(line: str) -> None:
    """Log a line as an event."""
    note(_log, "server", says=line)


@dataclass(frozen=True, kw_only=True)
class PartyServer:
    """A server of real parties: its keys (`incrowd flower keys`), and how long it waits.

    It begins the first round when all parties, or at least `least`, have accepted the offer; a resumed run begins at
    once.

    Guarantee: with all randomness seeded, folder, ledger, statement, result and released model are those of a run on
    one machine, to the last bit. Killed at any moment, the same call goes on: see `Run`.

    Edge cases: it refuses data that are not with parties, or an untrainable plan, before it listens. A party that does
    not accept, or leaves, counts as zero; a later one takes part from then on.
    """

    keys: Path
    least: int | None = None
    patience: Patience = field(default_factory=Patience)
    say: Say = to_stderr

    def __post_init__(self) -> None:
        if self.least is not None:
            _validate.count(least=self.least)

    def check(self, federation: "Federation") -> None:
        """Refuse a federation whose data are not with parties, before it writes a file (`ConfigError`)."""
        of_parties(federation.settings)

    def check_run(self, run: Run) -> None:
        """Refuse a run that parties cannot train, before the server listens."""
        of_parties(run.config)
        if isinstance(work := run.work, ClientWork):
            run.asking(trainers=partial(EngineTrainer, work.engine, randomness=work.randomness))

    def train_over(self, link: PartyTransport, run: Run, watchers: Sequence[Tracker] = ()) -> Summary:
        """Train a run to its end, as `Run.train`, over a transport to the parties."""
        assert isinstance(run.work, ClientWork | RecordWork | SiloWork)  # noqa: S101 - there are no others
        offer = offer_of(run.work)
        meeting = self._meeting(link, of_parties(run.config), offer)
        meeting.gather(begun=_has_rounds(run))

        def deal(clients: Sequence[int]) -> Dealt:
            """The parties of the next round, which does not begin while the run is paused."""
            self._wait(run.folder / PAUSED)
            meeting.renew()
            return by_party(meeting.nodes)(clients)

        network = Network(
            transport=link,
            offer=offer,
            deal=deal,
            key=meeting.key,
            patience=self.patience,
            history=AskedBefore(run.folder / ASKED, plan=offer.fingerprint),
            attendance=meeting.attendance,
            told=meeting.told,
        )
        return served(run, network).train(watchers)

    def try_over(self, link: PartyTransport, federation: "Federation") -> dict[str, str]:
        """Ask every party whether it would take part, at no cost: "yes", the reason against, or "no answer"."""
        config, given = federation.settings, federation.given
        if not config.of_records:
            offer = offer_of(assemble(config, given=given, schedule=federation.schedule))
        elif config.privacy.noise_by == "party":
            offer = offer_of(assemble_silos(config, given=given))
        else:
            offer = offer_of(assemble_records(config, given=given))
        meeting = self._meeting(link, of_parties(config), offer)
        found = meeting.answers("trial", list(link.nodes), seconds=self.patience.timeout)
        return {name: {None: "no answer", "": "yes"}.get(found.get(name), str(found.get(name))) for name in link.nodes}

    def _meeting(self, link: PartyTransport, data: Parties, offer: Offer) -> Meeting:
        return Meeting(
            link=link,
            data=data,
            offer=offer,
            key=question_key(self.keys),
            patience=self.patience,
            say=self.say,
            least=self.least,
        )

    def _wait(self, paused: Path) -> None:
        if paused.exists():
            self.say(f"paused, until {paused} is removed")
        while paused.exists():
            self.patience.clock.wait(_LOOK)


def _has_rounds(run: Run) -> bool:
    with database_in(run.folder) as database:
        return bool(database.rounds())


def of_parties(config: CommonSections) -> Parties:
    """The parties of a run."""
    if isinstance(config.data, Parties):
        return config.data
    remedy = 'the data are here: `incrowd train` trains with them; real parties are data.name = "parties"'
    raise ConfigError(field="data.name", value=config.data.name, remedy=remedy)


def evaluate(run: Run, wanted: EvaluationConfig, network: Network, *, least: int = 1) -> Summary:
    """Measure a finished run's model on the examples of the parties that trained it, over the same network.

    Each party charges the evaluation to its own ledger as one round, the server to its own. A party that refuses, or
    does not accept in time, counts as one half.

    Guarantee: with all examples on one machine, `Run.evaluate` gives the same figures, to the last bit under the same
    seeds. An interrupted evaluation goes on with the same offer; parties pay once until the server has charged it.
    """
    with Evaluation.begin(run.folder, run.work, wanted) as evaluation:
        offer = offer_to_score(evaluation, network.offer)
        asked = replace(network, offer=offer, history=AskedBefore(plan=offer.fingerprint))  # of one round: none before
        nodes = accepted(asked)
        if len(nodes) < least:
            raise DataError(
                f"{len(nodes)} of {len(asked.offer.parties)} parties have accepted the evaluation, and {least} are "
                "needed: see to them, or evaluate with fewer (--least); nothing was asked or charged"
            )
        return evaluation.release(replace(asked, deal=_among(nodes, asked.deal)).trainer(evaluation.weights))


def evaluate_over(server: PartyServer, link: PartyTransport, run: Run, wanted: EvaluationConfig) -> Summary:
    """The same for a server's own run, when all its parties are connected, or at least `server.least` of them."""
    offer, there = offer_of(check_trained(run)), link.nodes
    least = server.least or len(offer.parties)
    _wait(link, server.patience, least=least)
    keys = {each.name: each.verifier() for each in enrolments(of_parties(run.config))}
    nodes = {
        place: Node(id=there[name], party=name, key=keys[name])
        for place, name in enumerate(offer.parties)
        if name in there and name in keys and name in link.present()
    }
    network = Network(
        transport=link, offer=offer, deal=by_party(nodes), key=question_key(server.keys), patience=server.patience
    )
    return evaluate(run, wanted, network, least=least)


def _wait(link: PartyTransport, patience: Patience, *, least: int) -> None:
    """Wait until so many parties are there, or have had their time."""
    begin = patience.clock.now()
    while len(link.present()) < least and patience.clock.now() - begin < patience.timeout:
        patience.clock.wait(patience.poll)


def check_trained(run: Run) -> ClientWork:
    """The work of a run whose parties can be asked to score its model."""
    of_parties(run.config)
    if isinstance(run.work, ClientWork):
        return run.work
    remedy = (
        "silos protect records, and have no evaluation: measure on a public test set, or let each silo score "
        "the released model on its own records, for itself"
    )
    raise ConfigError(field="privacy.unit", value="record", remedy=remedy)


def _among(nodes: Collection[Node], deal: Deal) -> Deal:
    """A deal to some nodes alone."""
    return lambda clients: {node: its for node, its in deal(clients).items() if node in nodes}


def offer_to_score(evaluation: Evaluation, trained: Offer) -> Offer:
    """The offer to score a trained model on the same columns.

    Two evaluations of a run are two offers, which parties charge one by one.
    """
    plan, scoring = evaluation.private.plan, evaluation.scoring
    assert isinstance(plan, Plan)  # noqa: S101 - an evaluation plans nothing else
    measured = {
        **scoring.to_json(),
        "weights": evaluation.weights.size,
        "of": hashlib.sha256(evaluation.weights.astype("<f4").tobytes()).hexdigest(),
        "name": evaluation.label,
    }
    # A published model has no class shares after its weights.
    settings = {**trained.settings, "evaluate": measured}
    offer = Offer.of_plan(plan, size=scoring.size, columns=trained.columns, settings=settings, parties=trained.parties)
    RoundTask.stated(offer, 0, plan.config.clip)
    return offer


def accepted(network: Network) -> set[Node]:
    """Offer an evaluation to all parties; return the nodes that accept in time."""
    offer = network.offer
    nodes = list(network.deal(range(offer.plan.round(0).sampler.clients)))
    if any(node.block for node in nodes):
        remedy = "their examples are on this machine: evaluate here (incrowd evaluate)"
        raise ConfigError(field="network", value="blocks of simulated clients", remedy=remedy)
    found = _acceptances(network.transport, offer, nodes, offer.to_bytes(network.key), patience=network.patience)
    return {node for node, why in found.items() if not why}


def _acceptances(
    link: Transport, offer: Offer, nodes: Sequence[Node], frame: bytes, *, patience: Patience
) -> dict[Node, str]:
    """The answers of these nodes to an offer in time: empty, or the reason of a refusal."""
    named = {node.id: node for node in nodes}

    def read(number: int, reply: bytes) -> str:
        party, key = named[number].party, named[number].key
        return read_acceptance(reply, question=frame, plan=offer.fingerprint, party=party, key=key)

    found = ask(link, dict.fromkeys(named, frame), longest=LONGEST_REPLY, read=read, patience=patience)
    return {named[number]: why for number, why in found.items()}
