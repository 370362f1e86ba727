"""A pool in this process: what a restart, a crash, a full disk and a second server do to it."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from incrowd._random import SeededRandomness
from incrowd.drawdiscard.desk import Reason
from incrowd.drawdiscard.held_pool import AFTER_A_CRASH
from incrowd.drawdiscard.kept_pool import FILE
from incrowd.errors import DataError
from incrowd.service.embedded import EmbeddedStore
from tests.drawdiscard.mail import asked
from tests.service.devices import answered

RANDOM = SeededRandomness(seed=5)


async def accept(store: EmbeddedStore, numbers: range) -> list[bytes]:
    """The rows that are handed out meanwhile."""
    handed = await store.draw()
    rows = []
    for number in numbers:
        reason, handed = await store.enter(answered(store, handed, seed=number))
        assert reason is Reason.ACCEPTED
        rows.append(handed.row.tobytes())
    return rows


@pytest.mark.parametrize("changes", [{}, {"merge": 0.3, "tail": 1.0}], ids=str)
def test_it_goes_on_bit_for_bit(folder: Path, changes: dict[str, object]) -> None:
    async def whole() -> list[bytes]:
        store = EmbeddedStore(asked(**changes), randomness=RANDOM)
        await store.open()
        rows = await accept(store, range(30))
        rows += await accept(store, range(30, 60))
        await store.close()
        return rows

    async def half(numbers: range) -> list[bytes]:
        store = EmbeddedStore(asked(**changes), folder=folder, randomness=RANDOM)
        await store.open()
        rows = await accept(store, numbers)
        await store.close()
        return rows

    assert asyncio.run(half(range(30))) + asyncio.run(half(range(30, 60))) == asyncio.run(whole())


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


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no database": lambda path: path.write_bytes(b"this is no database, whatever it is called" * 50),
    "a row is gone": lambda path: changed(path, "DELETE FROM rows WHERE version = 0"),
    "a row is short": lambda path: changed(path, "UPDATE rows SET weights = x'0000' WHERE version = 0"),
    "a row is not finite": lambda path: changed(
        path, "UPDATE rows SET weights = x'0000c07f0000c07f0000c07f0000c07f' WHERE version = 0"
    ),
    "no JSON": lambda path: changed(path, "UPDATE state SET content = x'7b' WHERE name = 'pool'"),
    "no counts": lambda path: changed(path, "UPDATE state SET content = '{}' WHERE name = 'pool'"),
    "a short key": lambda path: changed(path, "UPDATE state SET content = x'00' WHERE name = 'key'"),
    "no state of a test": lambda path: changed(path, "UPDATE state SET content = x'00' WHERE name = 'test'"),
}


def changed(path: Path, command: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(command)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_and_left_as_it_is(folder: Path, damage: str) -> None:
    async def begin() -> None:
        store = EmbeddedStore(asked(), folder=folder)
        await store.open()
        await accept(store, range(3))
        await store.close()

    asyncio.run(begin())
    before = (folder / FILE).read_bytes()
    DAMAGES[damage](folder / FILE)
    damaged = (folder / FILE).read_bytes()
    with pytest.raises(DataError, match=r"put a copy back"):
        EmbeddedStore(asked(), folder=folder)
    assert (folder / FILE).read_bytes() == damaged
    (folder / FILE).write_bytes(before)
    asyncio.run(EmbeddedStore(asked(), folder=folder).close())


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
