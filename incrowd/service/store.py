"""The stores of a pool: the memory of this process with a file, or a Redis that several processes share."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, Unpack

from incrowd import _validate
from incrowd.drawdiscard.desk import Desk, DeskSettings, Reason, Returned
from incrowd.drawdiscard.kept_pool import MemoryPool
from incrowd.drawdiscard.pool import HISTORY, Instance
from incrowd.drawdiscard.server import PoolFigures
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import IncrowdError

KEEP_EVERY_S = 5.0


class StoreAway(IncrowdError):
    """The store does not answer; the fate of the last request to it is unknown."""


class HandedOut(NamedTuple):
    """A version of the pool to hand out, and the number of accepted answers."""

    version: int
    row: Instance
    accepted: int


class PoolStore(Protocol):
    """A pool with its accepted digests, the key of its tickets, and its counts of refused answers in `turned`.

    `desk` judges answers under the store's key. `trouble` names a present problem of the store.

    Guarantee: `enter` happens as a whole or not at all, and merges an answer once, whatever number of servers offer it.
    A row never changes: an answer makes a new version. The random choices are those of `Pool`, from the same named
    streams.
    """

    desk: Desk
    trouble: str | None
    turned: Counter[str]

    async def open(self) -> None:
        """Begin a pool, or go on with the stored one."""

    async def draw(self) -> HandedOut:
        """Hand out a random instance."""

    async def parent(self, answer: Returned) -> Instance | Reason | None:
        """Find the parent of an answer: None after it was forgotten, `REPEATED` for a known answer."""

    async def repeated(self, answer: Returned) -> bool:
        """Return whether any server of this pool has accepted the answer before."""

    async def enter(self, answer: Returned) -> tuple[Reason, HandedOut]:
        """Merge an answer into a random instance, and hand out the next one."""

    async def figures(self) -> PoolFigures:
        """Return the figures for a page and a monitor."""

    async def close(self) -> None:
        """Store everything, and close the store."""


class EmbeddedStore:
    """A pool in memory, written to a folder every `keep_every` seconds and by `close`.

    Guarantee: a pool that `close` wrote goes on bit for bit under seeded randomness. A killed process loses the answers
    since its last write: those of `keep_every` seconds and the duration of a write. The version number of a row that a
    crash may have lost never names another row. The event loop goes on during a write.
    """

    def __init__(
        self,
        specification: Specification,
        *,
        folder: Path | None = None,
        keep_every: float = KEEP_EVERY_S,
        history: int = HISTORY,
        **desk: Unpack[DeskSettings],
    ) -> None:
        _validate.positive(keep_every=keep_every)
        self.trouble: str | None = None
        self._keep_every = keep_every
        self._held = MemoryPool(specification, folder=folder, history=history, **desk)
        self.desk, self.turned, self._pool = self._held.desk, self._held.turned, self._held.pool
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="keep")
        self._keeping: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        """See `PoolStore.open`. The file says from now on that memory may be ahead of it."""
        await self.keep()
        self._keeping = asyncio.create_task(self._keep_regularly())

    async def draw(self) -> HandedOut:
        """See `PoolStore.draw`."""
        return HandedOut(*self._pool.draw_version(), self._pool.discards)

    async def parent(self, answer: Returned) -> Instance | Reason | None:
        """See `PoolStore.parent`."""
        return self._held.parent(answer)

    async def repeated(self, answer: Returned) -> bool:
        """See `PoolStore.repeated`."""
        return self._held.parent(answer) is Reason.REPEATED

    async def enter(self, answer: Returned) -> tuple[Reason, HandedOut]:
        """See `PoolStore.enter`."""
        return self._held.enter(answer), await self.draw()

    async def figures(self) -> PoolFigures:
        """See `PoolStore.figures`."""
        now = self._pool.state()
        return await asyncio.to_thread(PoolFigures.of, now.rows, accepted=now.discards, turned=dict(self.turned))

    async def keep(self, *, clean: bool = False) -> None:
        """Write the changes to disk; `clean` says that no more follow."""
        async with self._turn:
            write = partial(self._held.write, self._held.snapshot(), clean=clean)
            await asyncio.get_running_loop().run_in_executor(self._writer, write)

    async def close(self) -> None:
        """See `PoolStore.close`."""
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
        try:
            await self.keep(clean=True)
        finally:
            self._held.close()
            self._writer.shutdown()

    async def _keep_regularly(self) -> None:
        before: object = None
        while True:
            await asyncio.sleep(self._keep_every)
            now = self._pool.discards, self.turned.total()
            if now == before and self.trouble is None:
                continue
            try:
                await self.keep()
            except OSError as error:
                self.trouble = f"the pool could not be kept: {error}"
            else:
                before, self.trouble = now, None
