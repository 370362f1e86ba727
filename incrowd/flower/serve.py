"""A run whose clients are real parties, asked over a SuperLink: who is there, who takes part, and the rounds."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import ConfigError, DataError
from incrowd.federation import Federation
from incrowd.flower.attendance import Attendance
from incrowd.flower.front import Limits
from incrowd.flower.history import ASKED, AskedBefore
from incrowd.flower.invitation import question_key
from incrowd.flower.keys import Enrolment, read_enrolment
from incrowd.flower.network import Network, Node, by_party
from incrowd.flower.offer import Offer, OfferKind
from incrowd.flower.offered import offer_of
from incrowd.flower.rounds import Line, Patience, ask
from incrowd.flower.silo_offer import SiloOffer
from incrowd.flower.silo_work import served, silo_offer
from incrowd.flower.superlink import Serving, SuperLink
from incrowd.flower.wire import longest_answer, read_refusal, unsealed
from incrowd.learning.cohort import EngineTrainer
from incrowd.privacy.release import Trainer
from incrowd.runs.build import enrolled
from incrowd.runs.client_work import ClientWork, assemble
from incrowd.runs.config import CommonSections
from incrowd.runs.data_config import Parties
from incrowd.runs.folder import Summary, database_in
from incrowd.runs.run import Run
from incrowd.runs.silo_build import assemble_silos
from incrowd.runs.silo_config import SiloConfig
from incrowd.runs.silo_work import SiloWork
from incrowd.runs.trackers import Tracker

PAUSED = "paused"
"""A file in a run's folder: no round begins as long as it is there."""

_LONGEST_REPLY = 2**15
_LOOK = 0.5
_AGAIN = 60.0
_GATHERING = 30.0
_MOST_REASONS = 100  # parties put them as they like

