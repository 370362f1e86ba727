"""Attack: a client who holds more connections open than the service may have files, so that nobody else gets in."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from incrowd.service.protocol import Bounds, ServiceProtocol
from incrowd.service.rates import TrustedProxies
from tests.drawdiscard.mail import asked

pytest.importorskip("uvloop")

FILES = 128
"""So many may be open to begin with, as a system would have it."""


@contextmanager
def serving(folder: Path, limits: str, *more: str) -> Iterator[str]:
    (folder / "spec.json").write_text(asked().to_json(), encoding="utf-8")
    words = [sys.executable, "-m", "incrowd", "serve", "spec.json", "--port", "0", "--json", *more]
    shell = ["bash", "-c", f'ulimit {limits}; exec "$@"', "bash", *words]
    with subprocess.Popen(shell, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
            process.wait(30)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "more"),
    [(f"-Sn {FILES}", ()), (f"-n {FILES}", ("--each", "20"))],
    ids=["a limit that can be raised", "one that cannot"],
)
def test_who_holds_connections_keeps_nobody_out(tmp_path: Path, limits: str, more: tuple[str, ...]) -> None:
    """The control is a service without such a limit: it is what the first one becomes."""
    with serving(tmp_path, limits, *more) as url, ExitStack() as held:
        port = int(url.rpartition(":")[2])
        for _ in range(2 * FILES):
            held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
        local = ("127.0.0.2", 0) if more else None
        with socket.create_connection(("127.0.0.1", port), timeout=5, source_address=local) as other:
            other.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert other.recv(12) == b"HTTP/1.1 200"


def test_who_comes_past_the_proxies_has_the_limit_of_one_address() -> None:
    bounds = Bounds(each=2, proxies=TrustedProxies(["10.0.0.0/8"]))

    def admitted(peer: str) -> list[bool]:
        connections = [ServiceProtocol.__new__(ServiceProtocol) for _ in range(4)]
        for connection in connections:
            connection.place = b""
        return [bounds.admit(connection, peer) for connection in connections]

    assert admitted("192.0.2.1") == [True, True, False, False]
    assert admitted("10.1.2.3") == [True] * 4, "the control: behind a proxy there are many"
