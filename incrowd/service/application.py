"""The application: a store, the figures about it, and what answers requests."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from incrowd._log import note
from incrowd.service.admission import Admission
from incrowd.service.rest import Rest
from incrowd.service.store import PoolStore, StoreAway
from incrowd.service.tending import Board, Tending

REFUSALS_EVERY_S = 60.0
"""Refusals are counted for so long, and told in one line: a flood of requests is none of lines."""

_log = logging.getLogger(__name__)


class Changes:
    """Logs what has changed: whether the store is well, and how many requests were refused meanwhile.

    Guarantee: an event has no address, no ticket and no content of a request.
    """

    def __init__(self) -> None:
        self._trouble: str | None = None
        self._told: Counter[str] = Counter()
        self._since = 0.0

    def look(self, trouble: str | None, refused: Mapping[str, int], *, now: float) -> None:
        """Look once more."""
        if trouble != self._trouble:
            note(_log, "store_well") if trouble is None else note(_log, "store_trouble", why=trouble)
            self._trouble = trouble
        if now - self._since < REFUSALS_EVERY_S:
            return
        more = Counter(refused) - self._told
        if more and self._since:
            note(_log, "refused", requests=more.total(), reasons=dict(more), seconds=round(now - self._since))
        self._told, self._since = Counter(refused), now


class Application:
    """A store and all that answers for it. `token` is the one that orders have to show. `admission` says
    who may contribute: without it, everybody.

    Guarantee: the store is opened before the first request and closed after the last, and what was acknowledged by then
    is kept.
    """

    def __init__(
        self,
        store: PoolStore,
        *,
        token: str | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._store, self._token, self._admission = store, token, admission

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Rest]:
        """What answers requests, as long as this lasts."""
        await self._store.open()
        tending = Tending(self._store, self._admission)
        board = Board(tending)
        rest = Rest(tending, board, token=self._token)
        with suppress(StoreAway):
            tending.accepted = (await self._store.figures()).accepted
        ticking = asyncio.create_task(self._tick(board, rest))
        try:
            yield rest
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            await self._store.close()
            note(_log, "stop", level=logging.DEBUG, accepted=tending.accepted, refused=dict(rest.refused))

    async def _tick(self, board: Board, rest: Rest) -> None:
        changes = Changes()
        while True:
            board.tick()
            changes.look(self._store.trouble, rest.refused, now=time.monotonic())
            await asyncio.sleep(1.0)
