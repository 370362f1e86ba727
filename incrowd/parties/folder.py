"""The folder of a party: its keys, its owner's file, its own ledger, and the process that answers for it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from incrowd import _files
from incrowd._private import make_ours, read_ours
from incrowd.data.reading import read_once
from incrowd.data.template import Header, read_header, relative
from incrowd.errors import ConfigError
from incrowd.parties.guard import LEDGER, Identity
from incrowd.parties.keys import INVITATION, Enrolment, Invitation, answer_key, new_party
from incrowd.parties.own_data import OwnExamples
from incrowd.parties.participant import Participant
from incrowd.parties.policy import PARTY_FILE, PartyFile
from incrowd.parties.roster import Roster
from incrowd.privacy.ledger.ledger import Ledger

ROSTER = "roster.json"
"""The roster that the party's owner has compared with the others."""

LEFT = "left"
"""A file that says that a party takes part in nothing any more."""


@dataclass(frozen=True, kw_only=True)
class PartyFolder:
    """The folder of a party: its keys, its owner's file, and the invitation of its server."""

    folder: Path
    file: PartyFile
    invitation: Invitation
    roster: Roster | None = None

    @classmethod
    def read(cls, folder: Path) -> "PartyFolder":
        """Read the files of a party. Edge cases: one that is not whole, or has left for good: `ConfigError`."""
        file = PartyFile.read(folder)
        if (folder / LEFT).exists():
            remedy = "this party has left for good; a new one has keys, and an allowance, of its own"
            raise ConfigError(field="folder", value=str(folder), remedy=remedy)
        path = folder / ROSTER
        roster = Roster.from_json(json.loads(read_ours(path))) if path.exists() else None
        return cls(folder=folder, file=file, invitation=Invitation.read(folder / INVITATION), roster=roster)

    @property
    def identity(self) -> Identity:
        """The party's name and key, and the key of its server."""
        return Identity(name=self.file.name, key=answer_key(self.folder), server=self.invitation.verifier)

    def check(self) -> int:
        """Read the party's own data as they are stated; the number of rows, which is for its owner alone."""
        return OwnExamples(self.file).check()

    def open(self) -> Participant:
        """The participant that answers in the party's name."""
        return Participant(
            self.folder,
            identity=self.identity,
            policy=self.file.policy(),
            unit=self.file.unit,
            learner=OwnExamples(self.file).learn,
            roster=self.roster,
            randomness=self.file.random(),
        )

    @contextmanager
    def attending(self) -> Iterator[Participant]:
        """The participant, as the only process of this party.

        Edge cases: data that are not as stated are a `DataError`, before any question; a ledger that is lost, or was
        begun for another statement of the owner's, is a `LedgerError`; a second process is a `ConfigError`.
        """
        with attending(self.folder), read_once():
            party = self.open()
            try:
                self.check()
                party.check_ledger()
                yield party
            finally:
                party.close()

    def compared(self, roster: Roster) -> None:
        """Take this roster, whose fingerprint the owner has compared with the other owners.

        Edge cases: a roster with another key of this party is a `ConfigError`.
        """
        own = answer_key(self.folder).public_key().public_bytes_raw().hex()
        if own not in {card.key for card in roster.cards if card.name == self.file.name}:
            remedy = (
                f"it has no {self.file.name}, or another key for it: get the enrolments from the parties themselves"
            )
            raise ConfigError(field="roster", value=list(roster.names), remedy=remedy)
        _files.write(self.folder / ROSTER, json.dumps(roster.to_json(), indent=1) + "\n")

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


@contextmanager
def attending(folder: Path) -> Iterator[None]:
    """Be the only process for a party. Edge cases: another one is there: `ConfigError`."""
    make_ours(folder)
    lock = _files.take(folder / "lock", wait=False)
    if lock is None:
        remedy = "another process attends for this party: stop it first"
        raise ConfigError(field="folder", value=str(folder), remedy=remedy)
    try:
        yield
    finally:
        os.close(lock)


def new_folder(folder: Path, name: str, invitation: Path, *, table: Path | None = None) -> Enrolment:
    """Make a party's folder: its keys, its enrolment NAME.pub for the server, and a `party.toml` to fill in.

    Guarantee: reads the header of a table alone. An existing `party.toml` or ledger stays.

    Edge cases: existing keys are a `ConfigError`: an owner who lost some of them removes the rest first.
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
