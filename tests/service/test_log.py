"""What a service writes of itself: lines for a program, one for any number of refusals, nothing of a client."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from incrowd._log import log_to_stderr
from incrowd.service.serving import REFUSALS_EVERY_S, HealthLog
from incrowd.service.store import EmbeddedStore
from tests.drawdiscard.mail import asked
from tests.service.processes import serve_process
from tests.service.running import Running, run, service


def events(lines: list[str]) -> list[tuple[str, dict[str, object]]]:
    told = [json.loads(line) for line in lines]
    own = ("event", "level", "time")
    return [(each["event"], {name: fact for name, fact in each.items() if name not in own}) for each in told]


def test_a_service_tells_when_it_starts_and_stops_and_of_refused_keys(tmp_path: Path) -> None:
    with serve_process(tmp_path, asked(), "--log-json") as process:
        drawn = process.ask("/v1/draw")
        forged = {"incrowd-fingerprint": drawn.headers["incrowd-fingerprint"], "incrowd-ticket": "00ff"}
        for _ in range(20):
            assert process.ask("/v1/answer", headers=forged, body=drawn.body).status in (403, 409)
        status, said = process.stop()
    assert status == 0
    (start, of_start), (stop, of_stop) = events(said.splitlines())
    assert (start, of_start["url"]) == ("start", process.url)
    assert (stop, of_stop["accepted"]) == ("stop", 0)
    assert of_stop["refused"] == {"forged": 20}
    assert "127.0.0.1" not in said.splitlines()[1]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("incrowd")
    before = root.handlers[:], root.level, own.level
    yield
    root.handlers[:], own.level = before[0], before[2]
    root.setLevel(before[1])


def test_a_flood_of_refusals_is_one_line_and_a_save_that_fails_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(as_json=True)
    log = HealthLog()
    full = "the pool could not be kept: disk full"
    for second in range(1, 200):
        log.look(full if 20 < second < 30 else None, {"forged": 1000 * second}, now=1000.0 + second)
    lines = capsys.readouterr().err.splitlines()
    assert [name for name, _ in events(lines)] == ["store_trouble", "store_well", *["refused"] * 3]
    assert events(lines)[0][1] == {"why": full}
    assert events(lines)[2][1] == {"requests": 60_000, "reasons": {"forged": 60_000}, "seconds": REFUSALS_EVERY_S}


def test_a_mistake_of_ours_is_told_without_what_it_was_made_with(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def work(running: Running) -> None:
        async def broken(_: object) -> None:
            raise ZeroDivisionError("a secret")

        drawn = await running.ask("/v1/draw")
        with monkeypatch.context() as patched:
            patched.setattr(running.store, "enter", broken)
            got = await running.answer(running.honest(drawn, seed=1), drawn)
        assert (got.status, got.reason) == (500, "failed")
        assert (await running.answer(running.honest(drawn, seed=1), drawn)).status == 200, "the service goes on"

    async def main() -> None:
        async with service(EmbeddedStore(asked(), turned_away=2e-3)) as running:
            await work(running)

    log_to_stderr(as_json=False)
    run(main)
    said = capfd.readouterr().err
    assert "failed error: ZeroDivisionError; at: test_log.py:" in said
    assert "secret" not in said
