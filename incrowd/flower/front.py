"""The only thing that listens to the network: it lets enrolled parties through to the Fleet API, and that is all.

Flower's SuperLink has one port for all its interfaces, and asks for a key at one of them alone: who reaches it lists
the runs, starts one, and takes the contributions that parties sent. So it stays on loopback, behind this front, which

- speaks TLS, and of HTTP only POST with a length, to the paths in `PATHS`;
- looks at the key and the signed time of every request, as Flower does, before it reads what is in it;
- bounds how long a request may be, how many and how much a key may send in a second, how many connections there are,
  and how long each may take for what it does.

It is a process of its own, so that whoever keeps it busy does not keep the server from its work.
"""

import asyncio
import base64
import binascii
import datetime
import json
import socket
import ssl
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import h11
import httpx
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from incrowd._validate import count, positive

PATHS = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "pull-object",
        "confirm-message-received",
        "push-messages",
        "push-object",
        # what a stock SuperNode asks for beside, and a party of ours does not
        "get-run",
        "get-fab",
    )
)
KEY_HEADER, TIME_HEADER, SIGNATURE_HEADER = "flwr-public-key", "flwr-timestamp", "flwr-signature"
OLDEST, NEWEST = 305.0, -5.0
"""How many seconds ago a request may have been signed: Flower's own bounds, and its allowance for clocks."""

_FORWARDED = ("content-type", "accept", "flwr-")
_LONGEST_HEAD = 16 * 2**10
_READ = 2**16


@dataclass(frozen=True)
class Limits:
    """What the front lets through at most.

    Guarantee: each is kept for one key whatever others do: a stranger has no part in what enrolled keys may use, but
    for the connections; at most half of those are for whoever has not shown a key.

    Edge cases: a value that is not above 0 is a `ConfigError`.
    """

    request_bytes: int = 6 * 2**20
    """Of one request: a piece of a message, and its head."""
    requests_per_second: float = 40.0
    """Of one key, in the long run."""
    burst_requests: int = 400
    """Of one key, at once."""
    bytes_per_second: float = 8 * 2.0**20
    """Of one key, in the long run."""
    burst_bytes: int = 256 * 2**20
    """Of one key, at once."""
    connections: int = 512
    """At the same time."""
    connections_per_address: int = 64
    """At the same time, from one address: parties behind one gateway share one."""
    requests_at_once: int = 8
    """Of one key, that are being read or answered."""
    seconds_to_begin: float = 10.0
    """To agree on TLS, and from there to the first request with a key."""
    seconds_to_send: float = 60.0
    """To send one request, once it has begun."""
    seconds_idle: float = 120.0
    """Between two requests of a connection that has shown a key."""

    def __post_init__(self) -> None:
        whole = {each.name: getattr(self, each.name) for each in fields(self) if each.type is int}
        count(**whole)
        positive(**{each.name: getattr(self, each.name) for each in fields(self) if each.type is float})

    def fitting(self, longest: int) -> "Limits":
        """The same, and of answers of so many bytes at most four at once, and one a second in the long run.

        Guarantee: what a key sends beyond that is refused before it is read, in however many pieces it comes.
        """
        return replace(
            self,
            burst_bytes=min(self.burst_bytes, 4 * longest + 2**20),
            bytes_per_second=min(self.bytes_per_second, longest + 2.0**16),
        )

    def text(self) -> str:
        """As `main` reads them."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class FrontState:
    """What the front is told while it runs, by a file that it looks at twice a second."""

    upstream: int
    """The port of the SuperLink on loopback."""
    keys: tuple[str, ...]
    """The enrolled keys, in PEM form."""

    def text(self) -> str:
        """The file."""
        return json.dumps(asdict(self))


class _Refused(Exception):
    """A request that goes no further, with the status that it gets."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Bucket:
    """So much in a second in the long run, and so much at once."""

    def __init__(self, rate: float, most: float) -> None:
        self._rate, self._most = rate, most
        self._left, self._seen = most, time.monotonic()

    def take(self, amount: float) -> bool:
        """Take so much, where it is there."""
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._seen) * self._rate)
        self._seen = now
        if amount > self._left:
            return False
        self._left -= amount
        return True


