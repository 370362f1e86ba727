"""`incrowd serve` as a process of its own."""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from incrowd.drawdiscard import Specification
from incrowd.service.exchange import Address, Reply, exchange
from tests.drawdiscard.mail import noised


class ServeProcess:
    """Started with a specification and options; killed and started again at will, on the same port."""

    def __init__(self, folder: Path, specification: Specification, *options: str) -> None:
        self._folder = folder
        path = folder / "spec.json"
        path.write_text(specification.to_json())
        self._specification = specification
        self._options = options
        self._path, self.port = path, 0
        self.url = ""
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "incrowd", "serve", str(self._path), "--port", str(self.port), "--json"]
        command += [] if any("admission" in option for option in self._options) else ["--open-admission"]
        self.process = subprocess.Popen([*command, *self._options], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors()
        self.url = json.loads(line)["url"]
        self.port = int(self.url.rsplit(":", 1)[1])

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def ask(self, path: str, *, headers: dict[str, str] | None = None, body: bytes | None = None) -> Reply:
        return exchange(Address.of(self.url), path, most=2**22, deadline_s=20, headers=headers, body=body)

    def contribute(
        self, drawn: Reply, *, seed: int, to: Address | None = None, context: ssl.SSLContext | None = None
    ) -> Reply:
        """Send back what was drawn, `to` the door of a proxy or to the process itself."""
        row, gamma = np.frombuffer(drawn.body, "<f4"), float(drawn.headers["incrowd-gamma"])
        body = noised(self._specification, row, gamma, seed=seed).astype("<f4").tobytes()
        names = ("incrowd-fingerprint", "incrowd-ticket")
        headers = {name: drawn.headers[name] for name in names}
        to = to or Address.of(self.url)
        return exchange(to, "/v1/answer", most=2**22, deadline_s=20, context=context, headers=headers, body=body)

    def accepted(self) -> int:
        count: int = json.loads(self.ask("/status.json").body)["accepted"]
        return count

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def stop(self) -> tuple[int, str]:
        """The exit status, and what it said on standard error."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._end()

    def memory(self) -> int:
        """Resident bytes."""
        statm = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(statm[1]) * os.sysconf("SC_PAGE_SIZE")

    def _end(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, "".join(
            line for line in said.decode().splitlines(keepends=True) if "open_admission" not in line
        )


@contextmanager
def serve_process(folder: Path, specification: Specification, *options: str) -> Iterator[ServeProcess]:
    process = ServeProcess(folder, specification, *options)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.kill()


def until(condition: object, *, within: float = 20.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + within
    while not condition():  # type: ignore[operator]  # it is called
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.05)
