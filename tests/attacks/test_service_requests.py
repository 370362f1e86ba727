"""Attack: requests that are read one way here and another way there, replays, stolen and forged tickets.

What is hidden in a body is never a request; an answer counts once and teaches once; a ticket is good for one service.
"""

import asyncio
import re
from contextlib import suppress

import pytest

from incrowd.drawdiscard.desk import Reason
from incrowd.service.store import EmbeddedStore
from incrowd.service.tending import Tending
from tests.drawdiscard.mail import asked, noised
from tests.service.running import Running, request, run, service


async def replies(running: Running, sent: bytes) -> list[int]:
    """The statuses of all that comes back."""
    reader, writer = await asyncio.open_connection(running.host, running.port)
    writer.write(sent)
    said = b""
    with suppress(TimeoutError, ConnectionError):
        while more := await asyncio.wait_for(reader.read(2**16), 1.0):
            said += more
    writer.close()
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", said)]


HIDDEN = request("/v1/draw")


@pytest.mark.parametrize("refused", ["409", "400", "413"])
def test_a_request_in_the_body_of_a_refused_one_is_no_request(refused: str) -> None:
    """A proxy in front sends both as one; were the body read as a request, a client would speak with its rights."""
    levels = [f"level {number}" for number in range(60)]
    fields = {
        "opened": {"type": "boolean"},
        "sender": {"type": "category", "levels": levels},
        "words": {"type": "boolean"},
    }
    specification = asked(fields=fields)
    body = HIDDEN.ljust(4 * specification.size, b" ")
    fingerprint = "0" * 64 if refused == "409" else specification.fingerprint
    headers = {"incrowd-fingerprint": fingerprint, "incrowd-ticket": "00" * 40}
    if refused == "413":
        body = body + b" " * 1000

    async def main() -> None:
        async with service(EmbeddedStore(specification)) as running:
            sent = request("/v1/answer", method="POST", headers=headers, body=body)
            assert len(await replies(running, sent)) <= 1

    run(main)


def test_the_hidden_request_would_work_on_its_own() -> None:
    """The control."""

    async def main() -> None:
        async with service(asked()) as running:
            assert await replies(running, HIDDEN) == [200]

    run(main)


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: 16\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 16\r\n",
        b"content-length: 16\r\ncontent-length: 0\r\n",
        b"content-length: 0\r\ncontent-length: 16\r\n",
        b"content-length: +16\r\n",
        b"content-length: 16, 16\r\n",
        b"content-length: 0x10\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding : chunked\r\n",
        b"transfer-encoding: chunked, identity\r\n",
    ],
    ids=repr,
)
def test_framing_that_can_be_read_in_two_ways_ends_the_connection(framing: bytes) -> None:
    async def main() -> None:
        async with service(asked()) as running:
            for path in (b"/v1/answer", b"/health"):
                sent = b"POST " + path + b" HTTP/1.1\r\nhost: here\r\n" + framing + b"\r\n0\r\n\r\n" + HIDDEN
                assert len(await replies(running, sent)) <= 1

    run(main)


def test_a_ticket_that_ran_out_is_late_and_one_in_time_is_not() -> None:
    async def main() -> None:
        for passed, reason in ((61, Reason.LATE), (59, Reason.ACCEPTED)):
            store = EmbeddedStore(asked(), turned_away=2e-3, lifetime=60)
            handed = await store.draw()
            drawn = store.desk.hand_out(handed.version, handed.row, accepted=0)
            now = store.desk._now()
            store.desk._now = lambda now=now, passed=passed: now + passed  # type: ignore[misc]  # the clock goes on
            answer = noised(asked(), handed.row, drawn.gamma, seed=1)
            assert (await Tending(store).offer(answer, drawn.ticket))[0] is reason

    run(main)


def test_what_a_service_tells_of_itself_is_no_secret() -> None:
    async def main() -> None:
        async with service(asked()) as running:
            key = running.store.desk._tickets.key
            for path in ("/status.json", "/metrics", "/v1/specification", "/health"):
                said = (await running.ask(path)).body
                assert key not in said
                assert key.hex().encode() not in said

    run(main)
