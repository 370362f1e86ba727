"""The application: a store, the figures about it, and the two ways that requests take."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from incrowd.service.board import Board
from incrowd.service.hot import HotPath
from incrowd.service.metrics import exposition
from incrowd.service.protocol import Bounds, Ways
from incrowd.service.public_table import PublicTable
from incrowd.service.rates import AddressRates, TrustedProxies
from incrowd.service.rest import Rest
from incrowd.service.store import PoolStore, StoreAway
from incrowd.service.tending import Tending

RATE, BURST = 20.0, 200
"""Requests a second by one address, and at once: many people may be behind one."""

STRICT_TRANSPORT = (b"strict-transport-security", b"max-age=31536000")


@dataclass(frozen=True, kw_only=True)
class Surface:
    """What a service lets through: how often, from whom, who may give orders, how long clients are waited for."""

    rate: float = RATE
    burst: int = BURST
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    token: str | None = field(default=None, repr=False)
    tls: bool = False
    patience: float = 30.0
    connections: int = 10_000
    each: int = 1_000


class Application:
    """A store and all that answers for it.

    Guarantee: the store is opened before the first request and closed after the last, and what was acknowledged by then
    is kept.
    """

    def __init__(self, store: PoolStore, *, surface: Surface | None = None, public: PublicTable | None = None) -> None:
        self._surface = surface or Surface()
        self._store, self._public = store, public
        self.bounds = Bounds(
            patience=self._surface.patience,
            most=self._surface.connections,
            each=self._surface.each,
            proxies=self._surface.proxies,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Ways]:
        """What answers requests, as long as this lasts."""
        await self._store.open()
        tending = Tending(self._store)
        board = Board(tending, public=self._public)
        extra = [STRICT_TRANSPORT] if self._surface.tls else []
        rates = AddressRates(self._surface.rate, self._surface.burst)
        hot = HotPath(tending, rates=rates, proxies=self._surface.proxies, extra=extra)
        rest = Rest(
            self._store,
            board,
            token=self._surface.token,
            metrics=lambda status: exposition(status, hot, connections=len(self.bounds.open)),
            extra=extra,
        )
        with suppress(StoreAway):
            tending.accepted = (await self._store.figures()).accepted
        tasks = [asyncio.create_task(self.bounds.sweep()), asyncio.create_task(_tick(board))]
        try:
            yield Ways(hot, rest.application, self.bounds, self._store.at_once)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._store.close()


async def _tick(board: Board) -> None:
    while True:
        board.tick()
        await asyncio.sleep(1.0)
