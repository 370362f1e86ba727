"""A SuperLink of its own: the serving process starts, watches, restarts and stops it.

It listens on loopback alone, holds everything in memory, and runs no uploaded code: this process takes the task of each
run itself, with a fresh secret. Parties on other machines come through nginx, because a SuperLink authenticates one of
its three interfaces alone: see `incrowd.flower.proxy`.
"""

import itertools
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from threading import Condition, Event, Thread
from types import TracebackType
from typing import Self

from incrowd import _files
from incrowd._log import note
from incrowd._private import make_ours
from incrowd._validate import count, positive
from incrowd.errors import ConfigError, IncrowdError
from incrowd.flower import QUIET
from incrowd.flower.child import Child
from incrowd.flower.fleet import BEAT, LineBroken, ServerLine
from incrowd.parties.keys import AUTHORITY, LOOPBACK, SERVER, SERVER_KEY, Enrolment, check_certificate


@dataclass
class _Open:
    party: str
    content: bytes
    end: float
    message: str = ""
    life: str = ""
    latest: bool = True


class Questions:
    """Open questions. A new life of a party gets its latest question; an answer to any counts.

    Guarantee: a question is sent unchanged or not at all: a later question drops its content, and it is never sent
    again.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._open: dict[str, _Open] = {}

    def add(self, party: str, content: bytes, end: float) -> str:
        """Open a question until some moment; return its number."""
        number = f"question {next(self._numbers)}"
        for each in self._open.values():
            if each.party == party:  # a party that is away for long is not to fill the memory
                each.content, each.latest = b"", False
        self._open[number] = _Open(party, content, end)
        return number

    def close(self, number: str) -> None:
        """Close an answered or expired question."""
        self._open.pop(number, None)

    def forget(self, now: float) -> None:
        """Close expired questions."""
        for number in [number for number, each in self._open.items() if each.end <= now]:
            del self._open[number]

    def start_anew(self) -> None:
        """Note that a new SuperLink has lost every message."""
        for each in self._open.values():
            each.message, each.life = "", ""

    def due(self, lives: Mapping[str, str]) -> dict[str, str]:
        """The questions to send now, each with its party: the latest of a party whose life has not received it."""
        return {
            number: each.party
            for number, each in self._open.items()
            if each.latest and each.party in lives and each.life != lives[each.party]
        }

    def content(self, number: str) -> bytes:
        """The content of a question. Edge cases: empty if a later one replaced it."""
        return self._open[number].content

    def left(self, number: str, now: float) -> float:
        """The seconds until a question expires."""
        return max(0.0, self._open[number].end - now)

    def sent(self, number: str, message: str, life: str) -> None:
        """Note the message to a life of the party; an empty number means that it was not sent."""
        question = self._open[number]
        question.message, question.life = message, life if message else ""

    def waiting(self, numbers: Sequence[str]) -> dict[str, str]:
        """The messages still open for these questions, and the question of each."""
        found = ((self._open[number].message, number) for number in numbers if number in self._open)
        return {message: number for message, number in found if message}

    def lost(self, number: str) -> None:
        """Note that its message is lost: the question waits for another life, or for the next asking."""
        self._open[number].message = ""


PORT = 9091
"""The server's port on loopback; parties reach the proxy at 9092."""

SECRET_FILE = "secret"  # noqa: S105  # a name, not a secret
"""The file with the secret that takes the task of a run; each SuperLink has its own."""

_log = logging.getLogger(__name__)
_LOOK = 1.0
_CLOCKS_DIFFER = 400.0  # more than Flower lets the clocks of a party and the server differ
_QUIET = {**QUIET, "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_LOG_LEVEL": "WARNING"}


@dataclass(frozen=True)
class Serving:
    """A server's loopback port, and its certificate."""

    certificates: Path
    """The folder with the server's certificate and its key, see `new_server_certificate`."""
    port: int = PORT
    seconds_to_start: float = 120.0

    def __post_init__(self) -> None:
        count(port=self.port)
        positive(seconds_to_start=self.seconds_to_start)
        check_certificate(self.certificates / SERVER)


@dataclass(frozen=True)
class _FlowerRun:
    """One run of Flower's: its numbers of the parties, and its line."""

    line: ServerLine
    nodes: dict[str, int]


