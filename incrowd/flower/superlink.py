"""A SuperLink of its own: the serving process starts, watches, restarts and stops it.

It listens on loopback alone, holds everything in memory, and runs no uploaded code: this process takes the task of each
run itself, with a fresh secret. Parties on other machines come through nginx, because a SuperLink authenticates one of
its three interfaces alone: see `incrowd.flower.proxy`.
"""

import itertools
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Self

from incrowd import _files
from incrowd._log import note
from incrowd._private import make_ours
from incrowd._validate import count
from incrowd.errors import ConfigError, IncrowdError
from incrowd.flower import QUIET
from incrowd.flower.fleet import BEAT, LineBroken, ServerLine
from incrowd.parties.keys import AUTHORITY, LOOPBACK, SERVER, SERVER_KEY, Enrolment, check_certificate

PORT = 9091
"""The server's port on loopback; parties reach the proxy at 9092."""

SECRET_FILE = "secret"  # noqa: S105  # a name, not a secret
"""The file with the secret that takes the task of a run; each SuperLink has its own."""

_log = logging.getLogger(__name__)
_LOOK = 1.0
_TO_START = 120.0
_TO_STOP = 2.0
_CLOCKS_DIFFER = 400.0  # more than Flower lets the clocks of a party and the server differ
_QUIET = {**QUIET, "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_LOG_LEVEL": "WARNING"}


@dataclass
class Question:
    """An open question to a party, until `end`; without a `content` it was followed by another."""

    party: str
    content: bytes | None
    end: float
    message: str = ""
    """The message that carries it, unless that is lost."""
    life: str = ""
    """The life of the party that it was sent to."""