class _Key:
    """What is kept of an enrolled key."""

    def __init__(self, pem: str, limits: Limits) -> None:
        key = serialization.load_pem_public_key(pem.encode())
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise TypeError("not a key of a party")
        self.key = key
        self.requests = Bucket(limits.requests_per_second, limits.burst_requests)
        self.bytes = Bucket(limits.bytes_per_second, limits.burst_bytes)
        self.now = 0


class Front:
    """The server behind `main`, for one event loop."""

    def __init__(self, limits: Limits, state_file: Path, trust: ssl.SSLContext, inside: ssl.SSLContext) -> None:
        self._limits = limits
        self._state_file = state_file
        self._trust = trust
        self._inside = inside
        self._keys: dict[bytes, _Key] = {}
        self._upstream = ""
        self._stamp = 0
        self._open = 0
        self._strangers = 0
        self._addresses: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._client = httpx.AsyncClient(verify=inside, timeout=60.0, trust_env=False)
        self._look()

    async def serve(self, listening: socket.socket) -> None:
        """Take connections until cancelled."""
        loop = asyncio.get_running_loop()
        watching = asyncio.create_task(self._watch())
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(listening)
                except OSError:  # too many files are open: those that are will end
                    await asyncio.sleep(0.1)
                    continue
                if self._full(address[0]):
                    connection.close()
                    continue
                self._open += 1
                self._strangers += 1
                self._addresses[address[0]] += 1
                task = asyncio.create_task(self._connection(connection, address[0]))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            watching.cancel()
            for task in self._tasks:
                task.cancel()
            await self._client.aclose()

    def _full(self, address: str) -> bool:
        limits = self._limits
        return (
            self._open >= limits.connections
            or self._strangers >= max(1, limits.connections // 2)
            or self._addresses[address] >= limits.connections_per_address
        )

    async def _connection(self, connection: socket.socket, address: str) -> None:
        """One connection, from its first byte to its last."""
        visit = _Visit()
        try:
            await self._visit(connection, visit)
        except (OSError, TimeoutError, ssl.SSLError, h11.ProtocolError, EOFError):
            pass  # whoever it was has gone, was too slow, or does not speak HTTP
        finally:
            connection.close()
            self._open -= 1
            self._strangers -= not visit.known
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]

    async def _visit(self, connection: socket.socket, visit: "_Visit") -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_READ, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        begin = loop.time()
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._trust, ssl_handshake_timeout=self._limits.seconds_to_begin
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            while True:
                wait = self._limits.seconds_idle if visit.known else begin + self._limits.seconds_to_begin - loop.time()
                async with asyncio.timeout(wait):
                    request = await visit.head(reader)
                if request is None or not await self._answer(request, visit, reader, writer):
                    return
        finally:
            transport.abort()

    async def _answer(
        self, request: h11.Request, visit: "_Visit", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; whether the connection may be used again."""
        try:
            key, length = self._judge(request)
            if not visit.known:
                visit.known = True
                self._strangers -= 1
            key.now += 1
            try:
                async with asyncio.timeout(self._limits.seconds_to_send):
                    body = await visit.body(reader, length)
                response = await self._forward(request, body)
            finally:
                key.now -= 1
        except _Refused as refused:
            words = str(refused).encode()
            response = httpx.Response(refused.status, content=words, headers={"content-type": "text/plain"})
        async with asyncio.timeout(self._limits.seconds_to_send):
            return await visit.reply(response, writer)

    def _judge(self, request: h11.Request) -> tuple[_Key, int]:
        """Who sends a request, and how long it is; refused before a byte of it is read."""
        headers: dict[str, list[str]] = {}
        for name, value in request.headers:
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        if request.target.decode("latin-1") not in PATHS:
            raise _Refused(404, "there is nothing here")
        if request.method != b"POST":
            raise _Refused(405, "only POST")
        key = self._known(headers)
        length = headers.get("content-length", [""])
        if "transfer-encoding" in headers or len(length) != 1 or not (length[0].isascii() and length[0].isdigit()):
            raise _Refused(411, "say how long it is")
        if (size := int(length[0][:20])) > self._limits.request_bytes:
            raise _Refused(413, f"at most {self._limits.request_bytes} bytes")
        busy = key.now >= self._limits.requests_at_once
        if busy or not key.requests.take(1) or not key.bytes.take(size):
            raise _Refused(429, "too much at once: wait")
        return key, size

    def _known(self, headers: Mapping[str, Sequence[str]]) -> _Key:
        try:
            (pem,), (when,), (signature,) = (headers.get(n, []) for n in (KEY_HEADER, TIME_HEADER, SIGNATURE_HEADER))
            key = self._keys[base64.b64decode(pem, validate=True)]
            signed = base64.b64decode(signature, validate=True)
            key.key.verify(signed, when.encode("ascii"), ec.ECDSA(hashes.SHA256()))
            age = (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(when)).total_seconds()
        except (KeyError, ValueError, TypeError, binascii.Error, InvalidSignature):
            raise _Refused(401, "not an enrolled key") from None
        if not NEWEST < age < OLDEST:
            raise _Refused(401, f"signed {age:.0f} seconds ago by the clock here: set the clocks")
        return key

    async def _forward(self, request: h11.Request, body: bytes) -> httpx.Response:
        names = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers)
        headers = [(name, value) for name, value in names if name.startswith(_FORWARDED)]
        target = self._upstream + request.target.decode("latin-1")
        try:
            response = await self._client.post(target, content=body, headers=headers)
        except httpx.HTTPError:
            raise _Refused(503, "the server is starting: wait") from None
        kept = [(name, value) for name, value in response.headers.items() if name.startswith(_FORWARDED)]
        return httpx.Response(response.status_code, headers=kept, content=response.content)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            with suppress(OSError, ValueError, TypeError, KeyError):  # it is about to be written again
                self._look()

    def _look(self) -> None:
        """Read the state where it has changed. What is kept of a key that stays is kept."""
        stamp = self._state_file.stat().st_mtime_ns
        if stamp == self._stamp:
            return
        state = json.loads(self._state_file.read_bytes())
        new = {pem.encode(): self._keys.get(pem.encode()) or _Key(pem, self._limits) for pem in state["keys"]}
        self._keys, self._upstream, self._stamp = new, f"https://127.0.0.1:{state['upstream']}", stamp


class _Visit:
    """What one connection says and hears, as HTTP/1.1."""

    def __init__(self) -> None:
        self.known = False
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_LONGEST_HEAD)

    async def head(self, reader: asyncio.StreamReader) -> h11.Request | None:
        """The next request without its body; None where none comes."""
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                return None
            self._http.receive_data(await reader.read(_READ))

    async def body(self, reader: asyncio.StreamReader, length: int) -> bytes:
        """The body of the request, of a length that was allowed."""
        parts: list[bytes] = []
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Data):
                parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                return b"".join(parts)
            elif event is h11.NEED_DATA:
                self._http.receive_data(await reader.read(_READ))
            else:
                raise EOFError(f"less than {length} bytes came")

    async def reply(self, response: httpx.Response, writer: asyncio.StreamWriter) -> bool:
        """Send a response; whether the connection can be used again."""
        headers = [(name, value) for name, value in response.headers.items() if name != "content-length"]
        headers.append(("content-length", str(len(response.content))))
        if self._http.their_state is not h11.DONE:
            headers.append(("connection", "close"))
        for event in (
            h11.Response(status_code=response.status_code, headers=headers),
            h11.Data(data=response.content),
            h11.EndOfMessage(),
        ):
            writer.write(self._http.send(event) or b"")
        await writer.drain()
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            writer.close()
            await writer.wait_closed()
            return False
        self._http.start_next_cycle()
        return True


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections at an address, also one that was left a moment ago."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=256)
    listening.settimeout(0.0)
    return listening


def main(arguments: list[str]) -> None:
    """Serve: HOST PORT CERTIFICATE KEY INSIDE STATE LIMITS, the last one in JSON."""
    host, port, certificate, key, inside, state, limits = arguments
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust.minimum_version = ssl.TLSVersion.TLSv1_2
    trust.load_cert_chain(certificate, key)
    front = Front(Limits(**json.loads(limits)), Path(state), trust, ssl.create_default_context(cafile=inside))
    asyncio.run(front.serve(listen(host, int(port))))


if __name__ == "__main__":
    main(sys.argv[1:])
