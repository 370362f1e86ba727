"""Strangers at a service: requests that are read in two ways, floods, averages without end; what it says and logs.

What is hidden in a body is never a request; a ticket is good for one service; an account moves the model once a day.
Limits by address are nginx's: the service never looks at one (`test_nginx_before_a_service.py`).
"""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from incrowd.drawdiscard import Specification
from incrowd.service.admission import KEY_BYTES, Admission, key_in
from incrowd.service.redis_store import RedisStore
from incrowd.service.store import EmbeddedStore, PoolStore
from tests.command import command
from tests.drawdiscard.mail import KEYS, asked
from tests.service.redis_process import RedisProcess
from tests.service.running import Got, Running, request, run, service

pytest.importorskip("httptools")
pytest.importorskip("uvicorn")


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
            assert await replies(running, HIDDEN) == [200]  # the control: on its own it is one

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


def test_what_a_service_tells_of_itself_is_no_secret() -> None:
    async def main() -> None:
        async with service(asked()) as running:
            key = running.store.desk._tickets.key
            for path in ("/status.json", "/metrics", "/v1/specification", "/health"):
                said = (await running.ask(path)).body
                assert key not in said
                assert key.hex().encode() not in said

    run(main)


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


ODD = {404: ("/nothing", "GET"), 405: ("/v1/draw", "POST")}


@pytest.mark.parametrize("status", [200, *ODD, 409, 422])
def test_nothing_is_written_about_a_request_whatever_becomes_of_it(
    status: int, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Who reads the service's logs or its folder does not learn who asked for what."""

    async def main() -> None:
        async with service(EmbeddedStore(asked(), folder=tmp_path)) as running:
            got = drawn = await running.ask("/v1/draw")
            if status in ODD:
                got = await running.ask(ODD[status][0], method=ODD[status][1])
            if status == 409:
                got = await running.answer(drawn.body, drawn, incrowd_fingerprint="0" * 64)
            if status == 422:
                got = await running.answer(np.full(4, 1e6, "<f4").tobytes(), drawn)
            assert got.status == status

    with caplog.at_level(0):
        run(main)
    out, err = capfd.readouterr()
    written = out + err + caplog.text
    assert "127.0.0.1" not in written.replace("asyncio", "")
    assert all(b"127.0.0.1" not in path.read_bytes() for path in tmp_path.iterdir())


PATHS = ("/metrics", "/status.json", "/health", "/v1/draw", "/v1/average")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path_factory.mktemp("redis"))
    yield process
    process.kill()


@pytest.mark.parametrize("end", [RedisProcess.empty, RedisProcess.kill], ids=["emptied", "gone"])
def test_everything_is_503_with_a_reason(tmp_path: Path, end: Callable[[RedisProcess], None]) -> None:
    """The Redis of a service is emptied or stopped, and the service does not say that all is well."""
    process = RedisProcess(tmp_path)

    async def main() -> None:
        async with service(RedisStore(asked(), process.url)) as running:
            drawn = await running.ask("/v1/draw")

            async def everything() -> list[Got]:
                read = [await running.ask(path) for path in PATHS]
                return [*read, await running.answer(running.honest(drawn, seed=1), drawn)]

            assert {got.status for got in await everything()} == {200}, "the control"
            end(process)
            await asyncio.sleep(1.5)  # figures may be a second old
            assert {(got.status, got.reason) for got in await everything()} == {(503, "away")}

    try:
        run(main)
    finally:
        process.kill()


# One address that sends as many contributions as it can


KEY, OTHER = bytes(KEY_BYTES), bytes([1] * KEY_BYTES)
OFTEN = 30
Make = Callable[[], PoolStore]


@pytest.fixture(params=["embedded", "redis"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "embedded":
        return lambda: EmbeddedStore(asked(), folder=tmp_path / "pool", turned_away=2e-3)
    process: RedisProcess = request.getfixturevalue("redis")
    process.empty()
    return lambda: RedisStore(asked(), process.url, turned_away=2e-3)


def accepted(store: PoolStore, admission: Admission | None, *tokens: str) -> int:
    """How many of the answers enter that come one after the other, each with a token."""
    counts = []

    async def main() -> None:
        async with service(store, admission=admission) as running:
            for number, token in enumerate(tokens):
                drawn = await running.ask("/v1/draw")
                got = await running.answer(running.honest(drawn, seed=number), drawn, incrowd_admission=token)
                counts.append(got.headers.get("incrowd-outcome") == "accepted")
                assert got.status == 200 or got.reason in ("not_admitted", "day_over", "unlike")

    run(main)
    return sum(counts)


def test_a_flood_of_one_account_counts_once_a_day(make: Make) -> None:
    admission = Admission(key=KEY)
    assert accepted(make(), admission, *[admission.token("ann")] * OFTEN) == 1
    assert accepted(make(), admission, admission.token("ann"), admission.token("bob")) == 1  # after a restart, too
    tomorrow = Admission(key=KEY, today=lambda: "2999-01-01")
    assert accepted(make(), tomorrow, *[tomorrow.token("ann")] * 3) == 1
    assert accepted(make(), admission, admission.token("cy")) == 0  # a clock put back brings no day back


def test_control_an_open_door_takes_the_whole_flood(make: Make) -> None:
    assert accepted(make(), None, *[""] * OFTEN) >= OFTEN - 2


def test_without_a_token_of_this_operator_nothing_enters(make: Make) -> None:
    admission = Admission(key=KEY)
    good = admission.token("ann")
    wrong = ["", "ann", "ann.", f"bob.{good.partition('.')[2]}", good[:-1], good.upper(), f"{good}0", "é" * 9]
    forged = [Admission(key=OTHER).token("ann"), "a" * 300, f"{good},{good}"]
    assert accepted(make(), admission, *[token.encode().decode("latin-1") for token in (*wrong, *forged)]) == 0
    assert accepted(make(), admission, good) == 1  # the control


def test_more_a_day_may_be_allowed_by_name(make: Make) -> None:
    admission = Admission(key=KEY, daily=3)
    assert accepted(make(), admission, *[admission.token("ann")] * OFTEN) == 3


def test_tokens_are_issued_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "admission.key"
    found = command(monkeypatch, capsys)("ddml", "token", "--key", str(path), "ann", "bob", "--json").object()
    admission = Admission(key=key_in(path))
    assert {account: admission.token(account) for account in ("ann", "bob")} == found["tokens"]
    assert admission.visit(found["tokens"]["ann"]) is not None
    (tmp_path / "empty").write_text("\n")
    for wrong in ("none", "empty"):
        asked = ("--server", "http://127.0.0.1:9", "--database", "d.sqlite", "--token-file", str(tmp_path / wrong))
        refused = command(monkeypatch, capsys)("contribute", *asked)
        assert (refused.status, "name the file that holds the token" in refused.err) == (2, True)
