"""Where a pool lies: in this process with a file behind it, or in a Redis that several processes share.

Both do the same for the desk in front of them, and are held to it by one suite of tests.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, Unpack

from incrowd import _validate
from incrowd.drawdiscard.desk import Desk, DeskSettings, Reason, Returned
from incrowd.drawdiscard.kept_pool import HeldPool
from incrowd.drawdiscard.pool import HISTORY, Instance
from incrowd.drawdiscard.showing import PoolFigures
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import IncrowdError


class StoreAway(IncrowdError):
    """The store does not answer at present; nothing is known of what was asked of it last."""


class HandedOut(NamedTuple):
    """A version of the pool to hand out, and how many answers were accepted so far."""

    version: int
    row: Instance
    accepted: int


class PoolStore(Protocol):
    """A pool, the digests of what it took, the key of its tickets and its counts.

    `desk` looks at answers, under the store's key; `trouble` says what is wrong with the store at present.

    Guarantee (of every store): `enter` happens as a whole or not at all, and merges an answer once, however often and
    through however many desks it comes. A row never changes: an answer makes a new version. The random choices are
    those of `Pool`, from the same named streams.
    """

    desk: Desk
    trouble: str | None

    async def open(self) -> None:
        """Begin, or go on from what is there."""
        ...

    async def draw(self) -> HandedOut:
        """A random instance."""
        ...

    async def parent(self, answer: Returned) -> Instance | Reason | None:
        """What an answer was drawn from; None where that is forgotten, `REPEATED` where the answer is known already."""
        ...

    async def repeated(self, answer: Returned) -> bool:
        """Whether an answer was accepted before, by any desk of this pool."""
        ...

    async def enter(self, answer: Returned) -> tuple[Reason, HandedOut]:
        """Merge an answer into a random instance; the next instance to hand out comes with it."""
        ...

    async def figures(self) -> PoolFigures:
        """What a page and a monitor show."""
        ...

    def count(self, reason: str) -> None:
        """Count something that happened to an answer."""
        ...

    async def close(self) -> None:
        """Keep everything, and let go."""
        ...


KEEP_EVERY = 5.0
"""Seconds between two looks at whether there is something to keep."""


class EmbeddedStore:
    """A pool in memory, kept in a folder every `keep_every` seconds and when it is closed.

    Guarantee: what `close` kept goes on bit for bit under seeded randomness. When the process is killed, what was
    accepted since the last keep is lost, which is at most `keep_every` seconds and the time that a keep takes; a
    number of a version that may have been lost is never given to another row. Files are written beside the event
    loop, which goes on meanwhile.
    """

    def __init__(
        self,
        specification: Specification,
        *,
        folder: Path | None = None,
        keep_every: float = KEEP_EVERY,
        history: int = HISTORY,
        **desk: Unpack[DeskSettings],
    ) -> None:
        _validate.positive(keep_every=keep_every)
        self.trouble: str | None = None
        self._keep_every = keep_every
        self._held = HeldPool(specification, folder=folder, history=history, **desk)
        self.desk, self._pool = self._held.desk, self._held.pool
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="keep")
        self._keeping: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        """See `PoolStore.open`. From here on what is on disk is older than what is in memory."""
        await self._write(clean=False)
        self._keeping = asyncio.create_task(self._keep_now_and_then())

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
        reason, pool = self._held.enter(answer), self._pool
        return reason, HandedOut(*pool.draw_version(), pool.discards)

    async def figures(self) -> PoolFigures:
        """See `PoolStore.figures`."""
        now, turned = self._pool.state(), dict(self._held.turned)
        return await asyncio.to_thread(PoolFigures.of, now.rows, accepted=now.discards, turned=turned)

    def count(self, reason: str) -> None:
        """See `PoolStore.count`."""
        self._held.turned[reason] += 1

    async def keep(self) -> None:
        """Put on disk what is not there yet."""
        await self._write(clean=False)

    async def close(self) -> None:
        """See `PoolStore.close`."""
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
        try:
            await self._write(clean=True)
        finally:
            self._held.close()
            self._writer.shutdown()

    async def _write(self, *, clean: bool) -> None:
        async with self._turn:
            keepsake = self._held.keepsake()
            write = partial(self._held.write, keepsake, clean=clean)
            await asyncio.get_running_loop().run_in_executor(self._writer, write)

    async def _keep_now_and_then(self) -> None:
        before: object = None
        while True:
            await asyncio.sleep(self._keep_every)
            now = self._pool.discards, sum(self._held.turned.values())
            if now == before and self.trouble is None:
                continue
            try:
                await self.keep()
            except OSError as error:
                self.trouble = f"the pool could not be kept: {error}"
            else:
                before, self.trouble = now, None
