"""The application: a store, the figures about it, and what answers requests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from incrowd.service.board import Board
from incrowd.service.public_table import PublicTable
from incrowd.service.rest import Rest
from incrowd.service.store import PoolStore, StoreAway
from incrowd.service.tending import Tending


class Application:
    """A store and all that answers for it. `token` is the one that orders have to show.

    Guarantee: the store is opened before the first request and closed after the last, and what was acknowledged by then
    is kept.
    """

    def __init__(self, store: PoolStore, *, token: str | None = None, public: PublicTable | None = None) -> None:
        self._store, self._token, self._public = store, token, public

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Rest]:
        """What answers requests, as long as this lasts."""
        await self._store.open()
        tending = Tending(self._store)
        board = Board(tending, public=self._public)
        rest = Rest(tending, board, token=self._token)
        with suppress(StoreAway):
            tending.accepted = (await self._store.figures()).accepted
        ticking = asyncio.create_task(_tick(board))
        try:
            yield rest
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            await self._store.close()


async def _tick(board: Board) -> None:
    while True:
        board.tick()
        await asyncio.sleep(1.0)