class Questions:
    """Open questions. A new life of a party gets its latest question; an answer to any counts.

    Guarantee: a question is sent unchanged or not at all: a later question drops its content, and it is never sent
    again.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.open: dict[str, Question] = {}

    def add(self, party: str, content: bytes, *, now: float, seconds: float) -> str:
        """Open a question for so many seconds; return its number. Expired ones are closed."""
        self.open = {number: each for number, each in self.open.items() if each.end > now}
        for each in self.open.values():
            if each.party == party:  # a party that is away for long is not to fill the memory
                each.content = None
        number = f"question {next(self._numbers)}"
        self.open[number] = Question(party, content, now + seconds)
        return number

    def start_anew(self) -> None:
        """Note that a new SuperLink has lost every message."""
        for each in self.open.values():
            each.message, each.life = "", ""

    def due(self, lives: Mapping[str, str]) -> dict[bytes, dict[str, Question]]:
        """The questions to send now, by content and party: the latest of each party whose life has not received it."""
        found: dict[bytes, dict[str, Question]] = {}
        for each in self.open.values():
            if each.content is not None and each.life != lives.get(each.party, each.life):
                found.setdefault(each.content, {})[each.party] = each
        return found

    def waiting(self, numbers: Sequence[str]) -> dict[str, str]:
        """The messages still open for these questions, and the question of each."""
        found = ((self.open[number].message, number) for number in numbers if number in self.open)
        return {message: number for message, number in found if message}


class SuperLink:
    """A transport to enrolled parties over a SuperLink on loopback, for use in a `with` statement.

    `keys` is the folder with the server's certificate and its key, see `new_server_certificate`.

    Guarantee: inside the `with`, one SuperLink runs. If it ends, another starts with a new run of Flower's, and asks
    all open questions again, as for a restarted party. It ends with this process, even when killed. Answers stay in
    memory. It refuses a second process that serves from the same folder (`ConfigError`).

    Edge cases: all but `processes` is for one thread. An absent party gets its question when it comes, until that
    expires. A port that another program holds is a `ConfigError`.
    """

    def __init__(self, folder: Path, parties: Sequence[Enrolment], *, keys: Path, port: int = PORT) -> None:
        count(port=port)
        check_certificate(keys / SERVER)
        self._folder, self._keys, self._port = folder, keys, port
        self._parties = {each.name: each.node_pem() for each in parties}
        if len(self._parties) != len(parties) or len(set(self._parties.values())) != len(parties):
            names = [each.name for each in parties]
            raise ConfigError(field="parties", value=names, remedy="give each party a name and keys of its own")
        self.nodes = {name: number for number, name in enumerate(self._parties, 1)}
        """The number of each party for `push`, fixed as long as this object lives."""
        self._questions = Questions()
        self._enrolling = threading.Lock()
        self._line: ServerLine | None = None
        self._spoken: ServerLine | None = None
        self._look = 0.0
        self._superlink: _Child | None = None
        self._opened, self._stopping = threading.Event(), threading.Event()
        self._failure = ""
        self._watcher = threading.Thread(target=self._watch, name="keeps a SuperLink", daemon=True)

    def __enter__(self) -> Self:
        make_ours(self._folder)
        with ExitStack() as undo:
            undo.enter_context(_files.alone(self._folder / "lock", what="serves from it"))
            undo.callback(self._stop)
            _check_free(self._port)
            self._watcher.start()
            if not self._opened.wait(_TO_START):
                log = self._folder / "superlink.log"
                raise IncrowdError(f"the SuperLink did not start in {_TO_START:g} s ({self._failure}): see {log}")
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    @property
    def processes(self) -> Mapping[str, int]:
        """The process numbers, by role."""
        child = self._superlink
        return {"superlink": child.number} if child is not None and child.alive else {}

    def push(self, nodes: list[int], content: bytes, seconds: float) -> dict[str, int]:
        """Send one question to several parties, with so many seconds for an answer; return each question's party."""
        now, names = time.monotonic(), {number: name for name, number in self.nodes.items()}
        if unknown := set(nodes) - set(names):
            raise ConfigError(field="node", value=min(unknown), remedy=f"ask one of {sorted(names)}: see `nodes`")
        pushed = {self._questions.add(names[node], content, now=now, seconds=seconds): node for node in nodes}
        if (line := self._line) is not None:
            try:
                self._send(line, now)
            except LineBroken as broken:
                self._give_up(line, broken)
        return pushed

    def pull(self, asked: list[str], longest: int) -> Iterator[tuple[str, bytes]]:
        """The answers that have come, of at most so many bytes, each with the number of the question it answers."""
        line, now = self._line, time.monotonic()
        if line is None:
            return
        try:
            if now >= self._look:
                self._send(line, now)
            waiting = self._questions.waiting(asked)
            for message, answer in line.pull(list(waiting), longest):
                if answer is not None:
                    self._questions.open.pop(waiting[message], None)
                    yield waiting[message], answer
                elif waiting[message] in self._questions.open:  # it waits for another life, or for the next asking
                    self._questions.open[waiting[message]].message = ""
        except LineBroken as broken:
            self._give_up(line, broken)

    def present(self) -> frozenset[str]:
        """The connected parties; none while the SuperLink starts."""
        with suppress(LineBroken):
            if (line := self._line) is not None:
                return frozenset(line.present())
        return frozenset()

    def remove(self, name: str) -> None:
        """Remove a party: its key opens nothing from now on."""
        with self._enrolling:
            if self._parties.pop(name, None) is None:
                raise ConfigError(field="party", value=name, remedy="it is not enrolled")
            del self.nodes[name]
            if (line := self._line) is not None:
                try:
                    line.unregister(name)
                except LineBroken as broken:  # the next run does not enrol it
                    self._give_up(line, broken)

    def _send(self, line: ServerLine, now: float) -> None:
        """Send the open questions to connected parties."""
        if line is not self._spoken:
            self._questions.start_anew()
            self._spoken = line
        self._look = now + _LOOK
        lives = line.present()
        for content, asked in self._questions.due(lives).items():
            seconds = max(0.0, *(each.end - now for each in asked.values())) + _CLOCKS_DIFFER
            for message, name in line.push(list(asked), content, seconds).items():
                asked[name].message, asked[name].life = message, lives[name]

    def _give_up(self, line: ServerLine, why: Exception) -> None:
        """Leave a line, unless another has taken its place; the watcher then opens one."""
        if self._line is line:
            note(_log, "run given up", level=logging.WARNING, why=str(why))
            self._line = None

    def _watch(self) -> None:
        """Keep a SuperLink with an open run, until stopped."""
        failures = 0
        while not self._stopping.is_set():
            try:
                superlink = self._superlink = self._running()
                with closing(self._new_line()) as line:
                    self._open(superlink, line)
                    beat = 0.0
                    while self._line is line and not self._stopping.wait(0.2):
                        if not superlink.alive:
                            raise LineBroken("the SuperLink has ended")
                        if time.monotonic() >= beat:
                            if not line.beat():
                                raise LineBroken("the run has ended")
                            beat, failures = time.monotonic() + BEAT, 0
            except (IncrowdError, OSError) as error:
                failures += 1
                self._failure = str(error)
                note(_log, "run given up", level=logging.WARNING, why=self._failure)
                if failures > 1 and self._superlink is not None:  # a new run did not help
                    self._superlink.stop()
                self._stopping.wait(min(5.0, 0.5 * failures))
            finally:
                self._line = None

    def _running(self) -> "_Child":
        """The SuperLink, started if it does not run."""
        if self._superlink is not None and self._superlink.alive:
            return self._superlink
        secret = self._folder / SECRET_FILE
        _files.write(secret, os.urandom(32))
        _files.folder(self._folder / "flower")
        arguments = {
            "--host": LOOPBACK,
            "--port": str(self._port),
            "--isolation": "process",
            "--superexec-auth-secret-file": str(secret),
            "--ssl-certfile": str(self._keys / SERVER),
            "--ssl-keyfile": str(self._keys / SERVER_KEY),
            "--ssl-ca-certfile": str(self._keys / AUTHORITY),
        }
        words = [word for pair in arguments.items() for word in pair]
        words += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        environment = {**os.environ, **_QUIET, "FLWR_HOME": str(self._folder / "flower")}
        return _Child(words, self._folder / "superlink.log", environment)

    def _new_line(self) -> ServerLine:
        secret = (self._folder / SECRET_FILE).read_bytes()
        return ServerLine(f"{LOOPBACK}:{self._port}", (self._keys / AUTHORITY).read_text(), secret)

    def _open(self, superlink: "_Child", line: ServerLine) -> None:
        """Wait for the SuperLink, enrol the parties, and open a run."""
        end = time.monotonic() + _TO_START
        while True:
            try:
                line.check()
                break
            except LineBroken:
                if not superlink.alive or time.monotonic() > end or self._stopping.wait(0.05):
                    raise
        with self._enrolling:
            line.enrol(self._parties)
            line.open_run()
            self._line = line
        self._opened.set()

    def _stop(self) -> None:
        self._stopping.set()
        if self._watcher.is_alive():
            self._watcher.join()
        if self._superlink is not None:
            self._superlink.stop()
        with suppress(OSError):
            _files.remove(self._folder / SECRET_FILE)