class SuperLink:
    """A transport to enrolled parties over a SuperLink on loopback, for use in a `with` statement.

    Guarantee: inside the `with`, one SuperLink runs. If it ends, another starts with a new run of Flower's, and asks
    all open questions again, as for a restarted party. It ends with this process, even when killed. Answers stay in
    memory. It refuses a second process that serves from the same folder (`ConfigError`).

    Edge cases: `push` and `pull` are for one thread. An absent party gets its question when it comes, until that
    expires. A port that another program holds is a `ConfigError`.
    """

    def __init__(self, folder: Path, parties: Sequence[Enrolment], serving: Serving) -> None:
        self._folder = folder
        self._serving = serving
        self._parties = {each.name: each for each in parties}
        if len(self._parties) != len(parties) or len({each.node_key for each in parties}) != len(parties):
            names = [each.name for each in parties]
            raise ConfigError(field="parties", value=names, remedy="give each party a name and keys of its own")
        self._change = Condition()
        self._session: _FlowerRun | None = None
        self._failure = ""
        self._stopping = Event()
        self._superlink: Child | None = None
        self._questions = Questions()
        self._numbers = {name: number for number, name in enumerate(self._parties, 1)}
        self._spoken_in: _FlowerRun | None = None
        self._look = 0.0
        self._watcher = Thread(target=self._watch, name="keeps a SuperLink", daemon=True)

    def __enter__(self) -> Self:
        make_ours(self._folder)
        lock = _files.take(self._folder / "lock", wait=False)
        if lock is None:
            raise ConfigError(
                field="folder", value=str(self._folder), remedy="another process serves from it: stop that"
            )
        self._lock = lock
        with ExitStack() as undo:
            undo.callback(self._stop)
            _check_free(self._serving.port)
            self._watcher.start()
            if self._wait(time.monotonic() + self._serving.seconds_to_start) is None:
                raise IncrowdError(
                    f"the SuperLink did not start in {self._serving.seconds_to_start:g} s ({self._failure}): "
                    f"see {self._folder / 'superlink.log'}"
                )
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def nodes(self) -> dict[str, int]:
        """The number of each party for `push`, fixed as long as this object lives."""
        return {name: self._numbers[name] for name in self._parties}

    def push(self, nodes: list[int], content: bytes, seconds: float) -> dict[str, int]:
        """Send one question to several parties, with so many seconds for an answer; return each question's party."""
        now, names = time.monotonic(), {number: name for name, number in self._numbers.items()}
        for node in nodes:
            if node not in names:
                raise ConfigError(field="node", value=node, remedy=f"ask one of {sorted(names)}: see `nodes`")
        self._questions.forget(now)
        pushed = {self._questions.add(names[node], content, now + seconds): node for node in nodes}
        if (session := self._session) is not None:
            try:
                self._send(session, now)
            except LineBroken as broken:
                self._give_up(session, str(broken))
        return pushed

    def pull(self, asked: list[str], longest: int) -> Iterator[tuple[str, bytes]]:
        """The answers that have come, of at most so many bytes, each with the number of the question it answers."""
        session, now = self._session, time.monotonic()
        if session is None:
            return
        try:
            if now >= self._look:
                self._send(session, now)
            waiting = self._questions.waiting(asked)
            for message, answer in session.line.pull(list(waiting), longest):
                if answer is None:
                    self._questions.lost(waiting[message])
                else:
                    self._questions.close(waiting[message])
                    yield waiting[message], answer
        except LineBroken as broken:
            self._give_up(session, str(broken))

    def present(self) -> frozenset[str]:
        """The connected parties; none while the SuperLink starts."""
        with self._change:
            session = self._session
        if session is None:
            return frozenset()
        try:
            found = session.line.present()
        except LineBroken:
            return frozenset()
        return frozenset(name for name, node in session.nodes.items() if node in found)

    def remove(self, name: str) -> None:
        """Remove a party: its key opens nothing from now on."""
        with self._change:
            if name not in self._parties:
                raise ConfigError(field="party", value=name, remedy="it is not enrolled")
            del self._parties[name]
            if self._session is not None and (node := self._session.nodes.pop(name, None)) is not None:
                self._session.line.unregister(node)

    @property
    def processes(self) -> Mapping[str, int]:
        """The process numbers, by role."""
        child = self._superlink
        return {"superlink": child.process_id} if child is not None and child.alive else {}

    def _send(self, session: _FlowerRun, now: float) -> None:
        """Send the open questions to connected parties."""
        if session is not self._spoken_in:
            self._questions.start_anew()
            self._spoken_in = session
        self._look = now + _LOOK
        present = session.line.present()
        lives = {name: present[node] for name, node in session.nodes.items() if node in present}
        same: dict[bytes, dict[str, str]] = {}
        for number, party in self._questions.due(lives).items():
            same.setdefault(self._questions.content(number), {})[number] = party
        for content, numbers in same.items():
            seconds = max(self._questions.left(number, now) for number in numbers) + _CLOCKS_DIFFER
            nodes = {session.nodes[party]: number for number, party in numbers.items()}
            sent = session.line.push(list(nodes), content, seconds)
            for message, node in sent.items():
                self._questions.sent(nodes[node], message, lives[numbers[nodes[node]]])

    def _wait(self, end: float) -> _FlowerRun | None:
        """The run, once it is open."""
        with self._change:
            while self._session is None and not self._stopping.is_set():
                left = end - time.monotonic()
                if left <= 0 or not self._change.wait(left):
                    return self._session
            return self._session

    def _give_up(self, session: _FlowerRun, why: str) -> None:
        with self._change:
            if self._session is session:
                note(_log, "run given up", level=logging.WARNING, why=why)
                self._session, self._failure = None, why
                session.line.close()
                self._change.notify_all()

    def _watch(self) -> None:
        """Keep the processes running, until stopped."""
        beat, failures = 0.0, 0
        while not self._stopping.is_set():
            try:
                self._keep_running()
                if time.monotonic() >= beat and (session := self._session) is not None:
                    if not session.line.beat():
                        raise LineBroken("the run has ended")
                    beat = time.monotonic() + BEAT
                failures = 0
            except (IncrowdError, OSError) as error:
                failures += 1
                if (session := self._session) is not None:
                    self._give_up(session, str(error))
                self._failure = str(error)
                if failures > 1 and self._superlink is not None:  # a new run did not help
                    self._superlink.stop()
                self._stopping.wait(min(5.0, 0.5 * failures))
            with self._change:
                self._change.wait_for(self._stopping.is_set, 0.2)

    def _keep_running(self) -> None:
        if self._superlink is None or not self._superlink.alive:
            if (session := self._session) is not None:
                self._give_up(session, "the SuperLink ended")
            self._start_superlink()
        if self._session is None:
            self._open_session()

    def _start_superlink(self) -> None:
        keys, secret = self._serving.certificates, self._folder / SECRET_FILE
        _files.write(secret, os.urandom(32))
        _files.folder(self._folder / "flower")
        arguments = {
            "--host": LOOPBACK,
            "--port": str(self._serving.port),
            "--isolation": "process",
            "--superexec-auth-secret-file": str(secret),
            "--ssl-certfile": str(keys / SERVER),
            "--ssl-keyfile": str(keys / SERVER_KEY),
            "--ssl-ca-certfile": str(keys / AUTHORITY),
        }
        words = [word for pair in arguments.items() for word in pair]
        words += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        environment = {**_QUIET, "FLWR_HOME": str(self._folder / "flower")}
        self._superlink = Child(__name__, words, self._folder / "superlink.log", environment)

    def _open_session(self) -> None:
        authority, secret = self._serving.certificates / AUTHORITY, self._folder / SECRET_FILE
        line = ServerLine(f"{LOOPBACK}:{self._serving.port}", authority.read_bytes(), secret.read_bytes())
        with ExitStack() as undo:
            undo.callback(line.close)
            self._wait_for_superlink(line)
            with self._change:
                known = line.registered()
                nodes = {
                    name: known.get(each.node_pem()) or line.register(name, each.node_pem())
                    for name, each in self._parties.items()
                }
                line.open_run()
                self._session = _FlowerRun(line, nodes)
                undo.pop_all()
                self._change.notify_all()

    def _wait_for_superlink(self, line: ServerLine) -> None:
        end = time.monotonic() + self._serving.seconds_to_start
        while True:
            try:
                line.check()
                return
            except LineBroken:
                alive = self._superlink is not None and self._superlink.alive
                if not alive or time.monotonic() > end or self._stopping.wait(0.05):
                    raise

    def _stop(self) -> None:
        self._stopping.set()
        with self._change:
            self._change.notify_all()
        if self._watcher.is_alive():
            self._watcher.join()
        if (session := self._session) is not None:
            self._give_up(session, "stopped")
        if self._superlink is not None:
            self._superlink.stop()
        with suppress(OSError):
            _files.remove(self._folder / SECRET_FILE)
        os.close(self._lock)


def main(arguments: list[str]) -> None:
    """Run a SuperLink, as `flower-superlink` does."""
    sys.argv = ["flower-superlink", *arguments]
    (command,) = entry_points(group="console_scripts", name="flower-superlink")
    command.load()()


def _check_free(port: int) -> None:
    """Refuse a port that another program holds; an earlier SuperLink frees it in a moment."""
    end = time.monotonic() + 3.0
    while True:
        try:
            socket.create_server((LOOPBACK, port)).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                remedy = f"nothing can listen there ({error.strerror}): choose another, or stop what does"
                raise ConfigError(field="port", value=f"{LOOPBACK}:{port}", remedy=remedy) from error
            time.sleep(0.1)
