"""One HTTP request and its reply, bounded in bytes and in time. A device needs the standard library alone."""

import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from incrowd.errors import ConfigError, ServiceFailed

AGENT = "incrowd"
LONGEST_WAIT = 86_400.0
_SPARE = 65_536  # bytes of a reply beside its body: status, headers, framing


class _Malformed(Exception):
    """A reply breaks the protocol; the message is ours."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of a service. Plain http is for this machine alone: on a network anyone could be the service."""

    secure: bool
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: str, *, plain: bool = False) -> "Address":
        """Read an address; `plain` allows http to any machine."""
        if not all(" " < letter < "\x7f" for letter in url):  # urlsplit would drop line ends
            raise _no_address(url, "give an address in ASCII, as it goes over the network")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise _no_address(url, f"this is no address: {error}") from error
        if parts.scheme not in ("http", "https") or not host:
            raise _no_address(url, "give an address such as https://learn.example.org")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise _no_address(url, "leave out users, queries and fragments")
        secure = parts.scheme == "https"
        if not secure and not plain and not this_machine(host):
            raise _no_address(url, "give https: over http anybody on the way could be the service")
        return cls(secure=secure, host=host, port=port or (443 if secure else 80), path=parts.path.rstrip("/"))

    @property
    def named(self) -> str:
        """The host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.named}{self.path}"


def _no_address(url: str, remedy: str) -> ConfigError:
    return ConfigError(field="server", value=url, remedy=remedy)


def this_machine(host: str) -> bool:
    """Return whether a host is this machine by its name or its address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class Reply(NamedTuple):
    """A service's reply; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def retry_after(self) -> float | None:
        """The wait in seconds that the service asks for, at most `LONGEST_WAIT`."""
        stated = self.headers.get("retry-after", "")
        return min(float(stated[:9]), LONGEST_WAIT) if stated.isascii() and stated.isdigit() else None


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
    """Get a path below an address, or post a body to it. With `skip_ok` a reply with status 200 has no body.

    Guarantee: it ends within `deadline_s`, apart from the system's look-up of the host's name, and reads at most `most`
    bytes of body and 64 KiB beside them. The connection is fresh and its certificate checked. The headers are the same
    for all devices. A malformed reply and a redirection raise `ServiceFailed`; nothing is followed.
    """
    until = time.monotonic() + deadline_s
    sent = {"host": address.named, "user-agent": AGENT, "connection": "close", **(headers or {})}
    if body is not None:
        sent |= {"content-type": "application/octet-stream", "content-length": str(len(body))}
    method = "GET" if body is None else "POST"
    lines = [f"{method} {address.path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
    try:
        with _connected(address, until, context) as connection:
            connection.settimeout(_left(until))
            connection.sendall("\r\n".join(lines).encode("ascii") + (body or b""))
            return _reply(_Bounded(connection, most + _SPARE, until), method, most=most, skip_ok=skip_ok)
    except (_Malformed, OSError, http.client.HTTPException, ValueError) as error:
        raise ServiceFailed(f"{address} failed: {_why(error)}") from error


def _reply(arriving: "_Bounded", method: str, *, most: int, skip_ok: bool) -> Reply:
    with http.client.HTTPResponse(arriving, method=method) as response:  # type: ignore[arg-type]  # it calls makefile alone
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        if 300 <= response.status < 400:
            raise _Malformed("it leads elsewhere, and that is never followed: give the address where it is")
        if skip_ok and response.status == HTTPStatus.OK:
            return Reply(response.status, headers, b"")
        content = response.read(most + 1)
        if len(content) > most:
            raise _Malformed(f"it sent more than the {most} bytes that it should")
        stated = headers.get("content-length", "")
        if (stated.isdigit() and len(content) != int(stated[:20])) or not (stated or content or response.chunked):
            raise _Malformed("it broke off")
        return Reply(response.status, headers, content)


class _Bounded(io.RawIOBase):
    """The bytes of a connection, up to a number and a moment; `HTTPResponse` takes it for a socket."""

    def __init__(self, connection: socket.socket, most: int, until: float) -> None:
        self._connection, self._left, self._until = connection, most, until

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return the file that `http.client` reads."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]  # the one kind of buffer that BufferedReader gives
        if self._left <= 0:
            raise _Malformed("it sent more than it should")
        self._connection.settimeout(_left(self._until))
        count = self._connection.recv_into(buffer[: self._left])
        self._left -= count
        return count


def _connected(address: Address, until: float, context: ssl.SSLContext | None) -> socket.socket:
    """Connect to the first address of the host that answers."""
    failure: OSError = OSError("its name leads nowhere")
    for family, kind, protocol, _, place in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(_left(until))
            connection.connect(place)
        except OSError as error:
            connection.close()
            failure = error
            continue
        if not address.secure:
            return connection
        with connection:  # TLS takes the socket over, or it is closed
            connection.settimeout(_left(until))
            return (context or ssl.create_default_context()).wrap_socket(connection, server_hostname=address.host)
    raise failure


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _why(error: Exception) -> str:
    """Say what failed in words of this machine: the service's words never reach a terminal."""
    match error:
        case _Malformed():
            return str(error)
        case TimeoutError():
            return "it took too long"
        case ssl.SSLCertVerificationError():
            return f"its certificate does not hold: {error.verify_message}"
        case ConnectionRefusedError():
            return "connection refused: see that the service runs there, and that the port is its own"
        case http.client.HTTPException() | ValueError():
            return f"it sent no reply ({type(error).__name__})"
        case _:
            return getattr(error, "strerror", None) or type(error).__name__
