"""Honest devices in number: real draws, real tickets, real noise, over connections that stay open.

One process on one processor has to make more of them than a server can take, so what a device computes is prepared:
noise comes from a long strip, at a random place each time, and a request is put together from three pieces.
"""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from incrowd.drawdiscard import Specification

STRIP = 2**22
"""Numbers of noise: no two places that are drawn in a run have much in common."""

LATEST_S = 60.0
"""How long a server on a busy machine may take until it accepts the first answer."""

_END = b"\r\n\r\n"


@dataclass
class Counted:
    """What came back, and how long it took, in seconds, for answers only."""

    accepted: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    lost: int = 0

    def percentile(self, share: float) -> float:
        """Of the waits, in milliseconds."""
        return 1000 * statistics.quantiles(self.waits, n=1000)[round(1000 * share) - 1] if len(self.waits) > 1 else 0.0


class Devices:
    """So many connections to a server of a specification, each one honest device after the other.

    With a `rate` each device is due at a moment of its own; a wait counts from that moment, so that a server that falls
    behind is not spared the waits of those who queue. Without one each begins when the last reply is there.
    """

    def __init__(
        self, asked: Specification, host: str, port: int, *, connections: int, rate: float | None = None, seed: int = 0
    ) -> None:
        generator = np.random.Generator(np.random.SFC64(seed))
        scale = asked.gamma * asked.mechanism.noise_scale
        self.noise = (scale * generator.laplace(size=STRIP + asked.size)).astype(np.float32)
        self.places = generator.integers(STRIP, size=2**16).tolist()
        self.size, self.bytes = asked.size, 4 * asked.size
        self.head = (
            f"POST /v1/answer HTTP/1.1\r\nhost: load\r\nincrowd-fingerprint: {asked.fingerprint}\r\n"
            f"content-length: {self.bytes}\r\nincrowd-ticket: "
        ).encode()
        self.counted = Counted()
        self.accepted_at: list[float] = []
        self.ended = False
        self.interval = None if rate is None else connections / rate
        self._host, self._port, self._connections = host, port, connections
        self._alive: set[_Connection] = set()

    async def run(self, seconds: float, *, warm_s: float = 1.0, mark: Callable[[], object] = lambda: None) -> Counted:
        """What came back in so many seconds, after the first that was accepted and some to get warm; `mark` is called
        when they begin and when they end.
        """
        loop = asyncio.get_running_loop()
        for number in range(self._connections):
            _, connection = await loop.create_connection(partial(_Connection, self, number), self._host, self._port)
            self._alive.add(connection)
        latest = loop.time() + LATEST_S
        while not self.counted.accepted and loop.time() < latest:
            await asyncio.sleep(0.05)
        await asyncio.sleep(warm_s)
        self.counted = Counted()
        mark()
        await asyncio.sleep(seconds)
        mark()
        found, self.counted = self.counted, Counted()
        self.ended = True
        await asyncio.sleep(0.2)
        for connection in self._alive:
            connection.close()
        return found


class _Connection(asyncio.Protocol):
    """A device at a time; waits are by `perf_counter`, for a loop's own clock may tell milliseconds only."""

    def __init__(self, devices: Devices, number: int) -> None:
        self._devices, self._number = devices, number
        self._loop = asyncio.get_running_loop()
        self._held = bytearray()
        self._need = 0
        self._transport: asyncio.Transport | None = None
        self._begun = self._due = 0.0
        self._answering = False
        self._places = number * 977

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # it is one that writes
        interval = self._devices.interval
        if interval is None:
            self._draw()
        else:
            self._due = time.perf_counter() + interval * self._number / self._devices._connections
            self._loop.call_later(self._due - time.perf_counter(), self._draw)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._devices.ended:
            self._devices.counted.lost += 1

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._held or self._need:
            self._held += data
            if len(self._held) < self._need:
                return
            data, self._held = bytes(self._held), bytearray()
        end = data.find(_END)
        if end < 0:
            self._held = bytearray(data)
            return
        status = int(data[9:12])
        length = self._devices.bytes if status == 200 else _length(data)
        whole = end + 4 + length
        if len(data) < whole:
            self._held, self._need = bytearray(data), whole
            return
        self._need = 0
        self._got(status, data, end + 4)

    def _got(self, status: int, data: bytes, body: int) -> None:
        devices, counted = self._devices, self._devices.counted
        counted.statuses[status] += 1
        if self._answering:
            counted.waits.append(time.perf_counter() - self._begun)
            counted.accepted += status == 200
        if devices.ended:
            return
        if status != 200:
            self._draw()
            return
        place = data.find(b"incrowd-ticket: ") + 16
        ticket = data[place : data.find(b"\r", place)]
        self._places = (self._places + 1) & 0xFFFF
        start = devices.places[self._places]
        row = np.frombuffer(data, "<f4", devices.size, body) + devices.noise[start : start + devices.size]
        sent = b"".join((devices.head, ticket, _END, row.tobytes()))
        if devices.interval is None:
            self._send(sent)
            return
        self._due += devices.interval
        now = time.perf_counter()
        if now >= self._due:
            self._send(sent, self._due)
        else:
            self._loop.call_later(self._due - now, self._send, sent)

    def _draw(self) -> None:
        self._answering = False
        if self._transport is not None and not self._devices.ended:
            self._transport.write(b"GET /v1/draw HTTP/1.1\r\nhost: load\r\n\r\n")

    def _send(self, sent: bytes, due: float | None = None) -> None:
        self._answering = True
        self._begun = time.perf_counter() if due is None else due
        if self._transport is not None and not self._devices.ended:
            self._transport.write(sent)


def _length(data: bytes) -> int:
    place = data.lower().find(b"content-length: ")
    return int(data[place + 16 : data.find(b"\r", place)]) if place >= 0 else 0
