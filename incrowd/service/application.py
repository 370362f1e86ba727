"""The application: a store, the figures about it, and what answers requests."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from incrowd.service.admission import Admission
from incrowd.service.board import Board
from incrowd.service.log import EventLog
from incrowd.service.rest import Rest
from incrowd.service.store import PoolStore, StoreAway
from incrowd.service.tending import Tending


class Application:
    """A store and all that answers for it. `token` is the one that orders have to show; events go to the `log`.
    `admission` says who may contribute: without it, everybody.

    Guarantee: the store is opened before the first request and closed after the last, and what was acknowledged by then
    is kept.
    """

    def __init__(
        self,
        store: PoolStore,
        *,
        token: str | None = None,
        log: EventLog | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._store, self._token, self._admission = store, token, admission
        self._log = log or EventLog()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Rest]:
        """What answers requests, as long as this lasts."""
        await self._store.open()
        tending = Tending(self._store, self._admission)
        board = Board(tending)
        rest = Rest(tending, board, token=self._token, log=self._log)
        with suppress(StoreAway):
            tending.accepted = (await self._store.figures()).accepted
        ticking = asyncio.create_task(self._tick(board, rest))
        try:
            yield rest
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            await self._store.close()
            self._log.tell("stop", accepted=tending.accepted, refused=dict(rest.refused))

    async def _tick(self, board: Board, rest: Rest) -> None:
        while True:
            board.tick()
            self._log.look(self._store.trouble, rest.refused, now=time.monotonic())
            await asyncio.sleep(1.0)