class _Child:
    """A SuperLink as a child process, whose output goes to a file.

    Guarantee: it ends soon after this process does, killed or not; after `stop` it has ended. It writes files that only
    this user can read, and no core dump.
    """

    def __init__(self, words: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        _files.write(log, b"")
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and module
                [sys.executable, "-m", __name__, str(os.getpid()), *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,  # keys typed at a terminal are for the parent, which then stops it
            )
        self.number = self._process.pid

    @property
    def alive(self) -> bool:
        """It has not ended."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it and all that it started; a second time is fine."""
        for number in (signal.SIGTERM, signal.SIGKILL):  # the second for what it left behind in its group
            with suppress(ProcessLookupError):
                os.killpg(self.number, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_TO_STOP)


def end_with(parent: int) -> None:
    """End this process soon after its parent ends, also after SIGKILL."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.25)
        os._exit(1)  # no caller is left, and no clean-up is needed

    threading.Thread(target=watch, name="ends with its parent", daemon=True).start()


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


def main(parent: str, *words: str) -> None:
    """Run a SuperLink, as `flower-superlink` does, for as long as its parent runs."""
    end_with(int(parent))
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv = ["flower-superlink", *words]
    (command,) = entry_points(group="console_scripts", name="flower-superlink")
    command.load()()


if __name__ == "__main__":
    main(*sys.argv[1:])