Say = Callable[[str], None]


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@dataclass(frozen=True, kw_only=True)
class PartyServer:
    """A server of real parties: its keys (`incrowd flower keys`), where it listens, and how long it waits.

    Before the first round all parties have accepted the offer, or at least `least` of them; a run that goes on begins
    with whoever is there.

    Guarantee: the run's folder, ledger, statement and result are those of a run on one machine, and so is the released
    model, to the last bit, where all randomness is seeded. Killed at any moment, the same call goes on: see `Run`.

    Edge cases: data that are not with parties, and what cannot be trained elsewhere, are refused before anything
    listens. A party that does not accept, or leaves, counts as zero; one that comes later takes part from then on.
    """

    keys: Path
    host: str = "0.0.0.0"  # noqa: S104  # the front is what the network is to reach
    port: int = 9092
    least: int | None = None
    patience: Patience = field(default_factory=Patience)
    limits: Limits = field(default_factory=Limits)
    say: Say = _to_stderr

    def __post_init__(self) -> None:
        if self.least is not None:
            _validate.count(least=self.least)

    def check(self, federation: Federation) -> None:
        """Refuse a federation whose data are not with parties, before anything is made for it (`ConfigError`)."""
        _of_parties(federation.settings)

    def train(self, run: Run, watchers: Sequence[Tracker] = ()) -> Summary:
        """Train a run to its end, from wherever it stands, as `Run.train`."""
        work, data = run.work, _of_parties(run.config)
        if isinstance(work, ClientWork):  # what cannot be trained elsewhere is refused before anything listens
            run.trained_by(partial(EngineTrainer, work.engine, randomness=work.randomness))
        with self.link(data, longest=longest_answer(_offer(work).size)) as link:
            return self.train_over(link, run, watchers)

    def train_over(self, link: "EnrolledLine", run: Run, watchers: Sequence[Tracker] = ()) -> Summary:
        """The same over a way to the parties that is there."""
        offer = _offer(run.work)
        meeting = self._meeting(link, _of_parties(run.config), offer)
        meeting.gather(begun=_has_rounds(run))
        if isinstance(offer, Offer):
            return run.trained_by(partial(self._trainer, meeting, offer, run.folder)).train(watchers)
        return served(
            run,
            line=link,
            nodes=partial(self._nodes, meeting, run.folder),
            key=meeting.key,
            patience=self.patience,
            attendance=meeting.attendance,
        ).train(watchers)

    def try_out(self, federation: Federation) -> dict[str, str]:
        """Ask every party whether it would take part: "yes", why not, or "no answer". Nothing is reserved or spent."""
        with self.link(_of_parties(federation.settings), longest=_LONGEST_REPLY) as link:
            return self.try_over(link, federation)

    def try_over(self, link: "EnrolledLine", federation: Federation) -> dict[str, str]:
        """The same over a way to the parties that is there."""
        config, given = federation.settings, federation.given
        data = _of_parties(config)
        if isinstance(config, SiloConfig):
            offer: Offer | SiloOffer = silo_offer(SiloWork(federation=assemble_silos(config, given=given)))
        else:
            offer = offer_of(assemble(config, given=given, schedule=federation.schedule))
        meeting = self._meeting(link, data, offer)
        found = meeting.answers("trial", list(link.nodes), seconds=self.patience.timeout)
        return {name: {None: "no answer", "": "yes"}.get(found.get(name), str(found.get(name))) for name in link.nodes}

    def link(self, data: Parties, *, longest: int) -> SuperLink:
        """The way to the enrolled parties, whose answers have at most so many bytes."""
        serving = Serving(self.keys, self.host, self.port, limits=self.limits.fitting(longest))
        return SuperLink(self.keys / "serving", enrolments(data), serving)

    def _meeting(self, link: "EnrolledLine", data: Parties, offer: Offer | SiloOffer) -> "Meeting":
        return Meeting(server=self, link=link, data=data, offer=offer, key=question_key(self.keys))

    def _nodes(self, meeting: "Meeting", folder: Path) -> dict[int, Node]:
        """Who takes part in the next round, which does not begin while the run is paused."""
        self._wait(folder / PAUSED)
        meeting.renew()
        return meeting.nodes

    def _trainer(self, meeting: "Meeting", offer: Offer, folder: Path, weights: Floats) -> Trainer:
        """Who trains the next round."""
        network = Network(
            line=meeting.link,
            offer=offer,
            deal=by_party(self._nodes(meeting, folder)),
            key=meeting.key,
            patience=self.patience,
            history=AskedBefore(folder / ASKED, plan=offer.fingerprint),
            attendance=meeting.attendance,
            told=meeting.told,
        )
        return network.trainer(weights)

    def _wait(self, paused: Path) -> None:
        if paused.exists():
            self.say(f"paused, until {paused} is removed")
        while paused.exists():
            self.patience.clock.wait(_LOOK)


def _offer(work: ClientWork | SiloWork) -> Offer | SiloOffer:
    return silo_offer(work) if isinstance(work, SiloWork) else offer_of(work)


def _has_rounds(run: Run) -> bool:
    with database_in(run.folder) as database:
        return bool(database.rounds())


def _of_parties(config: CommonSections) -> Parties:
    if isinstance(config.data, Parties):
        return config.data
    remedy = 'the data are here: `incrowd train` trains with them; real parties are data.name = "parties"'
    raise ConfigError(field="data.name", value=config.data.name, remedy=remedy)


def enrolments(data: Parties) -> list[Enrolment]:
    """The parties whose enrolments lie in the folder, but for those who have gone.

    Edge cases: a file that bears another party's name is refused.
    """
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


class EnrolledLine(Line, Protocol):
    """A way to parties, who have names and come and go."""

    @property
    def nodes(self) -> dict[str, int]:
        """The number of each enrolled party."""
        ...

    def present(self) -> frozenset[str]:
        """The parties that are connected."""
        ...

    def remove(self, name: str) -> None:
        """Let a party take part no longer."""
        ...


