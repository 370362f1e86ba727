"""Attack: one address holds connections, sends slowly, or asks without end, until honest devices get no answer.

The configuration that `incrowd serve --nginx` writes stands in the way. Each control is the same nginx without its
limits, or the service alone: there the attack works. Attackers are addresses of 127.0.0.0/8.
"""

import contextlib
import json
import re
import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from importlib import resources
from pathlib import Path
from threading import Thread

import pytest

from tests.drawdiscard.mail import asked
from tests.nginx import missing
from tests.service.nginx import Door, before_service
from tests.service.processes import ServeProcess, serve_process

pytestmark = [missing, pytest.mark.slow, pytest.mark.timeout(300)]

SHIPPED = (resources.files("incrowd.service") / "nginx.conf").read_text(encoding="utf-8")
UNLIMITED = {
    "worker_connections 32768;": "worker_connections 512;",  # nginx's own default
    "limit_conn each 64;": "",
    "limit_conn all 8192;": "",
    "limit_req zone=requests burst=200 nodelay;": "",
    "client_header_timeout 5s;": "",
    "client_body_timeout 5s;": "",
}
ATTACKER = "127.0.0.9"
BURST, RATE = 200, 20
DRAW = b"GET /v1/draw HTTP/1.1\r\nhost: x\r\n\r\n"
FLOOD = Path(__file__).parents[1] / "service" / "flood.py"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    with serve_process(tmp_path_factory.mktemp("service"), asked()) as process:
        yield process


@pytest.fixture
def limited(served: ServeProcess, tmp_path: Path) -> Iterator[Door]:
    with before_service(tmp_path / "limited", SHIPPED, service=served.port, changes={}) as door:
        yield door


@pytest.fixture
def unlimited(served: ServeProcess, tmp_path: Path) -> Iterator[Door]:
    with before_service(tmp_path / "unlimited", SHIPPED, service=served.port, changes=UNLIMITED) as door:
        yield door


def asks(door: Door, path: str = "/health", *, timeout: float = 5.0) -> int:
    """The status that an honest device gets, 0 where it gets none."""
    with contextlib.suppress(OSError), door.connected(timeout=timeout) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        said = connection.recv(12)
        return int(said[9:12] or 0)
    return 0


def drawn(served: ServeProcess) -> int:
    """How many draws reached the service."""
    found = re.search(rb"^incrowd_draws_total (\d+)$", served.ask("/metrics").body, re.MULTILINE)
    assert found
    return int(found[1])


@pytest.mark.parametrize("kind", ["before the handshake", "in the handshake", "in a request"])
def test_420_connections_of_one_address(kind: str, limited: Door) -> None:
    assert asks(limited) == 200
    with held(limited, kind) as count:
        assert [asks(limited) for _ in range(5)] == [200] * 5
    assert count <= 64 or kind != "in a request"


def test_without_limits_they_keep_everybody_out(unlimited: Door) -> None:
    """The control. nginx lets go of connections in the handshake by itself, and of others not."""
    assert asks(unlimited) == 200
    with held(unlimited, "in a request"):
        assert 0 in [asks(unlimited, timeout=2) for _ in range(5)]


@contextlib.contextmanager
def held(door: Door, kind: str) -> Iterator[int]:
    """420 connections that are opened by an attacker and go no further; how many of them came so far."""
    with ExitStack() as stack:
        count = 0
        for _ in range(420):
            with contextlib.suppress(OSError):
                if kind == "in a request":
                    connection: socket.socket = door.connected(ATTACKER, timeout=2)
                else:
                    connection = socket.create_connection(
                        ("127.0.0.1", door.port), timeout=2, source_address=(ATTACKER, 0)
                    )
                stack.callback(connection.close)
                connection.sendall({"in the handshake": b"\x16\x03\x01", "in a request": b"GET /"}.get(kind, b""))
                count += 1
        yield count


