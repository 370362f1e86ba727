"""Clients that do not speak HTTP, and requests of any kind. Slow and many clients are nginx's (test_nginx)."""

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

from incrowd.service.store import EmbeddedStore
from tests.drawdiscard.mail import asked
from tests.service.running import Running, run, service


def with_service(work: Any, **changes: object) -> None:
    async def main() -> None:
        async with service(EmbeddedStore(asked(**changes), turned_away=2e-3)) as running:
            await work(running)

    run(main)


async def closed(reader: asyncio.StreamReader, *, within: float = 5.0) -> bytes:
    """What came until the other side ended it."""
    with suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), within)
    return b""


ODD = ("", "0", "-1", "NaN", "\x7f", "é", "%00", "../../etc/passwd", "a" * 3_000, "{}", '"', "1e999", "\t")
PATHS = ("/v1/answer", "/v1/draw", "/v1/specification", "/v1/average", "/status.json", "/health", "/")


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_sent_is_no_mistake_of_ours(seed: int) -> None:
    draw, seen = random.Random(seed), set()  # noqa: S311 - requests for a test

    async def work(running: Running) -> None:
        drawn = await running.ask("/v1/draw")
        right = {name: drawn.headers[name] for name in ("incrowd-fingerprint", "incrowd-ticket")}
        for number in range(150):
            headers = {name: value for name, value in right.items() if draw.random() < 0.9}
            for name in (*right, "accept", "origin", "authorization", "incrowd-admission", "expect"):
                if draw.random() < 0.1:
                    headers[name] = draw.choice(ODD)
            body = draw.choice([running.honest(drawn, seed=number), drawn.body, draw.randbytes(16), draw.randbytes(5)])
            path = draw.choice(PATHS) if draw.random() < 0.5 else "/v1/answer"
            path += draw.choice(["?x=1", "/", "%2e%2e", "//", "#a"]) if draw.random() < 0.1 else ""
            method = draw.choice(["POST", "GET", "PUT", "DELETE", "OPTIONS", "TRACE"])
            with suppress(ConnectionError, asyncio.IncompleteReadError):  # as what is no HTTP ends
                got = await running.ask(path, method=method, headers=headers, body=body)
                assert got.status in (100, 503) or got.status < 500
                seen.add(got.status)
        assert (await running.ask("/health")).status == 200

    with_service(work)
    assert {200, 204, 403, 404, 405} <= seen, "it reaches all of this"


NOT_HTTP = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\r\n\r\nnonsense\r\n\r\n",
    b"POST /v1/answer HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
    b"POST /v1/answer HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcde",
    b"POST /v1/answer HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"CONNECT here:80 HTTP/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


@pytest.mark.parametrize("sent", NOT_HTTP, ids=lambda sent: repr(sent[:30]))
def test_what_is_no_request_for_us_ends_the_connection_and_nothing_else(sent: bytes) -> None:
    async def work(running: Running) -> None:
        reader, writer = await asyncio.open_connection(running.host, running.port)
        writer.write(sent)
        said = await closed(reader, within=4)
        assert said == b"" or 400 <= int(said[9:12]) < 500
        writer.close()
        assert (await running.ask("/v1/draw")).status == 200

    with_service(work)
