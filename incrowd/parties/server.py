"""A run whose clients or silos are real parties, and the evaluation of its model: enrolment, acceptance, rounds."""

import hashlib
import logging
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from incrowd import _validate
from incrowd._log import note
from incrowd.errors import ConfigError, DataError
from incrowd.learning.engine import EngineTrainer
from incrowd.parties.asking import Patience, Transport
from incrowd.parties.frames import ASKED, AskedBefore
from incrowd.parties.keys import Enrolment, question_key, read_enrolment
from incrowd.parties.network import Network, Node, offer_of
from incrowd.parties.offer import Offer, OfferKind, RoundTask
from incrowd.parties.served import served
from incrowd.privacy.plan.plan import Plan
from incrowd.runs.config import CommonSections
from incrowd.runs.data_config import Parties
from incrowd.runs.evaluation import Evaluation, EvaluationConfig
from incrowd.runs.folder import Summary, database_in
from incrowd.runs.run import Run
from incrowd.runs.sources import enrolled
from incrowd.runs.work import ClientWork, Work, work_of
from incrowd.types import Tracker

if TYPE_CHECKING:
    from incrowd.federation import Federation

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

    def present(self) -> frozenset[str]:
        """The parties that are connected."""

    def remove(self, name: str) -> None:
        """Remove a party."""


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
        meeting = Meeting(self, link, run.work, folder=run.folder)
        meeting.gather(begun=_has_rounds(run))
        return served(run, meeting.network).train(watchers)

    def try_over(self, link: PartyTransport, federation: "Federation") -> dict[str, str]:
        """Ask every party whether it would take part, at no cost: "yes", the reason against, or "no answer"."""
        of_parties(federation.settings)
        work = work_of(federation.settings, federation.given, schedule=federation.schedule)
        found = Meeting(self, link, work).answers(list(link.nodes), kind="trial", seconds=self.patience.timeout)
        return {name: found.get(name, "no answer") or "yes" for name in link.nodes}


class Meeting:
    """The enrolled parties at a transport, and their answers to an offer; `network` has those who accepted it.

    With the `folder` of a run each question is on disk before it is asked.
    """

    def __init__(self, server: PartyServer, link: PartyTransport, work: Work, *, folder: Path | None = None) -> None:
        offer = offer_of(work)
        self.server, self.link, self.data = server, link, of_parties(work.config)
        self.accepted, self.refused = set[str](), dict[str, str]()
        self._asked, self._told = dict[str, float](), set[str]()
        self._keys = {each.name: each.verifier() for each in enrolments(self.data)}
        self.network = Network(
            transport=link,
            offer=offer,
            nodes=self.nodes,
            key=question_key(server.keys),
            patience=server.patience,
            history=AskedBefore(None if folder is None else folder / ASKED, plan=offer.fingerprint),
            told=self.tell,
        )

    def named(self, names: Collection[str]) -> list[Node]:
        """The nodes of these parties, unless they are enrolled no more."""
        there = self.link.nodes
        return [
            Node(id=there[name], party=name, key=self._keys[name])
            for name in sorted(names)
            if name in there and name in self._keys
        ]

    def nodes(self) -> list[Node]:
        """The parties of the next question; those who have come since are offered the plan before."""
        self._let_go()
        now = self.server.patience.clock.monotonic()
        waiting = [
            name for name in self.link.present() - self.accepted if now - self._asked.get(name, -_AGAIN) >= _AGAIN
        ]
        if waiting:
            self._offer(waiting)
            self.server.say(self._standing())
        return self.named(self.accepted)

    def tell(self, why: str) -> None:
        """Print each reason of a refused round once, without the party, because the cohort is secret."""
        if why not in self._told and len(self._told) < _MOST_REASONS:
            self._told.add(why)
            self.server.say(f"a party that was asked refuses: {why}")

    def gather(self, *, begun: bool) -> None:
        """Offer until enough have accepted; a resumed run waits half a minute for all, and goes on with some."""
        patience, parties = self.server.patience, self.network.offer.parties
        begin, needed = patience.clock.monotonic(), 1 if begun else self.server.least or len(parties)
        told = ""
        self._let_go()
        while True:
            self._offer([name for name in self.link.nodes if name not in self.accepted])
            if (line := self._standing()) != told:
                self.server.say(line)
                told = line
            elapsed, everyone = patience.clock.monotonic() - begin, len(self.link.nodes)
            enough = len(self.accepted) >= needed
            if enough and (not begun or elapsed >= _GATHERING or len(self.accepted) + len(self.refused) == everyone):
                return
            if elapsed >= patience.timeout or everyone - len(self.refused) < needed:
                raise DataError(f"{line}; {needed} are needed: see to them, or begin with fewer (--least)")

    def answers(self, names: Sequence[str], *, kind: OfferKind = "offer", seconds: float) -> dict[str, str]:
        """See `Network.offered`."""
        brief = replace(self.server.patience, timeout=seconds, again=min(self.server.patience.again, seconds))
        return self.network.offered(self.named(names), kind=kind, patience=brief)

    def _let_go(self) -> None:
        """Drop the connections of parties that are enrolled no more."""
        gone = [name for name in self.link.nodes if not (Path(self.data.enrolled) / f"{name}.pub").exists()]
        for name in gone:
            self.link.remove(name)
            self.server.say(f"{name} is enrolled no longer")

    def _offer(self, names: Sequence[str]) -> None:
        for name, why in self.answers(names, seconds=self.server.patience.again).items():
            self._asked[name] = self.server.patience.clock.monotonic()
            if why:
                self.refused[name] = why
            else:
                self.accepted.add(name)
                self.refused.pop(name, None)

    def _standing(self) -> str:
        parties = self.network.offer.parties
        missing = [name for name in parties if name not in self.accepted and name not in self.refused]
        words = [f"{len(self.accepted)} of {len(parties)} parties take part"]
        words += [f"{name} does not: {why}" for name, why in sorted(self.refused.items())]
        words += [f"not there: {', '.join(missing)}"] if missing else []
        return "; ".join(words)


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
        nodes = network.nodes()
        found = asked.offered(nodes, patience=network.patience)
        there = [node for node in nodes if found.get(node.party) == ""]
        if len(there) < least:
            raise DataError(
                f"{len(there)} of {len(offer.parties)} parties have accepted the evaluation, and {least} are "
                "needed: see to them, or evaluate with fewer (--least); nothing was asked or charged"
            )
        return evaluation.release(replace(asked, nodes=lambda: there).trainer(evaluation.weights))


def evaluate_over(server: PartyServer, link: PartyTransport, run: Run, wanted: EvaluationConfig) -> Summary:
    """The same for a server's own run, when all its parties are connected, or at least `server.least` of them."""
    meeting, patience = Meeting(server, link, check_trained(run)), server.patience
    begin, least = patience.clock.monotonic(), server.least or len(meeting.network.offer.parties)
    while len(link.present()) < least and patience.clock.monotonic() - begin < patience.timeout:
        patience.clock.sleep(patience.poll)
    network = replace(meeting.network, nodes=lambda: meeting.named(link.present()))
    return evaluate(run, wanted, network, least=least)


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
