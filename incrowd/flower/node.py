"""A party's process: it stays, and answers questions. It never loads uploaded code.

Flower's own SuperNode runs the code of each run, which could pass over a party's decisions.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Self

from incrowd import _files
from incrowd._log import note
from incrowd._private import read_ours
from incrowd._validate import positive
from incrowd.errors import ConfigError
from incrowd.flower.fleet import BEAT, Asked, LineBroken, PartyLine
from incrowd.parties.folder import PartyFolder
from incrowd.parties.guard import FAILURES

_LONGEST_WAIT = 5.0
_log = logging.getLogger(__name__)


def join(member: PartyFolder, stop: threading.Event, *, idle_poll: float = 1.0) -> None:
    """Answer the questions of a party's server until `stop` is set; when idle, look every `idle_poll` seconds.

    Guarantee: as of `PartyFolder.attending` and `attend`.
    """
    address, authority = member.invitation.address, member.invitation.authority
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(field="address", value=address, remedy="give HOST:PORT, such as fl.example.org:9092")
    with member.attending() as party, closing(PartyLine(address, authority, member.folder)) as line:
        attend(line, party.reply, stop, idle_poll=idle_poll)


def attend(
    line: PartyLine,
    handler: Callable[[bytes], bytes],
    stop: threading.Event,
    *,
    poll: float = 0.1,
    idle_poll: float = 1.0,
) -> None:
    """Answer a server's questions with `handler`, until `stop` is set; look every `poll` seconds after a question.

    Guarantee: it goes on after a broken line, a restarted server or an unreadable question.

    Edge cases: the log names an error of the handler by its type alone, because its words may reveal data; nothing is
    sent, and the server asks again. The same question may come again: a handler gives the same bytes
    (`Participant.reply`).
    """
    positive(poll=poll, idle_poll=idle_poll)
    wait = poll
    while not stop.is_set():
        try:
            with _Life(line) as life:
                note(_log, "connected")
                wait = look = poll
                while not stop.is_set() and life.known:
                    question = line.pull()
                    if question is None:
                        stop.wait(look)
                        look = min(1.1 * look, max(poll, idle_poll))
                    else:
                        _answer(line, question, handler)
                        look = poll
        except LineBroken as broken:
            note(_log, "not connected", level=logging.WARNING, why=str(broken))
        wait = min(2 * wait, _LONGEST_WAIT)
        stop.wait(wait)


def _answer(line: PartyLine, question: Asked, handler: Callable[[bytes], bytes]) -> None:
    try:
        answer = handler(question.content)
    except FAILURES as error:
        note(_log, "question not answered", level=logging.ERROR, kind=type(error).__name__)
        return
    line.answer(question, answer)


class _Life:
    """A party's presence at a SuperLink, from activation to deactivation, with a heartbeat thread.

    The number of the node is on disk first, so that the next process can deactivate a life that ended by SIGKILL.
    """

    def __init__(self, line: PartyLine) -> None:
        self._line = line
        self._end = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="signs of life", daemon=True)
        self.known = True

    def __enter__(self) -> Self:
        place, previous = self._line.folder / "node.number", None
        with suppress(FileNotFoundError, ValueError):
            previous = int(read_ours(place))
        _files.write(place, str(self._line.activate(previous)))
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
