"""HTTP/1.1 on a connection: parsed by httptools, bounded in time and room, answered by the hot path or by ASGI.

It takes the place of uvicorn's own protocol, which waits for clients without end, and makes a task, an event and a
handful of messages of every request.
"""

import asyncio
import hashlib
import os
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

import httptools

from incrowd.service.gateway import AsgiApplication, asgi_reply
from incrowd.service.hot import DeviceRequest, HotPath, Pieces
from incrowd.service.problems import BAD_REQUEST, FAILED, TOO_LARGE, Headers
from incrowd.service.rates import Caller, TrustedProxies, network

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

LOOK_EVERY = 1.0
"""Seconds between two looks at who takes too long."""

OTHER_BODY = 65_536
"""Bytes of the longest body that is let pass unread, where none is asked for."""

HEADERS, HEADER_BYTES = 64, 16_384
"""So many headers, and bytes of them and of the name that is asked for."""

UNFINISHED = 65_536
"""So many bytes may arrive without a header, a part of a body or a request being complete; the parser holds them."""

QUEUE = 32
"""So many requests may wait on a connection for the reply to the first."""

TOGETHER = 65_536
"""Replies of fewer bytes than that go out together, after all requests that have arrived by now."""


@dataclass
class Bounds:
    """How long clients are waited for, and how many of them there may be.

    `patience` is how many seconds a request may take to arrive, from its first byte or the connection's beginning to
    its last byte, and a reply to be read; `idle` how long a connection may lie unused. `most` connections are open at
    once, and `each` of them from one address, unless it is that of one of the `proxies`.
    """

    patience: float = 30.0
    idle: float = 75.0
    most: int = 10_000
    each: int = 1_000
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    open: set["ServiceProtocol"] = field(default_factory=set)
    _by_address: Counter[bytes] = field(default_factory=Counter)
    _key: bytes = field(default_factory=lambda: os.urandom(16), repr=False)

    def admit(self, connection: "ServiceProtocol", peer: str) -> bool:
        """Whether one more may be open."""
        if len(self.open) >= self.most:
            return False
        if not self.proxies.trusted(peer):
            place = hashlib.blake2b(network(peer), digest_size=8, key=self._key).digest()
            if self._by_address[place] >= self.each:
                return False
            connection.place = place
            self._by_address[place] += 1
        self.open.add(connection)
        return True

    def gone(self, connection: "ServiceProtocol") -> None:
        """One is no longer open."""
        if connection in self.open:
            self.open.discard(connection)
            if connection.place:
                self._by_address[connection.place] -= 1
                if not self._by_address[connection.place]:
                    del self._by_address[connection.place]

    async def sweep(self) -> None:
        """Ends the connections of those who take too long, for ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            now = asyncio.get_running_loop().time()
            for connection in list(self.open):
                connection.hurry(now)


@dataclass(frozen=True)
class Ways:
    """What answers: the hot path where it takes a request, the application otherwise; and within which bounds.

    `at_once` says that the hot path never waits for anything, so that it needs no task.
    """

    hot: HotPath
    rest: AsgiApplication
    bounds: Bounds
    at_once: bool
    due: list["ServiceProtocol"] = field(default_factory=list)

    def send(self) -> None:
        """Let go of what is to go out together."""
        due = self.due.copy()
        self.due.clear()
        for connection in due:
            connection.flush()


class ServiceProtocol(asyncio.Protocol):
    """A connection of the service; uvicorn makes them.

    Guarantee: a client that sends nothing, half a request or a request byte by byte, or that does not read its reply,
    is cut off after the patience. A request is answered when all of it is there, one after the other in their order;
    what is too large is refused before it is read. Whatever arrives, memory is bounded, and nothing of it is logged.

    Edge cases: what is no HTTP gets status 400, and the connection ends. Nothing is upgraded.
    """

    ways: ClassVar[Ways]

    def __init__(
        self,
        config: "Config",
        server_state: "ServerState",
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.place = b""
        self._state = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._parser = httptools.HttpRequestParser(self)
        self._caller = Caller("")
        self._ending = False
        self._full = False
        self._since: float | None = None
        self._quiet: float | None = None
        self._unread: float | None = None
        self._queue: deque[tuple[DeviceRequest, bytes | Pieces, bool]] = deque()
        self._replies: list[bytes | memoryview] = []
        self._replied = 0
        self._task: asyncio.Task[None] | None = None
        self._url = b""
        self._headers: Headers = []
        self._known: dict[bytes, bytes] = {}
        self._held = 0
        self._unfinished = 0
        self._body: list[bytes] = []
        self._refused: Pieces | None = None
        self._closes = False
        self._asked: DeviceRequest = _NOTHING

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's do not inherit from it
        peer = transport.get_extra_info("peername")
        self._caller = Caller(peer[0] if isinstance(peer, tuple) else "")
        self._since = self._loop.time()
        if self.ways.bounds.admit(self, self._caller.address):
            self._state.connections.add(self)  # type: ignore[arg-type]  # of these uvicorn needs `shutdown` only
        else:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._ending = True
        self.ways.bounds.gone(self)
        self._state.connections.discard(self)
        self._queue.clear()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._quiet = None
        self._unfinished += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            self._end(FAILED.replied([], close=True))
            raise
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._end(self.ways.hot.refusal(BAD_REQUEST, close=True))
        if self._unfinished > UNFINISHED and not self._ending:
            self._end(self.ways.hot.refusal(BAD_REQUEST, close=True))
        if self._held + len(self._url) > HEADER_BYTES and not self._ending:  # headers that do not end
            self._end(self.ways.hot.refusal(BAD_REQUEST, close=True))
        self._next()

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`: who has sent all may still read."""
        return bool(self._queue or self._task)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._full = True

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._full = False
        self._next()

    def shutdown(self) -> None:
        """Take no more requests; replies that are due go out first. uvicorn calls it."""
        self._ending = True
        if not self._queue and self._task is None:
            self.flush()
            self._transport.close()

    def flush(self) -> None:
        """Send the replies that are held."""
        if self._replies and not self._transport.is_closing():
            self._transport.writelines(self._replies)
        self._replies, self._replied = [], 0

    def hurry(self, now: float) -> None:
        """End the connection where the client has taken too long."""
        bounds = self.ways.bounds
        if self._transport.get_write_buffer_size():
            self._unread = self._unread or now
        else:
            self._unread = None
        slow = (self._since, bounds.patience), (self._unread, bounds.patience), (self._quiet, bounds.idle)
        if any(since is not None and now - since > most for since, most in slow):
            self._transport.abort()

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._since is None:
            self._since = self._loop.time()
        self._fresh()

    def on_url(self, url: bytes) -> None:
        """A part of the name that is asked for."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        name = name.lower()
        self._unfinished = 0
        self._headers.append((name, value))
        self._held += len(name) + len(value)
        if name in _KEPT:
            self._known[name] = value

    def on_headers_complete(self) -> None:
        """All but the body is there."""
        known = self._known
        if self._held + len(self._url) > HEADER_BYTES or len(self._headers) > HEADERS:
            self._end(self.ways.hot.refusal(BAD_REQUEST, close=True))
            return
        self._asked = asked = DeviceRequest(
            self._parser.get_method(),
            self._url.partition(b"?")[0],
            self._headers,
            known.get(b"content-length"),
            b"transfer-encoding" in known,
            known.get(b"incrowd-ticket"),
            known.get(b"incrowd-fingerprint"),
        )
        hot = self.ways.hot
        problem = hot.early(asked, self._caller)
        if problem is None and not hot.due(asked) and not self._small(asked):
            problem = TOO_LARGE
        if problem is not None:
            self._closes = not hot.due(asked)
            self._refused = hot.refusal(problem, close=self._closes)
            if asked.method == b"HEAD":
                self._refused = self._refused[:1]  # a body would be taken for the next reply
            if self._closes:
                self._end(self._refused)
        elif known.get(b"expect", b"").lower() == b"100-continue" and asked.length not in (None, b"0"):
            self.flush()
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._unfinished = 0
        if self._refused is None and not self._ending:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """All of the request is there."""
        self._since = None
        self._unfinished = 0
        if self._ending:
            return
        closes = self._closes or not self._parser.should_keep_alive()
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._queue.append((self._asked, body if self._refused is None else self._refused, closes))
        self._body = []
        if len(self._queue) > QUEUE:
            self._transport.pause_reading()

    def _fresh(self) -> None:
        self._url = b""
        self._headers = []
        self._known = {}
        self._held = 0
        self._body = []
        self._refused = None
        self._closes = False

    def _small(self, asked: DeviceRequest) -> bool:
        """Whether a body that nobody asked for is short enough to be let pass."""
        length = (asked.length or b"0").decode("latin-1")
        return not asked.chunked and length.isdigit() and int(length[:20]) <= OTHER_BODY

    def _next(self) -> None:
        """Answer what waits, in its order, until something takes a while or the client has too much to read."""
        while self._queue and self._task is None and not self._full:
            asked, body, closes = self._queue.popleft()
            if not isinstance(body, bytes):
                self._reply(body, closes=closes)
            elif self.ways.at_once and self.ways.hot.takes(asked):
                pieces = None
                try:
                    pieces = _finished(self.ways.hot, asked, body)
                finally:
                    self._reply(pieces or FAILED.replied([], close=True), closes=closes or pieces is None)
            else:
                self._task = self._loop.create_task(self._later(asked, body, closes=closes))
                self._state.tasks.add(self._task)
                self._task.add_done_callback(self._state.tasks.discard)
        if not self._queue and not self._ending:
            self._transport.resume_reading()

    async def _later(self, asked: DeviceRequest, body: bytes, *, closes: bool) -> None:
        hot = self.ways.hot
        pieces: Pieces = FAILED.replied([], close=True)
        ends = True
        try:
            if hot.takes(asked):
                pieces, ends = await hot.reply(asked, body), closes
            else:
                pieces, ends = await asgi_reply(self.ways.rest, asked, closes=closes), closes
        finally:  # an error goes on from here to the log, and the client hears that there was one
            self._task = None
            self._reply(pieces, closes=ends)
        self._next()

    def _reply(self, pieces: Pieces, *, closes: bool) -> None:
        if self._transport.is_closing():
            return
        self._hold(pieces)
        self._state.total_requests += 1
        if closes or (self._ending and not self._queue):
            self._ending = True
            self.flush()
            self._transport.close()
        else:
            self._quiet = self._loop.time()

    def _hold(self, pieces: Pieces) -> None:
        """Send these after what has arrived meanwhile is answered, too: one device that wakes up wakes the others."""
        if not self._replies:
            if not self.ways.due:
                self._loop.call_soon(self.ways.send)
            self.ways.due.append(self)
        self._replies += pieces
        self._replied += sum(map(len, pieces))
        if self._replied >= TOGETHER:
            self.flush()

    def _end(self, pieces: Pieces) -> None:
        """The last reply; what is asked after it is not looked at."""
        self._ending = True
        self._queue.clear()
        if not self._transport.is_closing():
            self.flush()
            self._transport.writelines(pieces)
            self._transport.close()


_KEPT = frozenset({b"content-length", b"transfer-encoding", b"incrowd-ticket", b"incrowd-fingerprint", b"expect"})
_NOTHING = DeviceRequest(b"", b"", [], None, chunked=False, ticket=None, fingerprint=None)


def _finished(hot: HotPath, asked: DeviceRequest, body: bytes) -> Pieces | None:
    """A reply that waits for nothing: a coroutine that runs to its end without a task; None where it has waited."""
    coroutine = hot.reply(asked, body)
    try:
        coroutine.send(None)
    except StopIteration as ended:
        pieces: Pieces = ended.value
        return pieces
    coroutine.close()
    return None


def protocol(ways: Ways) -> type[ServiceProtocol]:
    """The protocol of one application, as a class: that is what uvicorn takes."""
    return type("ServiceProtocol", (ServiceProtocol,), {"ways": ways})
