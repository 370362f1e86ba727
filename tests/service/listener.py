"""A listener on a free port that speaks HTTP by hand: honest where a test does not change what it says."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

import incrowd.service
from incrowd.drawdiscard import Drawn, Reason, ServerLike

STATIC = Path(incrowd.service.__file__).parent / "static"
KINDS = {".mjs": "text/javascript", ".html": "text/html", ".css": "text/css", ".json": "application/json"}
PAGE = b"<!doctype html><link rel=icon href=data:,><title>device</title>"
STATUS = {"NOT_WEIGHTS": 400, "FORGED": 403, "UNLIKE": 422}


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Say = Callable[[Request], "bytes | Iterator[bytes]"]


@dataclass
class Listener:
    """Answers every connection once with what `say` says; `heard` are the requests, `cut` breaks replies by path."""

    say: Say
    heard: list[Request] = field(default_factory=list)
    cut: dict[str, int] = field(default_factory=dict)
    secure: ssl.SSLContext | None = None
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def listening(self) -> Iterator["Listener"]:
        with socket.create_server(("127.0.0.1", 0)) as door:
            self.port = door.getsockname()[1]
            thread = threading.Thread(target=self._run, args=(door,), daemon=True)
            thread.start()
            try:
                yield self
            finally:
                with suppress(OSError):
                    door.shutdown(socket.SHUT_RDWR)
                thread.join(10)

    def _run(self, door: socket.socket) -> None:
        while True:
            try:
                connection, _ = door.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with suppress(OSError), closing(connection):
            connection.settimeout(30)
            if self.secure is not None:
                connection = self.secure.wrap_socket(connection, server_side=True)
            request = read_request(connection)
            if request is None:
                return
            self.heard.append(request)
            said = self.say(request)
            if isinstance(said, bytes):
                connection.sendall(said[: self.cut.get(request.path, len(said))])
            else:
                for part in said:
                    connection.sendall(part)
            connection.close()


def read_request(connection: socket.socket) -> Request | None:
    arrived = b""
    while b"\r\n\r\n" not in arrived:
        part = connection.recv(65536)
        if not part:
            return None
        arrived += part
    head, body = arrived.split(b"\r\n\r\n", 1)
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        part = connection.recv(65536)
        if not part:
            return None
        body += part
    return Request(method, path, headers, body)


def reply(status: int, body: bytes, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} so", f"content-length: {len(body)}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def drawn_reply(drawn: Drawn, **more: str) -> bytes:
    return reply(
        200,
        drawn.weights.astype("<f4").tobytes(),
        incrowd_fingerprint=drawn.fingerprint,
        incrowd_gamma=repr(drawn.gamma),
        incrowd_ticket=drawn.ticket.hex(),
        **more,
    )


def refusal(reason: Reason) -> bytes:
    body = json.dumps({"reason": reason.name.lower(), "remedy": "draw again"}).encode()
    return reply(STATUS.get(reason.name, 409), body, content_type="application/json")


def honest(server: ServerLike) -> Say:
    """What a service says, over a server in this process; and the files of the browser's device."""
    turn = threading.Lock()

    def say(request: Request) -> bytes:
        if request.path == "/v1/specification":
            return reply(200, server.specification_json().encode(), content_type="application/json")
        if request.path == "/v1/draw":
            return drawn_reply(server.draw())
        if request.path == "/v1/answer":
            update = np.frombuffer(request.body, "<f4").astype(np.float32)
            with turn:
                outcome = server.offer(update, bytes.fromhex(request.headers["incrowd-ticket"]))
            if not outcome.accepted:
                return refusal(outcome.reason)
            return drawn_reply(server.draw(), incrowd_outcome=outcome.reason.name.lower())
        file = STATIC / Path(request.path).name
        if request.path.startswith("/static/") and file.is_file():
            return reply(200, file.read_bytes(), content_type=KINDS[file.suffix])
        return reply(200, PAGE, content_type="text/html") if request.path == "/" else reply(404, b"")

    return say


def instead(server: ServerLike, path: str, said: "bytes | Iterator[bytes] | Say") -> Say:
    """What an honest service says, but for one path."""
    usual = honest(server)

    def say(request: Request) -> "bytes | Iterator[bytes]":
        if request.path != path:
            return usual(request)
        return said(request) if callable(said) else said

    return say


def changed(server: ServerLike, path: str, old: bytes, new: bytes) -> Say:
    """What an honest service says, but for these bytes of its reply to one path."""
    usual = honest(server)

    def say(request: Request) -> "bytes | Iterator[bytes]":
        said = usual(request)
        assert isinstance(said, bytes)
        assert old in said
        head, body = said.split(b"\r\n\r\n", 1)
        length, other = b"content-length: %d", body.replace(old, new)
        return head.replace(length % len(body), length % len(other)).replace(old, new) + b"\r\n\r\n" + other

    return instead(server, path, say)


def drawing(server: ServerLike, weights: bytes) -> bytes:
    """The reply to a draw, with these weights."""
    given = server.draw()
    ticket = given.ticket.hex()
    return reply(200, weights, incrowd_fingerprint=given.fingerprint, incrowd_gamma="0.05", incrowd_ticket=ticket)


def dripping(said: bytes, *, pause_s: float = 0.02) -> Iterator[bytes]:
    """A byte at a time."""
    for place in range(len(said)):
        yield said[place : place + 1]
        time.sleep(pause_s)


def endless(begun: bytes, *, more: bytes = b"x" * 65536) -> Iterator[bytes]:
    yield begun
    while True:
        yield more


def certificate(folder: Path) -> Path:
    """A key and a certificate for localhost that nobody vouches for, in one file."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    place = folder / "localhost.pem"
    place.write_bytes(key.private_bytes(pem, *plain) + made.public_bytes(pem))
    return place
