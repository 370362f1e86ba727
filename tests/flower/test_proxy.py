"""nginx as it is configured: who is let through, to what, and how much of it."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from incrowd.errors import ConfigError
from incrowd.flower.proxy import write_proxy
from incrowd.parties.keys import new_authority, new_party, new_server_certificate
from tests import nginx
from tests.command import command
from tests.flower.before import PULL, Before, before

pytestmark = nginx.missing


@pytest.fixture(scope="module")
def place() -> Iterator[Before]:
    with before() as made:
        yield made


def test_an_enrolled_party_reaches_the_fleet_interface_and_no_other(place: Before) -> None:
    assert place.ask("amber") == 200
    assert place.upstream.came[-1][0] == PULL
    assert "flwr-public-key" in place.upstream.came[-1][1]
    for path in (
        "/v1/control/list-runs",
        "//v1/control/list-runs",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/pull-messages/..%2f..%2fcontrol/list-runs",
        "/v1/runtime/acquire-task",
        "/v1/fleet/register-node",
        "/health",
        "/",
    ):
        assert place.ask("amber", path) == 404, path


def test_of_a_party_both_certificate_and_key_are_wanted(place: Before) -> None:
    before_it = len(place.upstream.came)
    assert place.ask(None) == 400, "no certificate"
    assert place.ask("cedar") == 401, "a certificate of one that was removed"
    assert place.ask("amber", headers=place.header("birch")) == 401, "another's key"
    assert place.ask("amber", headers={}) == 401
    assert len(place.upstream.came) == before_it
    assert place.ask("amber") == 200


def test_requests_have_a_form_and_a_length(place: Before) -> None:
    assert place.ask("amber", method="GET") == 405
    assert place.ask("amber", body=bytes(7 * 2**20)) in (413, "BrokenPipeError", "ConnectionResetError")
    chunked = {**place.header("amber"), "transfer-encoding": "chunked"}
    assert place.ask("amber", body=b"1\r\nx\r\n0\r\n\r\n", headers=chunked) == 411
    assert place.ask("amber", headers={**place.header("amber"), "x": "y" * 40_000}) == 400
    assert place.ask("amber", body=bytes(5 * 2**20)) == 200


def test_what_a_party_sends_in_pieces_is_bounded_and_no_other_pays_for_it(place: Before) -> None:
    key = place.header("birch")["flwr-public-key"]
    head = f"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\nflwr-public-key: {key}\r\n"
    with place.trust("birch").wrap_socket(
        socket.create_connection(("127.0.0.1", place.port), timeout=30), server_hostname="localhost"
    ) as sending:
        sending.sendall(99 * f"{head}content-length: 1\r\n\r\nx".encode() + f"{head}connection: close\r\n\r\n".encode())
        said = b"".join(iter(lambda: sending.recv(2**16), b""))
    assert said.count(b"HTTP/1.1 200") + said.count(b"HTTP/1.1 429") == 100
    assert 60 <= said.count(b"HTTP/1.1 200") < 100
    assert place.ask("amber", "/v1/fleet/push-object") == 200


def test_the_log_has_a_line_of_a_party_and_none_of_strangers(place: Before) -> None:
    log = place.folder / "proxy" / "logs" / "access.json"
    lines = len(log.read_text().splitlines())
    for _ in range(5):
        place.ask(None)
        place.ask("cedar")
    place.ask("amber")
    new = [json.loads(line) for line in log.read_text().splitlines()[lines:]]
    assert [(each["party"], each["status"], each["uri"]) for each in new] == [("amber", 200, PULL)]


def test_a_party_that_is_enrolled_no_longer_is_let_through_no_longer() -> None:
    with before() as made:
        assert [made.ask(name) for name in ("amber", "birch", "cedar")] == [200, 200, 401]
        made.enrol("amber", "cedar")
        made.nginx.reload()
        assert [made.ask(name) for name in ("amber", "birch", "cedar")] == [200, 401, 200]


def test_health_says_that_nginx_runs_and_ready_that_parties_are_answered() -> None:
    with before() as made:

        def asked(path: str) -> int:
            with closing(http.client.HTTPConnection("x")) as connection:
                connection.sock = socket.socket(socket.AF_UNIX)
                connection.sock.connect(str(made.folder / "proxy" / "health.sock"))
                connection.request("GET", path)
                with connection.getresponse() as answer:
                    return int(answer.status)

        assert [asked("/health"), asked("/ready"), asked(PULL)] == [204, 200, 404]
        made.upstream.stop()
        assert [asked("/health"), asked("/ready")] == [204, 502]


def test_addresses_of_ipv6_are_counted_by_64_bits() -> None:
    """PROXY protocol lets a test come from any address."""

    def told(text: str) -> str:
        text = text.replace(" backlog=1024;", " backlog=1024 proxy_protocol; set_real_ip_from 127.0.0.1;")
        return text.replace("limit_conn network 32;", "limit_conn network 2;")

    with before(told) as made:

        def lasts(source: str) -> bool:
            kind, there = ("TCP6", "::1") if ":" in source else ("TCP4", "127.0.0.1")
            one = socket.create_connection(("127.0.0.1", made.port), timeout=1.0)
            kept.append(one)
            one.sendall(f"PROXY {kind} {source} {there} 1 2\r\n".encode())
            try:
                return one.recv(1) != b""
            except TimeoutError:  # it waits for TLS
                return True
            except OSError:
                return False

        kept: list[socket.socket] = []
        try:
            found = [lasts(f"2001:db8:0:1::{number}") for number in range(1, 5)]
            assert found == [True, True, False, False]
            assert lasts("2001:db8:0:2::1"), "another network"
            assert lasts("192.0.2.1")
            assert [lasts("::ffff:192.0.2.1"), lasts("::ffff:192.0.2.1")] == [True, False], "the same address"
        finally:
            for each in kept:
                each.close()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    new_authority(tmp_path / "keys")
    new_server_certificate(tmp_path / "keys", ["fl.example.org"])
    (tmp_path / "enrolled").mkdir()
    made = new_party(tmp_path / "amber", "amber")
    (tmp_path / "enrolled" / "amber.pub").write_text(made.text())
    return tmp_path / "keys"


def test_the_command_says_how_nginx_is_started(
    keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = command(monkeypatch, capsys, "flower"), keys.parent
    words = ("--keys", str(keys), "--enrolled", str(folder / "enrolled"), "--listen", "[::]:9092", "--json")
    found = run("proxy", str(folder / "proxy"), *words).object()
    assert found["start"] == f"nginx -p {folder / 'proxy'} -e logs/error.log -c nginx.conf"
    assert found["parties"] == 1
    assert "listen [::]:9092" in (folder / "proxy" / "nginx.conf").read_text()


@pytest.mark.parametrize("listen", ["9092", "fl.example.org:9092", "127.0.0.1:0", "127.0.0.1:9092; user root"])
def test_what_is_no_address_is_refused(listen: str, keys: Path) -> None:
    with pytest.raises(ConfigError, match="listen"):
        write_proxy(keys.parent / "proxy", keys, keys.parent / "enrolled", listen=[listen])


def test_without_keys_or_parties_nothing_is_written(keys: Path, tmp_path: Path) -> None:
    (tmp_path / "nobody").mkdir()
    enrolled, nobody, proxy = tmp_path / "enrolled", tmp_path / "nobody", tmp_path / "proxy"
    for folder, kept, parties in ((proxy, nobody, enrolled), (tmp_path / "a b", keys, enrolled), (proxy, keys, nobody)):
        with pytest.raises(ConfigError, match=r"keys|folder|enrolled"):
            write_proxy(folder, kept, parties, listen=["127.0.0.1:9092"])
        assert not folder.exists()