@dataclass(kw_only=True, eq=False)
class Meeting:
    """Who is enrolled, who has accepted an offer, and who has not and why."""

    server: PartyServer
    link: EnrolledLine
    data: Parties
    offer: Offer | SiloOffer
    key: Ed25519PrivateKey = field(repr=False)
    accepted: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    attendance: Attendance = field(default_factory=Attendance)
    _asked: dict[str, float] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._keys = {each.name: each.verifier() for each in enrolments(self.data)}

    @property
    def nodes(self) -> dict[int, Node]:
        """Those who take part, by their numbers as clients."""
        places = {name: place for place, name in enumerate(self.offer.parties)}
        there = self.link.nodes
        return {
            places[name]: Node(id=there[name], party=name, key=self._keys[name])
            for name in sorted(self.accepted)
            if name in there
        }

    def told(self, why: str) -> None:
        """A party refuses a round: say so, once for each reason, and not which party, for who was drawn is secret."""
        if why not in self._told and len(self._told) < _MOST_REASONS:
            self._told.add(why)
            self.server.say(f"a party that was asked refuses: {why}")

    def gather(self, *, begun: bool) -> None:
        """Offer until enough have accepted; a run that has begun waits half a minute for all, and goes on with some.

        Edge cases: not enough do in time: `DataError`, which says who is missing and who refuses, and why.
        """
        clock, patience = self.server.patience.clock, self.server.patience
        begin, needed = clock.now(), 1 if begun else self.server.least or len(self.offer.parties)
        told = ""
        self._let_go()
        while True:
            silent = [name for name in self.link.nodes if name not in self.accepted]
            self._offer(silent, seconds=patience.again)
            if (line := self._standing()) != told:
                self.server.say(line)
                told = line
            elapsed, everyone = clock.now() - begin, len(self.link.nodes)
            enough = len(self.accepted) >= needed
            if enough and (not begun or elapsed >= _GATHERING or len(self.accepted) + len(self.refused) == everyone):
                return
            if elapsed >= patience.timeout or everyone - len(self.refused) < needed:
                raise DataError(f"{line}; {needed} are needed: see to them, or begin with fewer (--least)")

    def renew(self) -> None:
        """Before a round: let those go who are not enrolled any more, and offer to those who have come."""
        self._let_go()
        now = self.server.patience.clock.now()
        waiting = [
            name for name in self.link.present() - self.accepted if now - self._asked.get(name, -_AGAIN) >= _AGAIN
        ]
        if waiting:
            self._offer(waiting, seconds=self.server.patience.again)
            self.server.say(self._standing())

    def _let_go(self) -> None:
        """Those who are not enrolled any more: their keys open nothing."""
        gone = [name for name in self.link.nodes if not (Path(self.data.enrolled) / f"{name}.pub").exists()]
        for name in gone:
            self.link.remove(name)
            self.server.say(f"{name} is enrolled no longer")

    def answers(self, kind: OfferKind, names: Sequence[str], *, seconds: float) -> dict[str, str]:
        """What parties say to the offer, as far as they answer in time: nothing, or why they do not accept."""
        named = {self.link.nodes[name]: name for name in names}
        frame = self.offer.to_bytes(self.key, kind=kind)

        def read(node: int, reply: bytes) -> str:
            key = self._keys[named[node]]
            why = read_refusal(reply, question=frame, key=key)
            if why is not None:
                return why or "it does not say why"
            place, _, _ = unsealed(reply, kind="acceptance", key=key, most=0)
            if (place.plan, place.party) != (self.offer.fingerprint, named[node]):
                raise DataError("an acceptance of another offer, or by another party")
            return ""

        patience = self.server.patience
        brief = Patience(timeout=seconds, again=min(patience.again, seconds), poll=patience.poll, clock=patience.clock)
        found = ask(self.link, dict.fromkeys(named, frame), longest=_LONGEST_REPLY, read=read, patience=brief)
        return {named[node]: why for node, why in found.items()}

    def _offer(self, names: Sequence[str], *, seconds: float) -> None:
        for name, why in self.answers("offer", names, seconds=seconds).items():
            self._asked[name] = self.server.patience.clock.now()
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
