"""A service that runs in a test's own event loop, and a client that sends what it is told to, byte for byte."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import uvloop

from incrowd.drawdiscard import Specification
from incrowd.service.admission import Admission
from incrowd.service.serving import answering, server
from incrowd.service.store import EmbeddedStore, PoolStore
from tests.drawdiscard.mail import noised


@dataclass(frozen=True)
class Got:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def reason(self) -> str:
        said: str = json.loads(self.body)["reason"]
        return said

    @property
    def row(self) -> "np.ndarray[Any, np.dtype[np.float32]]":
        return np.frombuffer(self.body, "<f4")


@dataclass
class Running:
    """A service that runs."""

    host: str
    port: int
    store: PoolStore

    async def raw(self, sent: bytes, *, patience: float = 20.0) -> Got:
        """The reply to these bytes, on a connection of their own."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(sent)
            return await asyncio.wait_for(read_reply(reader), patience)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def ask(
        self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Got:
        return await self.raw(request(path, method=method, headers=headers, body=body))

    async def answer(self, body: bytes, drawn: Got, **changes: str) -> Got:
        """Send back something that was drawn."""
        names = ("incrowd-fingerprint", "incrowd-ticket")
        headers = {name: drawn.headers[name] for name in names} | {
            name.replace("_", "-"): value for name, value in changes.items()
        }
        return await self.ask("/v1/answer", method="POST", headers=headers, body=body)

    def honest(self, drawn: Got, *, seed: int) -> bytes:
        """What an honest device without examples would send."""
        stated, gamma = self.store.desk.specification, float(drawn.headers["incrowd-gamma"])
        return noised(stated, drawn.row, gamma, seed=seed).astype("<f4").tobytes()


def request(
    path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> bytes:
    length = {} if body is None else {"content-length": str(len(body))}
    lines = [
        f"{method} {path} HTTP/1.1",
        "host: here",
        *(f"{k}: {v}" for k, v in (length | dict(headers or {})).items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


async def read_reply(reader: asyncio.StreamReader, *, head: bool = False) -> Got:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])}
    body = b"" if head else await reader.readexactly(int(headers.get("content-length", "0")))
    return Got(int(lines[0].split()[1]), headers, body)


@asynccontextmanager
async def service(
    specification: Specification | PoolStore, *, admission: Admission | None = None
) -> AsyncIterator[Running]:
    store = EmbeddedStore(specification) if isinstance(specification, Specification) else specification
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    host, port = listener.getsockname()
    async with answering(store, admission=admission) as application:
        running = server(application)
        task = asyncio.create_task(running.serve(sockets=[listener]))
        try:
            yield Running(host, port, store)
        finally:
            running.should_exit = True
            await task


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine on the loop that a service runs on."""

    async def main() -> None:
        await work()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
