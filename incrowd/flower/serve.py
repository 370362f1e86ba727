"""A run whose clients are real parties, asked over a SuperLink: who is there, who takes part, and the rounds."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from incrowd import _validate
from incrowd._log import note
from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.federation import Federation
from incrowd.flower.history import ASKED, AskedBefore
from incrowd.flower.invitation import question_key
from incrowd.flower.keys import LOOPBACK
from incrowd.flower.meeting import EnrolledLine, Meeting, Say, enrolments
from incrowd.flower.network import Network, Node, by_party
from incrowd.flower.offer import Offer
from incrowd.flower.offered import offer_of
from incrowd.flower.rounds import Patience
from incrowd.flower.silo_offer import SiloOffer
from incrowd.flower.silo_work import served, silo_offer
from incrowd.flower.superlink import PORT, Serving, SuperLink
from incrowd.learning.engine import EngineTrainer
from incrowd.privacy.release import Trainer
from incrowd.runs.config import CommonSections
from incrowd.runs.data_config import Parties
from incrowd.runs.folder import Summary, database_in
from incrowd.runs.run import Run, UnitWork
from incrowd.runs.silo_work import SiloWork, assemble_silos
from incrowd.runs.work import ClientWork, assemble
from incrowd.types import Tracker

PAUSED = "paused"
"""A file in a run's folder: no round begins as long as it is there."""

_LOOK = 0.5
_log = logging.getLogger(__name__)


def to_stderr(line: str) -> None:
    """Say it in words."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def as_event(line: str) -> None:
    """Say it as an event of the log."""
    note(_log, "server", says=line)


@dataclass(frozen=True, kw_only=True)
class PartyServer:
    """A server of real parties: its keys (`incrowd flower keys`), its port on loopback, and how long it waits.

    Parties on other machines come through nginx: see `incrowd.flower.proxy`.

    Before the first round all parties have accepted the offer, or at least `least` of them; a run that goes on begins
    with whoever is there.

    Guarantee: the run's folder, ledger, statement and result are those of a run on one machine, and so is the released
    model, to the last bit, where all randomness is seeded. Killed at any moment, the same call goes on: see `Run`.

    Edge cases: data that are not with parties, and what cannot be trained elsewhere, are refused before anything
    listens. A party that does not accept, or leaves, counts as zero; one that comes later takes part from then on.
    """

    keys: Path
    port: int = PORT
    least: int | None = None
    patience: Patience = field(default_factory=Patience)
    say: Say = to_stderr

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
        with self.link(data) as link:
            return self.train_over(link, run, watchers)

    def train_over(self, link: EnrolledLine, run: Run, watchers: Sequence[Tracker] = ()) -> Summary:
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
        with self.link(_of_parties(federation.settings)) as link:
            return self.try_over(link, federation)

    def try_over(self, link: EnrolledLine, federation: Federation) -> dict[str, str]:
        """The same over a way to the parties that is there."""
        config, given = federation.settings, federation.given
        data = _of_parties(config)
        if config.of_records:
            offer: Offer | SiloOffer = silo_offer(assemble_silos(config, given=given))
        else:
            offer = offer_of(assemble(config, given=given, schedule=federation.schedule))
        meeting = self._meeting(link, data, offer)
        found = meeting.answers("trial", list(link.nodes), seconds=self.patience.timeout)
        return {name: {None: "no answer", "": "yes"}.get(found.get(name), str(found.get(name))) for name in link.nodes}

    def link(self, data: Parties) -> SuperLink:
        """The way to the enrolled parties."""
        self.say(
            f"listening on {LOOPBACK}:{self.port} alone: parties elsewhere come through nginx (incrowd flower proxy)"
        )
        return SuperLink(self.keys / "serving", enrolments(data), Serving(self.keys, self.port))

    def _meeting(self, link: EnrolledLine, data: Parties, offer: Offer | SiloOffer) -> Meeting:
        return Meeting(
            link=link,
            data=data,
            offer=offer,
            key=question_key(self.keys),
            patience=self.patience,
            say=self.say,
            least=self.least,
        )

    def _nodes(self, meeting: Meeting, folder: Path) -> dict[int, Node]:
        """Who takes part in the next round, which does not begin while the run is paused."""
        self._wait(folder / PAUSED)
        meeting.renew()
        return meeting.nodes

    def _trainer(self, meeting: Meeting, offer: Offer, folder: Path, weights: Floats) -> Trainer:
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


def _offer(work: UnitWork) -> Offer | SiloOffer:
    if isinstance(work, ClientWork):
        return offer_of(work)
    assert isinstance(work, SiloWork)  # noqa: S101 - settings of parties have no others
    return silo_offer(work)


def _has_rounds(run: Run) -> bool:
    with database_in(run.folder) as database:
        return bool(database.rounds())


def _of_parties(config: CommonSections) -> Parties:
    if isinstance(config.data, Parties):
        return config.data
    remedy = 'the data are here: `incrowd train` trains with them; real parties are data.name = "parties"'
    raise ConfigError(field="data.name", value=config.data.name, remedy=remedy)
