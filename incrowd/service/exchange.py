"""One request and its reply over a connection of its own: bounded in size and in time, whatever the other side sends.

Only the standard library: a device has nothing else.
"""

import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from incrowd.errors import ConfigError, ServiceFailed

AGENT = "incrowd"
"""What every device says of itself, and all that it says."""

SPARE = 65_536
"""So many bytes may a reply have beside its body: its status, headers and framing."""

LONGEST_WAIT = 86_400.0
"""Seconds that a service may ask a device to wait; what is longer counts as this."""


class _Odd(Exception):
    """A reply that is not one, in our words."""


_BROKEN = (_Odd, OSError, http.client.HTTPException, ValueError)
"""What the standard library raises when a connection fails, or when what arrives is no HTTP."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a service listens.

    Plain http is refused for all but this machine itself: on the way, anybody could be the service.
    """

    secure: bool
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: str, *, plain: bool = False) -> "Address":
        """The address that a text spells; `plain` allows http to any machine."""
        if not all(" " < letter < "\x7f" for letter in url):  # urlsplit would drop line ends
            raise ConfigError(field="server", value=url, remedy="give an address in ASCII, as it goes over the network")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(field="server", value=url, remedy=f"this is no address: {error}") from error
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigError(field="server", value=url, remedy="give an address such as https://learn.example.org")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError(field="server", value=url, remedy="leave out users, queries and fragments")
        secure = parts.scheme == "https"
        if not secure and not plain and not _this_machine(host):
            remedy = "give https: over http anybody on the way could be the service"
            raise ConfigError(field="server", value=url, remedy=remedy)
        port = port or (443 if secure else 80)
        return cls(secure=secure, host=host, port=port, path=parts.path.rstrip("/"))

    @property
    def named(self) -> str:
        """What the header `host` says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.named}{self.path}"


class Reply(NamedTuple):
    """What a service said. Headers are by their names in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def exchange(
    address: Address,
    path: str,
    *,
    most: int,
    deadline_s: float,
    context: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    skip_ok: bool = False,
) -> Reply:
    """Ask a service for a path below its address, or post it a body; at most so many bytes of body come back.

    With `skip_ok` the headers are all that is read of a reply with status 200.

    Guarantee: it ends within `deadline_s` (but for the look-up of the host's name, whose limit is the system's), and
    reads at most `most` bytes of body and `SPARE` beside them, whatever is sent. The connection is fresh, its
    certificate checked. Nothing is sent that tells one device from another: no cookie, and the same headers each time.
    Whatever is no reply raises `ServiceFailed`, and so does one that leads elsewhere (3xx): it is never followed.
    """
    until = time.monotonic() + deadline_s
    asked = {"host": address.named, "user-agent": AGENT, "connection": "close", **(headers or {})}
    if body is not None:
        asked |= {"content-type": "application/octet-stream", "content-length": str(len(body))}
    method = "GET" if body is None else "POST"
    lines = [f"{method} {address.path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in asked.items()), "", ""]
    try:
        with _connected(address, until, context) as connection:
            connection.settimeout(_left(until))
            connection.sendall("\r\n".join(lines).encode("ascii") + (body or b""))
            return _replied(_Limited(connection, most + SPARE, until), method, most=most, skip_ok=skip_ok)
    except _BROKEN as error:
        raise ServiceFailed(f"{address} failed: {_why(error)}") from error


def after(reply: Reply) -> float | None:
    """The seconds that a reply asks to wait before the next request, if it does."""
    said = reply.headers.get("retry-after", "")
    return min(float(said[:9]), LONGEST_WAIT) if said.isascii() and said.isdigit() else None


def _replied(arriving: "_Limited", method: str, *, most: int, skip_ok: bool) -> Reply:
    response = http.client.HTTPResponse(arriving, method=method)  # type: ignore[arg-type]  # all that it takes of a socket is makefile
    try:
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        if 300 <= response.status < 400:
            raise _Odd("it leads elsewhere, and that is never followed: give the address where it is")
        if skip_ok and response.status == http.HTTPStatus.OK:
            return Reply(response.status, headers, b"")
        content = response.read(most + 1)
        if len(content) > most:
            raise _Odd(f"it sent more than the {most} bytes that it should")
        stated = headers.get("content-length", "")
        if (stated.isdigit() and len(content) != int(stated[:20])) or not (stated or content or response.chunked):
            raise _Odd("it broke off")
        return Reply(response.status, headers, content)
    finally:
        response.close()


class _Limited(io.RawIOBase):
    """What arrives over a connection, up to a number of bytes and a moment; in the place of a socket for reading."""

    def __init__(self, connection: socket.socket, most: int, until: float) -> None:
        self._connection, self._left, self._until = connection, most, until

    def makefile(self, mode: str) -> io.BufferedReader:
        """What `http.client` reads from."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]  # the one kind of buffer that BufferedReader gives
        if self._left <= 0:
            raise _Odd("it sent more than it should")
        self._connection.settimeout(_left(self._until))
        count = self._connection.recv_into(buffer[: self._left])
        self._left -= count
        return count


def _connected(address: Address, until: float, context: ssl.SSLContext | None) -> socket.socket:
    """A connection to a service; nothing was sent over it yet."""
    with ExitStack() as refused:
        connection = refused.enter_context(_reached(address, until))
        if address.secure:
            connection.settimeout(_left(until))
            connection = (context or ssl.create_default_context()).wrap_socket(connection, server_hostname=address.host)
        refused.pop_all()
        return connection


def _reached(address: Address, until: float) -> socket.socket:
    failure: OSError = OSError("its name leads nowhere")
    for family, kind, protocol, _, place in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(_left(until))
            connection.connect(place)
            return connection
        except OSError as error:
            connection.close()
            failure = error
    raise failure


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _why(error: Exception) -> str:
    """What went wrong, in words of this machine only: what a service sends never reaches a terminal."""
    if isinstance(error, _Odd):
        return str(error)
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate does not hold: {error.verify_message}"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: see that the service runs there, and that the port is its own"
    if isinstance(error, OSError) and not isinstance(error, http.client.HTTPException):
        return error.strerror or type(error).__name__
    return f"what it sent is no reply ({type(error).__name__})"


def _this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
