"""A pool in this process: what a restart, a crash, a full disk and a second server do to it."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from incrowd.drawdiscard.desk import Reason
from incrowd.drawdiscard.kept_pool import AFTER_A_CRASH, FILE
from incrowd.service.store import EmbeddedStore
from tests.drawdiscard.mail import asked
from tests.service.devices import answered


async def accept(store: EmbeddedStore, numbers: range) -> list[bytes]:
    """The rows that are handed out meanwhile."""
    handed = await store.draw()
    rows = []
    for number in numbers:
        reason, handed = await store.enter(answered(store, handed, seed=number))
        assert reason is Reason.ACCEPTED
        rows.append(handed.row.tobytes())
    return rows


def test_what_was_kept_last_is_there_after_a_crash(folder: Path) -> None:
    async def crash() -> None:
        store = EmbeddedStore(asked(), folder=folder, keep_every=1000)
        await store.open()
        await accept(store, range(10))
        await store.keep()
        await accept(store, range(10, 15))
        assert store._held._kept is not None
        store._held._kept.close()  # as the system does when the process is killed
        assert store._keeping is not None
        store._keeping.cancel()

    async def after() -> None:
        store = EmbeddedStore(asked(), folder=folder)
        await store.open()
        assert (await store.figures()).accepted == 10
        await accept(store, range(15, 16))
        numbers = [version for version in store._pool.state().versions if version > 100]
        assert numbers == [numbers[0]]
        assert numbers[0] > AFTER_A_CRASH, "what may have been handed out and lost is no other row's number"
        await store.close()

    asyncio.run(crash())
    asyncio.run(after())


def test_a_keep_that_fails_is_told_and_tried_again(folder: Path) -> None:
    async def main() -> None:
        store = EmbeddedStore(asked(), folder=folder, keep_every=0.02)
        await store.open()
        with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as other:
            other.execute("PRAGMA busy_timeout = 0")
            other.execute("BEGIN IMMEDIATE")  # nobody else can write
            store._held._kept._database.execute("PRAGMA busy_timeout = 0")  # type: ignore[union-attr]  # it has one
            await accept(store, range(3))
            await asyncio.sleep(0.2)
            assert "could not be kept" in (store.trouble or "")
            other.execute("ROLLBACK")
        await asyncio.sleep(0.2)
        assert not store.trouble
        assert (await store.figures()).accepted == 3
        await store.close()

    asyncio.run(main())
