import asyncio
import base64
import datetime
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from incrowd.errors import ConfigError
from incrowd.flower import keys
from incrowd.flower.front import KEY_HEADER, PATHS, SIGNATURE_HEADER, TIME_HEADER, Front, FrontState, Limits, listen
from tests.flower.deployment import wait_for

PULL = "/v1/fleet/pull-messages"


class Upstream:
    """Stands where the SuperLink does: it says back what came, and writes down that it came."""

    def __init__(self, folder: Path) -> None:
        keys.new_authority(folder)
        keys.new_server_certificate(folder, ["127.0.0.1"])
        self.came: list[tuple[str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.came.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("flwr-something", "kept")
                self.send_header("set-cookie", "dropped")
                self.end_headers()
                self.wfile.write(body)

            def log_request(self, code: object = None, size: object = None) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Place:
    """A front with one enrolled party, before such an upstream."""

    def __init__(self, folder: Path, **limits: float) -> None:
        self.folder = folder
        keys.new_authority(folder / "server")
        keys.new_server_certificate(folder / "server", ["127.0.0.1"])
        self.party = keys.new_party(folder / "amber", "amber")
        self.key = keys.node_key(folder / "amber")
        self.upstream = Upstream(folder / "upstream")
        self.tell(self.party)
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trust.load_cert_chain(folder / "server" / "server.crt", folder / "server" / "server.key")
        inside = ssl.create_default_context(cafile=str(folder / "upstream" / "ca.crt"))
        self._trust, self._inside, self._limits = trust, inside, Limits(**limits)  # type: ignore[arg-type] # whole ones are
        self.socket = listen("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        self.client = httpx.Client(
            base_url=f"https://127.0.0.1:{self.port}",
            verify=ssl.create_default_context(cafile=str(folder / "server" / "ca.crt")),
            timeout=10,
        )
        self._loop = asyncio.new_event_loop()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._begun.wait(60)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        front = Front(self._limits, self.folder / "front.json", self._trust, self._inside)
        self._task = self._loop.create_task(front.serve(self.socket))
        self._begun.set()
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()

    def stop(self) -> None:
        self.client.close()
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(5)
        self.socket.close()
        self.upstream.stop()

    def tell(self, *parties: keys.Enrolment) -> None:
        state = FrontState(self.upstream.port, tuple(each.node_pem().decode() for each in parties))
        part = self.folder / "front.part"
        part.write_text(state.text())
        part.replace(self.folder / "front.json")

    def headers(self, *, ago: float = 0.0, key: ec.EllipticCurvePrivateKey | None = None) -> dict[str, str]:
        """As Flower's own client signs them."""
        when = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=ago)).isoformat()
        signature = (key or self.key).sign(when.encode(), ec.ECDSA(hashes.SHA256()))
        pem = self.party.node_pem()
        encoded = {KEY_HEADER: base64.b64encode(pem).decode(), SIGNATURE_HEADER: base64.b64encode(signature).decode()}
        return {**encoded, TIME_HEADER: when, "content-type": "application/x-protobuf"}

    def post(self, body: bytes = b"hello", path: str = PULL, **more: str) -> int:
        return self.client.post(path, content=body, headers={**self.headers(), **more}).status_code

    def connect(self) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str(self.folder / "server" / "ca.crt"))
        raw = socket.create_connection(("127.0.0.1", self.port), 10)
        try:
            return context.wrap_socket(raw, server_hostname="127.0.0.1")
        except OSError:
            raw.close()
            raise

    def head(self, **more: str) -> bytes:
        lines = [f"POST {PULL} HTTP/1.1", "host: here"]
        lines += [f"{name}: {value}" for name, value in {**self.headers(), **more}.items()]
        return "\r\n".join([*lines, "", ""]).encode()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def hurried(tmp_path: Path) -> Iterator[Place]:
    """One that has no time."""
    made = Place(tmp_path, seconds_to_begin=0.5, seconds_to_send=0.5, seconds_idle=0.5)
    yield made
    made.stop()


def test_an_enrolled_party_reaches_the_fleet_api_and_hears_its_answer(place: Place) -> None:
    response = place.client.post(PULL, content=b"hello", headers={**place.headers(), "cookie": "x", "accept": "a"})
    assert (response.status_code, response.content) == (200, b"hello")
    assert response.headers["flwr-something"] == "kept"
    assert "set-cookie" not in response.headers
    path, headers, body = place.upstream.came[0]
    assert (path, body) == (PULL, b"hello")
    assert headers[KEY_HEADER] == place.headers()[KEY_HEADER]
    assert "cookie" not in headers


