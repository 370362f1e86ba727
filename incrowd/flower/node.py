"""A party's process: it stays, and answers questions. It never loads uploaded code.

Flower's own SuperNode runs the code of each run, which could pass over a party's decisions.
"""

import logging
import sqlite3
import struct
import threading
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from incrowd import _files
from incrowd._log import note
from incrowd._private import read_ours
from incrowd._validate import positive
from incrowd.errors import ConfigError, IncrowdError
from incrowd.flower.fleet import BEAT, Asked, LineBroken, PartyLine
from incrowd.parties.folder import PartyFolder, attending

_LONGEST_WAIT = 5.0
_FAILURES = (
    *(IncrowdError, ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError, OSError),
    *(RuntimeError, TypeError, ValueError, sqlite3.Error, struct.error, zlib.error),
)
"""The errors of a handler on one question, after which it answers others."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Connection:
    """A party's connection to its server."""

    address: str
    """HOST:PORT of the server, or of the proxy before it."""
    authority: str
    """The certificate, in PEM form, of the only authority that the party trusts."""
    folder: Path
    """The party's own folder, see `new_party`."""
    longest_question: int = 1024 * 2**20
    """Bytes; a longer question is removed and not answered."""
    poll: float = 0.1
    """Seconds between two looks for a question, once one has come."""
    idle_poll: float = 1.0
    """Seconds between two looks while idle: each look takes the server some ten milliseconds."""

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise ConfigError(field="address", value=self.address, remedy="give HOST:PORT, such as fl.example.org:9092")
        positive(poll=self.poll, idle_poll=self.idle_poll)


def join(member: PartyFolder, stop: threading.Event, *, idle_poll: float = 1.0) -> None:
    """Answer the questions of a party's server until `stop` is set; when idle, look every `idle_poll` seconds.

    Guarantee: as of `PartyFolder.attending` and `attend`.
    """
    invitation = member.invitation
    connection = Connection(invitation.address, invitation.authority, member.folder, idle_poll=idle_poll)
    with member.attending() as party:
        _attend(connection, party.reply, stop)


def attend(connection: Connection, handler: Callable[[bytes], bytes], stop: threading.Event) -> None:
    """Answer a server's questions with `handler`, until `stop` is set.

    Guarantee: it goes on after a broken line, a restarted server or an unreadable question. It refuses a second process
    with the same folder (`ConfigError`).

    Edge cases: the log names an error of the handler by its type alone, because its words may reveal data; nothing is
    sent, and the server asks again. The same question may come again: a handler gives the same bytes
    (`Participant.reply`).
    """
    with attending(connection.folder):
        _attend(connection, handler, stop)


def _attend(connection: Connection, handler: Callable[[bytes], bytes], stop: threading.Event) -> None:
    line = PartyLine(connection.address, connection.authority, connection.folder, connection.longest_question)
    wait = connection.poll
    with closing(line):
        while not stop.is_set():
            try:
                with _Life(line, connection.folder / "node.number") as life:
                    note(_log, "connected")
                    wait = look = connection.poll
                    while not stop.is_set() and life.known:
                        question = line.pull()
                        if question is None:
                            stop.wait(look)
                            look = min(1.1 * look, max(connection.poll, connection.idle_poll))
                        else:
                            _answer(line, question, handler)
                            look = connection.poll
            except LineBroken as broken:
                note(_log, "not connected", level=logging.WARNING, why=str(broken))
            wait = min(2 * wait, _LONGEST_WAIT)
            stop.wait(wait)


def _answer(line: PartyLine, question: Asked, handler: Callable[[bytes], bytes]) -> None:
    try:
        answer = handler(question.content)
    except _FAILURES as error:
        note(_log, "question not answered", level=logging.ERROR, kind=type(error).__name__)
        return
    line.answer(question, answer)


class _Life:
    """A party's presence at a SuperLink, from activation to deactivation, with a heartbeat thread.

    The number of the node is on disk first, so that the next process can deactivate a life that ended by SIGKILL.
    """

    def __init__(self, line: PartyLine, place: Path) -> None:
        self._line = line
        self._place = place
        self._end = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="signs of life", daemon=True)
        self.known = True

    def __enter__(self) -> Self:
        previous = None
        with suppress(FileNotFoundError, ValueError):
            previous = int(read_ours(self._place))
        _files.write(self._place, str(self._line.activate(previous)))
        self._beats.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._line.deactivate()
        self._beats.join()

    def _beat(self) -> None:
        while not self._end.wait(BEAT):
            with suppress(LineBroken):  # pulling says so too
                self.known = self._line.beat()
