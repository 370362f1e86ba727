"""Bad luck or an attack: the Redis of a service is emptied or stopped, and the service still says that all is well."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from incrowd.service.redis_store import RedisStore
from tests.drawdiscard.mail import asked
from tests.service.redis_process import RedisProcess
from tests.service.running import Got, Running, run, service

pytest.importorskip("uvicorn")

PATHS = ("/metrics", "/status.json", "/health", "/v1/draw", "/v1/average")


async def everything(running: Running, drawn: Got) -> list[Got]:
    read = [await running.ask(path) for path in PATHS]
    return [*read, await running.answer(running.honest(drawn, seed=1), drawn)]


@pytest.mark.parametrize("end", [RedisProcess.empty, RedisProcess.kill], ids=["emptied", "gone"])
def test_everything_is_503_with_a_reason(tmp_path: Path, end: Callable[[RedisProcess], None]) -> None:
    process = RedisProcess(tmp_path)

    async def main() -> None:
        async with service(RedisStore(asked(), process.url)) as running:
            drawn = await running.ask("/v1/draw")
            assert {got.status for got in await everything(running, drawn)} == {200}, "the control"
            end(process)
            await asyncio.sleep(1.5)  # figures may be a second old
            found = await everything(running, drawn)
            assert {(got.status, got.reason) for got in found} == {(503, "away")}

    try:
        run(main)
    finally:
        process.kill()