def lasts(door: Door, kind: str, longest: float) -> float:
    """Seconds until nginx ends a connection that says nothing, or a byte of its head now and then."""
    plain = socket.create_connection(("127.0.0.1", door.port), timeout=1, source_address=(ATTACKER, 0))
    connection = (
        plain if kind == "before the handshake" else door.context.wrap_socket(plain, server_hostname="localhost")
    )
    begun, sent = time.monotonic(), 0
    with closing(connection):
        connection.settimeout(0.5)
        while time.monotonic() - begun < longest:
            with contextlib.suppress(TimeoutError):
                try:
                    if kind == "a head by bytes":
                        connection.sendall(DRAW[sent % 20 : sent % 20 + 1])
                        sent += 1
                    if not connection.recv(999):
                        break
                except (ConnectionError, ssl.SSLError):
                    break
    return time.monotonic() - begun


@pytest.mark.parametrize("door", ["limited", "unlimited"])
def test_slow_clients_are_let_go_after_five_seconds(door: str, request: pytest.FixtureRequest) -> None:
    where: Door = request.getfixturevalue(door)
    kinds = ("before the handshake", "nothing", "a head by bytes")
    found = dict.fromkeys(kinds, 0.0)

    def measure(kind: str) -> None:
        found[kind] = lasts(where, kind, 12.0)

    threads = [Thread(target=measure, args=(kind,)) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for kind, seconds in found.items():
        assert (seconds < 10) is (door == "limited"), (kind, seconds)


@pytest.mark.parametrize("how", ["pipelined", "one by one"])
@pytest.mark.parametrize("door", ["limited", "unlimited"])
def test_a_flood_from_one_address(door: str, how: str, request: pytest.FixtureRequest, served: ServeProcess) -> None:
    """With limits hardly any of it reaches the service, and honest devices are answered as before."""
    where: Door = request.getfixturevalue(door)
    before, seconds = drawn(served), 4.0
    words = [sys.executable, str(FLOOD), str(where.port), str(where.folder / "localhost.pem"), how, str(seconds)]
    with subprocess.Popen([*words, ATTACKER], stdout=subprocess.PIPE, text=True) as flood:
        assert flood.stdout is not None
        assert flood.stdout.readline() == "begun\n"
        waits, statuses = [], []
        while flood.poll() is None:
            begun = time.monotonic()
            statuses.append(asks(where, timeout=10))
            waits.append(time.monotonic() - begun)
            time.sleep(0.1)
        sent = int(flood.stdout.readline())
    reached, most = drawn(served) - before, BURST + RATE * (seconds + 6)
    found = f"sent {sent}, reached the service {reached}, p50 {1e3 * statistics.median(waits):.0f} ms"
    if door == "limited":
        assert sent > 1.5 * most, found
        assert reached <= most, found
        assert set(statuses) == {200}, found
    else:
        assert reached > 1.5 * most, found


def test_the_addresses_of_one_ipv6_network_count_as_one(served: ServeProcess, tmp_path: Path) -> None:
    """What the limit on connections says of an address is told to the next layer, where a test can say the same."""
    of_stream, of_http = re.findall(r"map \$binary_remote_addr \$network \{.*?\n  \}", SHIPPED, re.DOTALL)
    assert of_stream == of_http, "both layers count alike"
    slow = {"rate=20r/s": "rate=1r/m", "burst=200 nodelay": "burst=2 nodelay"}

    def statuses(door: Door, addresses: list[str]) -> list[int]:
        found = []
        for address in addresses:
            plain = socket.create_connection(("127.0.0.1", door.inner), timeout=5)
            kind = "TCP6 " + address + " ::1" if ":" in address else "TCP4 " + address + " 127.0.0.1"
            plain.sendall(f"PROXY {kind} 1234 443\r\n".encode())
            with door.context.wrap_socket(plain, server_hostname="localhost") as connection:
                connection.sendall(DRAW)
                found.append(int(connection.recv(12)[9:12]))
        return found

    with before_service(tmp_path / "slow", SHIPPED, service=served.port, changes=slow) as door:
        house = [f"2001:db8:1:2::{number:x}" for number in range(5)]
        assert statuses(door, house) == [200, 200, 200, 429, 429]
        assert statuses(door, ["2001:db8:1:3::1", "192.0.2.1", "192.0.2.2"]) == [200] * 3, "the control: other networks"
        assert statuses(door, ["::ffff:192.0.2.7", "192.0.2.7"] * 2) == [200, 200, 200, 429], (
            "one address, written twice"
        )
    whole = {"(?<net>.{8}).{8}$": "(?<net>.{16})$"} | slow
    with before_service(tmp_path / "whole", SHIPPED, service=served.port, changes=whole) as door:
        assert statuses(door, house) == [200] * 5, "the control: without the map each is its own"


ENDLESS = {
    "an answer in chunks": b"POST /v1/answer HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nfffffff\r\n",
    "a header's value": b"GET /v1/draw HTTP/1.1\r\nhost: x\r\nx: ",
    "a header's name": b"GET /v1/draw HTTP/1.1\r\nhost: x\r\nx",
    "the name that is asked for": b"GET /",
}


def poured(connection: socket.socket, begun: bytes, *, most: int) -> int:
    """How many megabytes of letters are taken after this."""
    taken = 0
    with contextlib.suppress(OSError), closing(connection):
        connection.settimeout(5)
        connection.sendall(begun)
        while taken < most:
            connection.sendall(b"a" * 2**20)
            taken += 1
    return taken


@pytest.mark.parametrize("what", ENDLESS)
def test_a_request_that_never_ends(what: str, limited: Door, served: ServeProcess) -> None:
    before = served.memory()
    assert poured(limited.connected(ATTACKER), ENDLESS[what], most=24) < 24
    assert served.memory() - before < 8 * 2**20
    assert asks(limited) == 200


def test_the_service_alone_would_take_it(served: ServeProcess) -> None:
    """The control."""
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=5)
    assert poured(connection, ENDLESS["a header's value"], most=24) == 24


