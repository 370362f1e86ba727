"""A party that takes part: its owner's file, its own ledger, and a process that answers until it is told to stop."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from incrowd import _files
from incrowd.data.reading import read_once
from incrowd.data.template import Header, read_header, relative
from incrowd.errors import BudgetExceeded, ConfigError, SpecificationRefused
from incrowd.flower.given import LEDGER
from incrowd.flower.invitation import INVITATION, Invitation
from incrowd.flower.keys import AUTHORITY, Enrolment, answer_key, new_party
from incrowd.flower.node import Connection, Refusal, attend, attending
from incrowd.flower.offer import Offer
from incrowd.flower.own_examples import OwnExamples
from incrowd.flower.party import Identity, Party
from incrowd.flower.party_file import PARTY_FILE, PartyFile
from incrowd.flower.silo_offer import SiloOffer
from incrowd.flower.silo_party import SiloParty
from incrowd.flower.wire import refusal
from incrowd.privacy.ledger.ledger import Ledger

LEFT = "left"
"""A file that says that a party takes part in nothing any more."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A party in its folder: who it is, what its owner states, and where its server is."""

    folder: Path
    file: PartyFile
    invitation: Invitation

    @classmethod
    def in_folder(cls, folder: Path) -> "Member":
        """The party whose folder this is. Edge cases: one that is not whole, or has left for good: `ConfigError`."""
        file = PartyFile.read(folder)
        if (folder / LEFT).exists():
            remedy = "this party has left for good; a new one has keys, and an allowance, of its own"
            raise ConfigError(field="folder", value=str(folder), remedy=remedy)
        return cls(folder=folder, file=file, invitation=Invitation.read(folder / INVITATION))

    @property
    def identity(self) -> Identity:
        """Who it is, and whom it listens to."""
        return Identity(name=self.file.name, key=answer_key(self.folder), server=self.invitation.verifier)

    def check(self) -> int:
        """Read the party's own data as they are stated; the number of rows, which is for its owner alone."""
        return OwnExamples(self.file).check()

    def open(self) -> Party | SiloParty:
        """What answers in its name: for all of it, or as a silo."""
        own, identity, policy = OwnExamples(self.file), self.identity, self.file.policy()
        randomness = self.file.random()
        if self.file.unit == "record":
            learner = _in_words(own.records)
            return SiloParty(self.folder, identity=identity, policy=policy, learner=learner, randomness=randomness)
        trains = _in_words(own.engine)
        return Party(self.folder, identity=identity, policy=policy, learner=trains, randomness=randomness)

    def join(self, stop: threading.Event, *, idle_poll: float = 1.0) -> None:
        """Answer the server's questions until told to stop; where nothing comes, look every `idle_poll` seconds.

        Guarantee: as of `Party` and `attend`. Data that are not as stated are a `DataError`, before any question; a
        ledger that is lost, or was begun for something else than is stated now, is a `LedgerError`.
        """
        with read_once(), _opened(self) as party:
            self.check()
            party.check_ledger()
            _files.write(self.folder / AUTHORITY, self.invitation.authority)
            connection = Connection(self.invitation.address, self.folder / AUTHORITY, self.folder, idle_poll=idle_poll)
            attend(connection, Handler(party), stop)

    def leave(self) -> None:
        """Take part in nothing any more, and give back what was reserved and will not be spent.

        Edge cases: while a process answers for the party: `ConfigError`.
        """
        with attending(self.folder):
            _files.write(self.folder / LEFT, "")
            book = self.folder / LEDGER
            if book.exists():
                with Ledger.open(book) as ledger:
                    for each in ledger.reservations():
                        ledger.release_reservation(each.label)


@dataclass(frozen=True, eq=False)
class Handler:
    """A party as what answers questions: what it does not do, it says so, in words that tell nothing of its data.

    Guarantee: what else was asked of the party, by this server or others, and what is left of its allowance, is not
    told: only that there is no room.

    Edge cases: whatever else is wrong is for the owner to see to, and the server is told nothing.
    """

    party: Party | SiloParty

    def __call__(self, frame: bytes) -> bytes:
        """What the party says to a question."""
        try:
            return self.party.reply(frame)
        except (SpecificationRefused, BudgetExceeded) as error:
            why = "this party's allowance has no room for it" if isinstance(error, BudgetExceeded) else str(error)
            identity = self.party.identity
            raise Refusal(refusal(why, question=frame, party=identity.name, key=identity.key)) from error


OneOffer = TypeVar("OneOffer", Offer, SiloOffer)
Made = TypeVar("Made")


def _in_words(make: Callable[[OneOffer], Made]) -> Callable[[OneOffer], Made]:
    """What is made for an offer; a misfit of what is stated, in the offer and here, is a refusal."""

    def made(offer: OneOffer) -> Made:
        try:
            return make(offer)
        except ConfigError as error:
            raise SpecificationRefused(str(error)) from error

    return made


@contextmanager
def _opened(member: Member) -> Iterator[Party | SiloParty]:
    party = member.open()
    try:
        yield party
    finally:
        party.close()


def new_member(folder: Path, name: str, invitation: Path, *, table: Path | None = None) -> Enrolment:
    """Make a party's folder: its keys, its enrolment NAME.pub for the server, and a `party.toml` to be filled in.

    Guarantee: of a table the header alone is read. A `party.toml` that is there stays, and so does a ledger.

    Edge cases: keys that are there are refused (`ConfigError`): whoever lost them removes what is left of them.
    """
    invited = Invitation.read(invitation)
    header = None if table is None else read_header(table)
    enrolment = new_party(folder, name)
    _files.write(folder / INVITATION, invited.to_text())
    seen = "?" if table is None else relative(table, to=folder)
    if not (folder / PARTY_FILE).exists():
        _files.write(folder / PARTY_FILE, _template(name, header, seen=seen))
    return enrolment


def _template(name: str, header: Header | None, *, seen: str) -> str:
    columns = [] if header is None else [f'"{column}" = "?"' for column in header.columns]
    delimiter = "," if header is None else header.delimiter
    return _TEMPLATE.format(name=name, file=seen, delimiter=delimiter, columns="\n".join(columns) or '# age = "?"')


_TEMPLATE = """\
# What {name} states: of its data, and of what any server may ask. It stays here.
# Fill in every ? and every number that is missing. State what everybody may know (a codebook, a form, the medical
# literature), never what you see in the rows: servers are told what does not fit.
name = "{name}"
# unit = "record"              # protect each row, not the party as a whole; then state a number of rows, rounded up:
# records = 5000

[data]
file = "{file}"                # seen from this folder; all of its rows are this party's
delimiter = "{delimiter}"
label = "?"                    # the column to learn; delete its line below
classes = ["?"]                # the labels in order, say ["no", "yes"]; without this line they are numbers

# What each column holds: {{range = [0, 120]}}, {{kind = "whole number", range = [0, 20]}}, {{levels = ["f", "m"]}},
# {{dates = ["2015-01-01", "2025-12-31"]}}, "yes/no", "ignore"; with missing = ... where a value may be missing.
[data.columns]
{columns}

# What any server may ask, all together and for all time. A round that would break it is refused.
[allow]
epsilon = 0.0                  # say 3.0
delta = 0.0                    # say 1e-5
# daily_epsilon = 1.0
# fields = ["age"]             # the columns that a model may use; all that are stated
# models = ["linear"]          # of linear, mlp, cnn
# least_noise = 1.0            # a noise multiplier
# evaluations = false          # models are not scored on this party's rows; with true that costs as a round does
"""
