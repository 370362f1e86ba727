"""Attack: a client who sends requests that are never finished, or bodies that nobody asked for, to fill the memory."""

import asyncio
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest

from incrowd.drawdiscard import Specification
from incrowd.drawdiscard.desk import Reason
from tests.drawdiscard.mail import KEYS, asked
from tests.service.running import Running, read_reply, request, run, service

pytest.importorskip("httptools")

MEGABYTES = 24
POST = b"POST /v1/answer HTTP/1.1\r\nhost: x\r\n"
DRAW = b"GET /v1/draw HTTP/1.1\r\nhost: x\r\n"

ENDLESS = {
    "a body for a draw": DRAW + b"content-length: 900000000\r\n\r\n",
    "a body for a draw in chunks": DRAW + b"transfer-encoding: chunked\r\n\r\nfffffff\r\n",
    "a header's value": DRAW + b"x: ",
    "a header's name": DRAW + b"x",
    "the name that is asked for": b"GET /",
    "what comes after the chunks": DRAW + b"transfer-encoding: chunked\r\n\r\n0\r\nx: ",
    "an answer in chunks": POST + b"transfer-encoding: chunked\r\n\r\nfffffff\r\n",
}


async def poured(running: Running, begun: bytes) -> int:
    """How many megabytes of letters the service takes after this."""
    _, writer = await asyncio.open_connection(running.host, running.port)
    writer.write(begun)
    taken = 0
    try:
        while taken < MEGABYTES:
            writer.write(b"a" * 2**20)
            await asyncio.wait_for(writer.drain(), 10)
            await asyncio.sleep(0.01)  # its end of the connection shows at the next write
            taken += 1
    except (ConnectionError, RuntimeError):  # uvloop says the latter of a connection that has ended
        pass
    writer.close()
    return taken


def resident() -> float:
    """Megabytes of this process's memory, at most so far."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found
    return int(found[1]) / 1024


@pytest.mark.parametrize("what", ENDLESS)
def test_what_never_ends_is_cut_off(what: str) -> None:
    async def work() -> None:
        async with service(asked()) as running:
            await running.ask("/v1/draw")
            before = resident()
            assert await poured(running, ENDLESS[what]) < MEGABYTES
            assert resident() - before < MEGABYTES / 2
            assert (await running.ask("/v1/draw")).status == 200

    run(work)


def test_what_is_as_long_as_it_may_be_is_read() -> None:
    """The control: a body of the right length, and headers just within the limit, in pieces."""

    async def work() -> None:
        async with service(asked()) as running:
            drawn = await running.ask("/v1/draw")
            long = {"x-long": "a" * 15_000}
            names = ("incrowd-fingerprint", "incrowd-ticket")
            headers = long | {name: drawn.headers[name] for name in names}
            sent = request("/v1/answer", method="POST", headers=headers, body=running.honest(drawn, seed=1))
            reader, writer = await asyncio.open_connection(running.host, running.port)
            for place in range(0, len(sent), 1_000):
                writer.write(sent[place : place + 1_000])
                await asyncio.sleep(0.001)
            got = await read_reply(reader)
            writer.close()
            assert got.headers["incrowd-outcome"] == Reason.ACCEPTED.name.lower()

    run(work)


def test_who_asks_for_averages_does_not_keep_the_service_busy() -> None:
    """What takes long is done once a second for all who ask; the control is one writing of so many weights."""
    fields = {"opened": {"type": "boolean"}, "about": {"type": "hashed", "buckets": 60_000}}
    large = Specification.from_formula("opened ~ about", **{**KEYS, "fields": fields})

    async def work() -> None:
        async with service(large) as running:
            await running.ask("/v1/draw")
            took, weights = [], np.random.Generator(np.random.SFC64(1)).normal(size=large.size)
            for asks in (1, 20):
                begun = time.process_time()
                got = [await running.ask("/v1/average") for _ in range(asks)]
                took.append(time.process_time() - begun)
                assert {reply.status for reply in got} == {200}
            written = time.process_time()
            json.dumps(weights.tolist())
            assert took[1] < 10 * (time.process_time() - written)

    run(work)