def test_what_nginx_refuses_is_said_as_the_service_says_it_and_no_log_has_an_address(
    limited: Door, tmp_path: Path
) -> None:
    def got(sent: bytes) -> tuple[int, str]:
        with limited.connected(ATTACKER) as connection:
            connection.sendall(sent)
            said = connection.recv(9999)
            head, _, body = said.partition(b"\r\n\r\n")
            return int(head[9:12]), json.loads(body or connection.recv(9999))["reason"]

    large = b"POST /v1/answer HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999\r\n\r\n"
    assert got(large) == (413, "too_large")
    assert {got(DRAW.replace(b"/v1/draw", b"/v1/nothing")) for _ in range(3)} == {(404, "not_found")}
    with limited.connected(ATTACKER) as connection:
        connection.sendall(400 * DRAW)
        said = b""
        while b'"too_often"' not in said:
            said += connection.recv(2**16)
        assert b"HTTP/1.1 429 " in said
        assert b"Retry-After: 1\r\n" in said
    logged = limited.logged()
    assert b"127.0.0" not in logged
    assert len(logged) < 10_000
    with before_service(tmp_path / "alone", SHIPPED, service=limited.inner + 1, changes={}) as alone:
        assert asks(alone) == 503


def test_a_device_contributes_through_it(limited: Door, served: ServeProcess) -> None:
    """The control of everything above: an honest device is answered, and what it sends is taken whole."""
    from incrowd.service.exchange import Address, exchange

    address = Address.of(f"https://localhost:{limited.port}")
    draw = exchange(address, "/v1/draw", most=2**20, deadline_s=20, context=limited.context)
    before = served.accepted()
    outcomes = [served.contribute(draw, seed=number, to=address, context=limited.context).status for number in range(3)]
    assert set(outcomes) <= {200, 422}
    assert 200 in outcomes
    time.sleep(1.1)
    assert served.accepted() == before + outcomes.count(200)
