"""A pool in Redis: several servers, Redis gone and back, killed, emptied, restored to an earlier moment."""

import asyncio
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from incrowd.drawdiscard.desk import Reason
from incrowd.drawdiscard.pool import merged
from incrowd.service.redis_store import PREFIX, RedisStore
from incrowd.service.store import StoreAway
from tests.drawdiscard.mail import asked
from tests.service.devices import answered
from tests.service.redis_process import RedisProcess


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[RedisProcess]:
    """A Redis that writes all down before it answers."""
    process = RedisProcess(tmp_path, aof="always")
    yield process
    process.kill()


def store_at(process: RedisProcess, **changes: object) -> RedisStore:
    return RedisStore(asked(**changes), process.url)


async def contribute(store: RedisStore, count: int, *, seed: int) -> int:
    handed = await store.draw()
    accepted = 0
    for number in range(count):
        reason, handed = await store.enter(answered(store, handed, seed=seed + number))
        accepted += reason is Reason.ACCEPTED
    return accepted


async def away(store: RedisStore) -> bool:
    try:
        await asyncio.wait_for(store.draw(), 8)
    except StoreAway:
        return True
    return False


async def until_back(store: RedisStore) -> None:
    for _ in range(200):
        if not await away(store):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come back")


def test_servers_share_a_pool_and_lose_no_answer_of_each_other(own_redis: RedisProcess) -> None:
    """One instance, half of it each answer: every row is made of the one before it and one answer, each used once."""

    async def main() -> None:
        stores = [store_at(own_redis, instances=1, merge=0.5) for _ in range(3)]
        for store in stores:
            await store.open()
        answers = []

        async def work(store: RedisStore, seed: int) -> None:
            handed = await store.draw()
            for number in range(40):
                answer = answered(store, handed, seed=seed + number)
                answers.append(answer.weights)
                reason, handed = await store.enter(answer)
                assert reason is Reason.ACCEPTED

        await asyncio.gather(
            *(work(store, 1000 * place + 100 * part) for place, store in enumerate(stores) for part in (1, 2))
        )
        assert (await stores[0].figures()).accepted == 240
        with own_redis.client() as client:
            versions = [*client.lrange(PREFIX + "history", 0, -1), client.hget(PREFIX + "slots", "0")]
            rows = [np.frombuffer(client.get(PREFIX + "row:" + version.decode()), "<f4") for version in versions]
        left = {answer.tobytes(): answer for answer in answers}
        for before, after in pairwise(rows):
            made = next(
                (key for key, answer in left.items() if (merged(before, answer, np.float32(0.5)) == after).all()), None
            )
            assert made is not None, "a row that is not made of the one before it"
            del left[made]
        assert not left
        for store in stores:
            await store.close()

    asyncio.run(main())


def test_redis_gone_is_away_and_comes_back_by_itself(lasting: RedisProcess) -> None:
    async def main() -> None:
        store = store_at(lasting)
        await store.open()
        assert await contribute(store, 20, seed=0) == 20
        lasting.kill()
        await asyncio.sleep(0.3)
        assert await away(store)
        assert "Redis" in (store.trouble or "")
        lasting.start()
        await until_back(store)
        assert not store.trouble
        assert (await store.figures()).accepted == 20
        assert await contribute(store, 5, seed=100) == 5
        await store.close()

    asyncio.run(main())


HELD_BACK = 3.0
"""Seconds after which a Redis that syncs every second has written what it answered: while a sync is under way it holds
writes back for two seconds, and it looks at that ten times a second."""


@pytest.mark.slow
@pytest.mark.parametrize(("aof", "seconds"), [("everysec", HELD_BACK), ("always", 0.0)])
def test_what_was_acknowledged_is_not_lost_when_redis_is_killed(tmp_path: Path, aof: str, seconds: float) -> None:
    process = RedisProcess(tmp_path, aof=aof)

    async def main() -> None:
        store = store_at(process)
        await store.open()
        acknowledged = 0
        for number in range(3):
            acknowledged += await contribute(store, 40, seed=1000 * number)
            await asyncio.sleep(seconds)
            process.kill()
            process.start()
            await until_back(store)
            assert (await store.figures()).accepted == acknowledged
        await store.close()

    try:
        asyncio.run(main())
    finally:
        process.kill()


def test_without_a_file_a_killed_redis_has_lost_the_pool_and_no_other_begins(tmp_path: Path) -> None:
    """The control, and what must not happen then: devices that go on with another pool, and nobody hears of it."""
    process = RedisProcess(tmp_path, aof="no")

    async def main() -> None:
        store = store_at(process)
        await store.open()
        await contribute(store, 10, seed=0)
        process.kill()
        process.start()
        await asyncio.sleep(1.0)
        assert await away(store)
        assert "lost the pool" in (store.trouble or "")
        await store.close()
        again = store_at(process)
        await again.open()
        assert (await again.figures()).accepted == 0
        await again.close()

    try:
        asyncio.run(main())
    finally:
        process.kill()


def test_after_another_run_of_redis_no_number_of_a_version_comes_twice(tmp_path: Path) -> None:
    """A Redis that is put back to an earlier moment has forgotten versions; devices still have them."""
    process = RedisProcess(tmp_path, aof="always")

    async def main() -> None:
        store = store_at(process)
        await store.open()
        await contribute(store, 5, seed=0)
        copy = tmp_path / "copy"
        copy.mkdir()
        for path in tmp_path.glob("*.aof"):
            shutil.copy(path, copy)
        await contribute(store, 50, seed=100)
        lost = store._slots[store._slots.index(max(store._slots))]
        process.kill()
        for path in copy.iterdir():
            shutil.copy(path, tmp_path / path.name)
        process.start()
        await until_back(store)
        assert (await store.figures()).accepted == 5
        await contribute(store, 20, seed=900)
        numbers = [version for version in store._slots if version >= 0]
        assert max(numbers) > lost + 1000
        assert not any(lost - 50 < version <= lost for version in numbers)
        await store.close()

    try:
        asyncio.run(main())
    finally:
        process.kill()


def test_no_redis_at_all_is_said(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(StoreAway, match=r"Redis is out of reach .*: start it, or give its address"):
            await RedisStore(asked(), f"unix://{tmp_path}/none").open()

    asyncio.run(main())


def test_a_password_is_given_and_a_wrong_one_is_said(own_redis: RedisProcess) -> None:
    async def main() -> None:
        with own_redis.client() as client:
            client.config_set("requirepass", "open sesame")
        try:
            path = str(own_redis.socket)
            right = RedisStore(asked(), f"unix://:open%20sesame@{path}")
            await right.open()
            assert await contribute(right, 2, seed=0) == 2
            await right.close()
            with pytest.raises(StoreAway, match=r"out of reach .*password"):
                await RedisStore(asked(), f"unix://:wrong@{path}").open()
        finally:
            import redis

            with redis.Redis(unix_socket_path=path, password="open sesame") as client:  # noqa: S106 - of a test
                client.config_set("requirepass", "")

    asyncio.run(main())
