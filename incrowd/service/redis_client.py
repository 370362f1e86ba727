"""A client of Redis that sends whatever waits at the same moment in one piece.

An update is one command, and hundreds wait at once: packing them together takes a third of the processor time that a
connection for each takes (docs/service.md has the figures).
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis

from incrowd.errors import ConfigError, IncrowdError
from incrowd.service.store import StoreAway

WAITING = 10_000
"""So many commands may wait for their replies."""

Command = tuple[str | bytes | int, ...]


@dataclass(frozen=True)
class RedisPlace:
    """Where a Redis listens: what a URL says."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str | None = None
    database: int = 0
    user: str | None = None
    password: str | None = None
    tls: bool = False

    @classmethod
    def of(cls, url: str) -> "RedisPlace":
        """The place of ``redis://``, ``rediss://`` (TLS) or ``unix://``: [user:password@]host[:port][/database].

        A database of a socket is ``unix:///path?db=1``.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss", "unix"):
            raise ConfigError(field="store", value=parts.scheme, remedy="give memory, redis://, rediss:// or unix://")
        local = parts.scheme == "unix"
        number = parse_qs(parts.query).get("db", ["0"])[0] if local else parts.path.strip("/") or "0"
        try:
            database, port = int(number), parts.port or 6379
        except ValueError as error:
            raise ConfigError(field="store", value=number, remedy="a database is a whole number") from error
        return cls(
            host=parts.hostname or "127.0.0.1",
            port=port,
            path=unquote(parts.path) if local else None,
            database=database,
            user=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            tls=parts.scheme == "rediss",
        )

    def __repr__(self) -> str:
        where = self.path or f"{self.host}:{self.port}"
        return f"RedisPlace({where}, database {self.database})"


class RedisRefused(Exception):
    """Redis answered with an error."""


class _Wire(asyncio.Protocol):
    """One connection: commands go out together, replies come back in their order."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._out: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.lost = False
        self.since = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's do not inherit from it

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        reader, waiting = self._reader, self._waiting
        self.since = self._loop.time()
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                future = waiting.popleft()
                if not future.done():
                    if isinstance(reply, hiredis.ReplyError):
                        future.set_exception(RedisRefused(str(reply)))
                    else:
                        future.set_result(reply)
        except (hiredis.ProtocolError, IndexError):
            self.drop()

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.lost = True
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(StoreAway("the connection to Redis was lost"))

    def send(self, command: Command) -> "asyncio.Future[Any]":
        """The reply to a command, when it comes."""
        future = self._loop.create_future()
        if self.lost or self._transport is None:
            future.set_exception(StoreAway("the connection to Redis was lost"))
            return future
        if not self._out:
            self._loop.call_soon(self._flush)
        if not self._waiting:
            self.since = self._loop.time()
        self._waiting.append(future)
        self._out.append(hiredis.pack_command(command))  # type: ignore[arg-type]  # it takes any number of them
        return future

    def drop(self) -> None:
        """Let go of the connection; who waits is told."""
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(None)

    @property
    def waits(self) -> int:
        """How many replies are to come."""
        return len(self._waiting)

    def stuck(self, patience: float) -> bool:
        """Whether a reply is due and nothing has come for so many seconds."""
        return bool(self._waiting) and self._loop.time() - self.since > patience

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and not self.lost:
            self._transport.writelines(out)


Prepare = Callable[["RedisClient"], Awaitable[None]]


class RedisClient:
    """A connection to Redis that comes back by itself.

    Guarantee: a command is sent once, never again by itself: whether it was done is unknown where `StoreAway` is
    raised. Nothing waits longer than about `patience` seconds. When the connection comes back, `prepare` runs before
    anything else is sent.

    Edge cases: more than `WAITING` commands at once are `StoreAway`, at once. What Redis refuses is `RedisRefused`; a
    Redis that is loading, full, or may not write is away.
    """

    def __init__(self, place: RedisPlace, *, prepare: Prepare, patience: float = 3.0) -> None:
        self._place, self._prepare, self._patience = place, prepare, patience
        self._line: _Wire | None = None
        self._ready = False
        self._watch: asyncio.Task[None] | None = None
        self.trouble: str | None = None

    async def open(self) -> None:
        """Connect, and see to it that this goes on."""
        await self._connect()
        self._watch = asyncio.create_task(self._keep_connected())

    async def call(self, *command: str | bytes | int) -> Any:
        """The reply to a command."""
        line = self._line
        if line is None or not self._ready or line.lost:
            raise StoreAway(self.trouble or "there is no connection to Redis")
        return await self._reply(line, command)

    async def call_first(self, *command: str | bytes | int) -> Any:
        """As `call`, while the connection is being prepared."""
        if self._line is None:
            raise StoreAway("there is no connection to Redis")
        return await self._reply(self._line, command)

    def reconnect(self) -> None:
        """Begin anew: what was prepared is no longer there."""
        if self._line is not None:
            self._line.drop()

    async def close(self) -> None:
        """Let go."""
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        self._ready = False
        if self._line is not None:
            self._line.drop()

    async def _reply(self, line: _Wire, command: Command) -> Any:
        if line.waits > WAITING:
            raise StoreAway("Redis is too slow: too much waits for it")
        try:
            return await line.send(command)
        except RedisRefused as error:
            if str(error).partition(" ")[0] in _AWAY:
                raise StoreAway(f"Redis does not take anything: {error}") from error
            raise

    async def _connect(self) -> None:
        self._ready = False
        place, loop = self._place, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._patience):
                if place.path is not None:
                    _, line = await loop.create_unix_connection(_Wire, place.path)
                else:
                    context = ssl.create_default_context() if place.tls else None
                    _, line = await loop.create_connection(_Wire, place.host, place.port, ssl=context)
                self._line = line
                if place.password is not None:
                    await line.send(("AUTH", *([place.user] if place.user else []), place.password))
                if place.database:
                    await line.send(("SELECT", place.database))
                await self._prepare(self)
        except (OSError, TimeoutError) as error:
            self._forget()
            where = place.path or f"{place.host}:{place.port}"
            why = f"{str(error) or 'no reply in time'}: start it, or give its address as --store"
            raise StoreAway(f"Redis does not answer at {where}: {why}") from error
        except RedisRefused as error:
            self._forget()
            raise StoreAway(f"Redis refuses: {error}") from error
        except IncrowdError:
            self._forget()
            raise
        self._ready, self.trouble = True, None

    def _forget(self) -> None:
        if self._line is not None:
            self._line.drop()
            self._line = None

    async def _keep_connected(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            if self._line is not None and self._line.stuck(self._patience):
                self._line.drop()
            if self._line is None or self._line.lost:
                try:
                    await self._connect()
                except IncrowdError as error:
                    self.trouble = str(error)


_LOOK_EVERY = 0.2
_AWAY = frozenset({"LOADING", "READONLY", "OOM", "MISCONF", "MASTERDOWN", "BUSY", "CLUSTERDOWN", "NOREPLICAS"})
