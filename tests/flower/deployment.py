"""A server and parties on loopback, each in processes of its own, all of which end with the test."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from incrowd.flower.proxy import write_proxy
from incrowd.flower.superlink import SuperLink
from incrowd.parties.asking import Patience, ask
from incrowd.parties.keys import AUTHORITY, new_authority, new_party, new_server_certificate
from tests.flower import some_party
from tests.nginx import Nginx

ROOT = Path(__file__).parents[2]
NAMES = ("amber", "birch", "cedar")


class Deployment:
    """Three parties and a server. `link` asks them. They reach it on loopback, or through nginx (`proxied`)."""

    def __init__(self, folder: Path, *, script: str = some_party.__file__, proxied: bool = False) -> None:
        self.folder = folder
        self.script = script
        self.keys = folder / "server"
        new_authority(self.keys)
        new_server_certificate(self.keys, ["127.0.0.1"])
        self.enrolments = [new_party(folder / name, name) for name in NAMES]
        self.port = free_port()
        self.address = f"127.0.0.1:{free_port() if proxied else self.port}"
        self._nginx: Nginx | None = None
        if proxied:
            proxy = Path(tempfile.mkdtemp(prefix="fleet-"))  # a socket's path is to be short
            hand_out(folder, proxy, self.keys, listen=self.address, port=self.port)
            self._nginx = Nginx(proxy)
        self.link = SuperLink(folder / "serving", self.enrolments, keys=self.keys, port=self.port)
        self.parties: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.link.__enter__()
        if self._nginx is not None:
            self._nginx.start(int(self.address.rpartition(":")[2]))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self.parties):
            self.kill(name)
        if self._nginx is not None:
            self._nginx.stop()
            shutil.rmtree(self._nginx.folder)
        self.link.__exit__(kind, error, trace)

    def start(self, *names: str) -> None:
        """Start parties, as processes."""
        for name in names or NAMES:
            where = [str(self.folder / name), self.address, str(self.keys / AUTHORITY)]
            with (self.folder / f"{name}.log").open("ab") as log:
                environment = {**os.environ, "PYTHONPATH": str(ROOT)}
                self.parties[name] = subprocess.Popen(
                    [sys.executable, self.script, *where], stdout=log, stderr=log, env=environment
                )

    def kill(self, name: str) -> None:
        """SIGKILL a party."""
        party = self.parties.pop(name)
        party.send_signal(signal.SIGKILL)
        party.wait()

    def kill_server(self, what: str) -> None:
        """SIGKILL the SuperLink."""
        os.kill(self.link.processes[what], signal.SIGKILL)

    def ask(self, question: bytes, timeout: float = 60.0, longest: int = 2**24) -> dict[str, bytes]:
        """Ask all parties, again after five seconds; the first answer of each."""
        names = {number: name for name, number in self.link.nodes.items()}
        patience = Patience(timeout=timeout, again=5.0)
        found = ask(self.link, names, question, longest=longest, read=lambda _, answer: answer, patience=patience)
        return {names[node]: answer for node, answer in found.items()}


def hand_out(folder: Path, proxy: Path, keys: Path, *, listen: str, port: int) -> None:
    """Enrol all parties with folders in a folder at a proxy, and give them their certificates."""
    enrolled = folder / "enrolled"
    enrolled.mkdir(exist_ok=True)
    for path in folder.glob("*/*.pub"):
        (enrolled / path.name).write_bytes(path.read_bytes())
    write_proxy(proxy, keys, enrolled, listen=[listen], port=port)
    for path in enrolled.glob("*.crt"):
        (folder / path.stem / "node.crt").write_bytes(path.read_bytes())


def expected(question: bytes) -> dict[str, bytes]:
    """What all parties answer."""
    return {name: some_party.answer(name, question) for name in NAMES}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something holds; it is an error where it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def runs(process_id: int) -> bool:
    """Whether a process is there, and is no corpse."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
