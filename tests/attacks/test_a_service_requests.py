"""Attack: a client who asks for the average again and again, to keep the service busy."""

import asyncio
import json
import time

import numpy as np
import pytest

from incrowd.drawdiscard import Specification
from incrowd.drawdiscard.desk import Reason
from tests.drawdiscard.mail import KEYS, asked
from tests.service.running import read_reply, request, run, service

pytest.importorskip("httptools")


def test_what_is_as_long_as_it_may_be_is_read() -> None:
    """A body of the right length, and long headers, in pieces."""

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