@pytest.mark.parametrize("path", sorted(PATHS))
def test_what_a_party_needs_is_let_through(place: Place, path: str) -> None:
    assert place.post(path=path) == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/list-runs",
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet//pull-messages",
        "/v1/fleet/pull-messages/",
        "/v1/fleet/pull-messages?x=1",
        "//v1/fleet/pull-messages",
        "/health",
        "/docs",
        "/openapi.json",
        "/",
    ],
)
def test_nothing_else_is_let_through_even_for_an_enrolled_key(place: Place, path: str) -> None:
    with place.connect() as line:
        head = place.head(**{"content-length": "0"}).replace(PULL.encode(), path.encode())
        line.sendall(head)
        assert line.recv(100).startswith(b"HTTP/1.1 404")
    assert place.upstream.came == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_only_post_is_let_through(place: Place, method: str) -> None:
    assert place.client.request(method, PULL, headers=place.headers()).status_code == 405
    assert place.upstream.came == []


def test_who_has_no_key_is_refused(place: Place) -> None:
    assert place.client.post(PULL, content=b"hello").status_code == 401
    stranger = ec.generate_private_key(ec.SECP384R1())
    assert place.client.post(PULL, content=b"x", headers=place.headers(key=stranger)).status_code == 401
    for name in (KEY_HEADER, SIGNATURE_HEADER, TIME_HEADER):
        headers = place.headers()
        assert place.client.post(PULL, content=b"x", headers={**headers, name: "no"}).status_code == 401
        del headers[name]
        assert place.client.post(PULL, content=b"x", headers=headers).status_code == 401
    assert place.upstream.came == []


@pytest.mark.parametrize(("ago", "status"), [(0, 200), (290, 200), (320, 401), (-20, 401)])
def test_what_was_signed_long_ago_or_in_the_future_is_refused(place: Place, ago: float, status: int) -> None:
    assert place.client.post(PULL, content=b"x", headers=place.headers(ago=ago)).status_code == status
    assert len(place.upstream.came) == (status == 200)


def test_a_key_that_was_removed_opens_nothing_any_more_even_on_an_open_connection(place: Place) -> None:
    assert place.post() == 200
    place.tell()
    wait_for(lambda: place.post() == 401, 30)


def test_a_key_that_was_added_opens_it(place: Place) -> None:
    place.tell()
    wait_for(lambda: place.post() == 401, 30)
    place.tell(place.party)
    wait_for(lambda: place.post() == 200, 30)


def test_a_state_that_is_being_written_changes_nothing(place: Place) -> None:
    (place.folder / "front.json").write_text("{")
    time.sleep(0.7)
    assert place.post() == 200


def test_a_server_that_is_not_there_yet_is_said_to_be_starting(place: Place) -> None:
    place.upstream.stop()
    assert place.post() == 503


