"""The service against requests made from its own description: nothing undescribed, no 500, no growth."""

import asyncio
import json

import pytest

from incrowd.service.store import EmbeddedStore
from incrowd.service.tending import resident
from tests.drawdiscard.mail import asked
from tests.service.fuzzer import Fuzzer
from tests.service.running import Got, Running, read_reply, run, service

BATCH = 50


class Line:
    """A connection that is made anew when it has ended."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, sent: bytes, *, head: bool) -> Got | None:
        """The reply; None where the connection ended instead."""
        if self._streams is None or self._streams[0].at_eof() or self._streams[1].is_closing():
            self.close()
            self._streams = await asyncio.open_connection(self._running.host, self._running.port)
        reader, writer = self._streams
        try:
            writer.write(sent)
            got = await asyncio.wait_for(read_reply(reader, head=head), 20)
            while got.status == 100:
                got = await asyncio.wait_for(read_reply(reader, head=head), 20)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.close()
            return None
        if got.headers.get("connection") == "close":
            self.close()
        return got

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def fuzz(running: Running, fuzzer: Fuzzer, count: int) -> None:
    """So many requests, each on a connection that may have had others before."""
    line = Line(running)
    for _ in range(0, count, BATCH):
        drawn = await running.ask("/v1/draw")
        for path, method, sent in fuzzer.requests(BATCH, drawn.headers, drawn.body):
            got = await line.ask(sent, head=method == "HEAD")
            if got is None:
                fuzzer.statuses[0] += 1  # ended without a word, as what is no HTTP may be
            else:
                fuzzer.check(path, method, got.status, got.headers, got.body)
    line.close()
    await asyncio.sleep(0)


def fuzzed(count: int, *, seed: int) -> tuple[Fuzzer, list[int]]:
    """What was found, and the memory after each tenth."""
    found: list[Fuzzer] = []
    memory: list[int] = []

    async def main() -> None:
        async with service(EmbeddedStore(asked(), history=500)) as running:
            fuzzer = Fuzzer(json.loads((await running.ask("/openapi.json")).body), seed)
            for _ in range(10):
                await fuzz(running, fuzzer, count // 10)
                memory.append(resident())
            assert (await running.ask("/health")).status == 200
            found.append(fuzzer)

    run(main)
    return found[0], memory


@pytest.mark.slow
def test_nothing_that_comes_back_is_undescribed() -> None:
    fuzzer, _ = fuzzed(3_000, seed=1)
    assert not fuzzer.undescribed
    assert {200, 400, 401, 403, 404, 405, 409, 413, 422} <= set(fuzzer.statuses), "it reaches all of this"


def test_the_fuzzer_notices_what_is_not_described() -> None:
    """The control: a description that leaves a status out, and a reply that is a mistake of the server's."""

    async def main() -> None:
        async with service(EmbeddedStore(asked())) as running:
            description = json.loads((await running.ask("/openapi.json")).body)
            del description["paths"]["/v1/answer"]["post"]["responses"]["422"]
            fuzzer = Fuzzer(description, seed=1)
            await fuzz(running, fuzzer, 500)
            assert "POST /v1/answer: 422 is not described" in fuzzer.undescribed
            fuzzer.check("/health", "GET", 500, {}, b"")
            assert "GET /health: 500" in fuzzer.undescribed

    run(main)
