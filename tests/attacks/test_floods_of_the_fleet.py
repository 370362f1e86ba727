"""Attack: strangers at the port that parties reach, from six addresses, and one party that sends without end.

They hold connections before and after the handshake, make handshakes, and pipeline requests. Honest parties, each with
a connection of its own for each request, are answered all the same. The control is nginx without our limits.
"""

import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests import nginx
from tests.flower import flood
from tests.flower.before import Before, before

pytestmark = [nginx.missing, pytest.mark.slow, pytest.mark.timeout(300)]

ASKED = 60
EACH = 32
"""Connections of one address, as the configuration has it."""


@pytest.fixture(scope="module")
def place() -> Iterator[Before]:
    with before() as made:
        yield made


class Attacker:
    """A flood that goes on while its block runs, or so many seconds."""

    def __init__(self, place: Before, mode: str, seconds: float = 90.0) -> None:
        words = [mode, str(place.port), str(place.folder / "keys" / "ca.crt"), str(seconds)]
        if mode == "pipeline":
            header = place.header("birch")["flwr-public-key"]
            words += [str(place.folder / "birch" / "node.crt"), str(place.folder / "birch" / "node.key"), header]
        self._process = subprocess.Popen([sys.executable, flood.__file__, *words], stdout=subprocess.PIPE)
        time.sleep(4.0)

    def end(self) -> dict[str, int]:
        """What it had; what goes on for too long is killed."""
        try:
            said, _ = self._process.communicate(timeout=60)
        finally:
            self._process.kill()
        found: dict[str, int] = json.loads(said)
        return found


def honest(place: Before, asked: int = ASKED) -> Counter[int | str]:
    """The answers that an enrolled party gets, each over a connection of its own."""
    found: Counter[int | str] = Counter()
    for _ in range(asked):
        found[place.ask("amber")] += 1
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("mode", ["idle", "stall", "half", "handshakes", "pipeline"])
def test_honest_parties_are_answered_whatever_strangers_do(place: Before, mode: str) -> None:
    attacker = Attacker(place, mode, seconds=25.0)
    try:
        assert honest(place) == {200: ASKED}
    finally:
        found = attacker.end()
    assert found["made"] >= 10
    assert found["most"] <= flood.ADDRESSES * EACH


def test_a_connection_without_a_request_lasts_for_seconds(place: Before) -> None:
    connection = place.trust(None).wrap_socket(
        socket.create_connection(("127.0.0.1", place.port)), server_hostname="localhost"
    )
    begin = time.monotonic()
    connection.settimeout(30.0)
    while connection.recv(2**16):
        pass
    assert time.monotonic() - begin < 15
    connection.close()


def test_without_limits_half_handshakes_lock_everybody_out() -> None:
    """The control: nginx as it comes, with 512 connections, none for each address, and a minute for a head."""

    def changed(text: str) -> str:
        text = text.replace("limit_conn network 32;", "").replace("worker_connections 8192;", "worker_connections 512;")
        return text.replace("client_header_timeout 5s;", "client_header_timeout 60s;")

    with before(changed) as made:
        assert honest(made, 3) == {200: 3}
        attacker = Attacker(made, "stall", seconds=20.0)
        try:
            assert honest(made, 3)[200] == 0
        finally:
            assert attacker.end()["most"] > flood.ADDRESSES * EACH / 2