class TestLimits:
    def test_too_long_a_request_is_refused_before_it_is_read(self, tmp_path: Path) -> None:
        place = Place(tmp_path, request_bytes=1000)
        try:
            assert place.post(b"x" * 1000) == 200
            with place.connect() as line:
                line.sendall(place.head(**{"content-length": "1001"}))  # and not a byte of it
                assert line.recv(100).startswith(b"HTTP/1.1 413")
        finally:
            place.stop()
        assert len(place.upstream.came) == 1

    @pytest.mark.parametrize("length", ["", "-1", "1e3", "+5", "٣", "9" * 400])
    def test_a_length_that_is_none_is_refused(self, place: Place, length: str) -> None:
        with place.connect() as line:
            head = place.head().replace(b"host: here", b"host: here\r\ncontent-length: " + length.encode())
            line.sendall(head)
            assert line.recv(100)[:12] in (b"", b"HTTP/1.1 411", b"HTTP/1.1 413")
        assert place.upstream.came == []

    def test_pieces_of_no_stated_length_are_refused(self, place: Place) -> None:
        response = place.client.post(PULL, content=iter([b"a", b"b"]), headers=place.headers())
        assert response.status_code == 411
        assert place.upstream.came == []

    def test_two_lengths_are_refused(self, place: Place) -> None:
        with place.connect() as line:
            line.sendall(
                place.head(**{"content-length": "1"}).replace(b"host: here", b"content-length: 5\r\nhost: here")
            )
            assert b"200" not in line.recv(100)
        assert place.upstream.came == []

    def test_a_key_may_send_so_many_requests(self, tmp_path: Path) -> None:
        place = Place(tmp_path, burst_requests=5, requests_per_second=0.001)
        try:
            assert [place.post() for _ in range(7)] == [200] * 5 + [429] * 2
        finally:
            place.stop()

    def test_a_key_may_send_so_much(self, tmp_path: Path) -> None:
        place = Place(tmp_path, burst_bytes=1000, bytes_per_second=0.001)
        try:
            assert [place.post(b"x" * size) for size in (600, 600, 400, 1)] == [200, 429, 200, 429]
        finally:
            place.stop()

    @pytest.mark.slow
    @pytest.mark.parametrize("honest", [True, False])
    def test_an_answer_a_hundred_times_too_long_is_refused_before_it_is_whole(
        self, honest: bool, tmp_path: Path
    ) -> None:
        """In pieces, each of which is short enough, and may be an answer's."""
        longest = 200_000
        place = Place(tmp_path, **asdict(Limits(bytes_per_second=0.001).fitting(longest)))
        pieces = 4 if honest else 100
        try:
            said = [place.post(b"x" * longest) for _ in range(pieces)]
        finally:
            place.stop()
        assert said[:4] == [200] * 4
        assert honest or said[-1] == 429
        assert sum(len(body) for _, _, body in place.upstream.came) <= 4 * longest + 2**20

    def test_one_keys_haste_costs_no_other_key(self, tmp_path: Path) -> None:
        place = Place(tmp_path, burst_requests=2, requests_per_second=0.001)
        try:
            other = keys.new_party(tmp_path / "birch", "birch")
            place.tell(place.party, other)
            time.sleep(0.7)
            assert [place.post() for _ in range(3)] == [200, 200, 429]
            place.party, place.key = other, keys.node_key(tmp_path / "birch")
            assert place.post() == 200
        finally:
            place.stop()

    def test_whoever_does_not_agree_on_tls_is_cut_off(self, hurried: Place) -> None:
        with socket.create_connection(("127.0.0.1", hurried.port), 10) as line:
            assert line.recv(10) == b""

    def test_whoever_says_nothing_is_cut_off(self, hurried: Place) -> None:
        with hurried.connect() as line:
            assert ended(line)

    def test_whoever_dribbles_its_head_is_cut_off(self, hurried: Place) -> None:
        head = hurried.head(**{"content-length": "5"})
        with hurried.connect() as line:
            assert cut_off(line, (bytes([byte]) for byte in head), pause=0.05)
        assert hurried.upstream.came == []

    def test_whoever_dribbles_its_body_is_cut_off(self, hurried: Place) -> None:
        with hurried.connect() as line:
            line.sendall(hurried.head(**{"content-length": "500"}) + b"x")
            assert ended(line)
        assert hurried.upstream.came == []

    def test_a_connection_that_is_not_used_again_is_cut_off(self, hurried: Place) -> None:
        with hurried.connect() as line:
            line.sendall(hurried.head(**{"content-length": "1"}) + b"x")
            heard = b""
            while not heard.endswith(b"\r\n\r\nx"):
                heard += line.recv(1000)
            assert ended(line)

    def test_an_endless_head_is_cut_off(self, place: Place) -> None:
        with place.connect() as line:
            line.sendall(f"POST {PULL} HTTP/1.1\r\n".encode())
            assert cut_off(line, (f"x-{number}: y\r\n".encode() for number in range(100_000)))

    def test_what_is_not_http_is_cut_off(self, place: Place) -> None:
        with place.connect() as line:
            line.sendall(os.urandom(2000) + b"\r\n\r\n")
            assert ended(line)

    def test_from_one_address_come_so_many_connections(self, tmp_path: Path) -> None:
        place = Place(tmp_path, connections_per_address=3)
        try:
            lines = [place.connect() for _ in range(3)]
            with pytest.raises(OSError):  # noqa: PT011 - cut off before or while it agrees on TLS
                place.connect()
            lines.pop().close()
            wait_for(lambda: connects(place), 30)
            for line in lines:
                line.close()
        finally:
            place.stop()

    def test_strangers_get_at_most_half_of_the_connections(self, tmp_path: Path) -> None:
        place = Place(tmp_path, connections=4)
        try:
            assert place.post() == 200  # one is known now, and stays
            strangers = [place.connect() for _ in range(2)]
            with pytest.raises(OSError):  # noqa: PT011 - cut off before or while it agrees on TLS
                place.connect()
            assert place.post() == 200
            for line in strangers:
                line.close()
        finally:
            place.stop()

    @pytest.mark.parametrize("name", list(json.loads(Limits().text())))
    def test_a_limit_is_above_0(self, name: str) -> None:
        with pytest.raises(ConfigError, match=name):
            Limits(**{name: 0})


def cut_off(line: ssl.SSLSocket, words: Iterable[bytes], pause: float = 0.0) -> bool:
    """Whether the other side cuts a connection off before all words are said."""
    try:
        for each in words:
            line.sendall(each)
            time.sleep(pause)
    except OSError:
        return True
    return False


def ended(line: ssl.SSLSocket) -> bool:
    """Whether the other side cuts a connection off, within the ten seconds of its own time limit."""
    try:
        return line.recv(10) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def connects(place: Place) -> bool:
    try:
        with place.connect() as line:
            line.settimeout(0.3)
            try:
                return line.recv(10) != b""
            except TimeoutError:
                return True
    except OSError:
        return False
