"""Serve a pool from one process, or from several that share a socket and a Redis."""

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread

import uvicorn
import uvloop

from incrowd import _validate
from incrowd._log import log_to_stderr, note
from incrowd.drawdiscard.desk import LIFETIME, DeskSettings
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import ConfigError, IncrowdError
from incrowd.service.admission import Admission, key_in
from incrowd.service.application import Application
from incrowd.service.exchange import this_machine
from incrowd.service.pool_service import PoolService
from incrowd.service.store import KEEP_EVERY_S, EmbeddedStore, PoolStore, StoreAway

MEMORY = "memory"
REFUSALS_EVERY_S = 60.0
OPEN_ADMISSION = "anybody who can reach this service may contribute as often as they like: one address spoils the model"

_SWITCH_S = 0.0005  # a write to disk holds requests up for so long, instead of Python's 5 ms
_BYTES_BESIDE = 500  # of a remembered version: its number, and the digest of an answer
_ENDING = (signal.SIGTERM, signal.SIGINT)
_log = logging.getLogger(__name__)


class HealthLog:
    """Log the store's troubles, and the number of refused requests once a minute: nothing of a client or a request."""

    def __init__(self) -> None:
        self._trouble: str | None = None
        self._told: Counter[str] = Counter()
        self._since = 0.0

    def look(self, trouble: str | None, refused: Mapping[str, int], *, now: float) -> None:
        """Log the changes since the last look."""
        if trouble != self._trouble:
            note(_log, "store_well") if trouble is None else note(_log, "store_trouble", why=trouble)
            self._trouble = trouble
        if now - self._since < REFUSALS_EVERY_S:
            return
        more = Counter(refused) - self._told
        if more and self._since:
            note(_log, "refused", requests=more.total(), reasons=dict(more), seconds=round(now - self._since))
        self._told, self._since = Counter(refused), now


@asynccontextmanager
async def answering(store: PoolStore, *, admission: Admission | None = None) -> AsyncIterator[Application]:
    """Open a store, answer requests to it, and close it with every acknowledged answer."""
    await store.open()
    pool = PoolService(store, admission)
    application = Application(pool)
    with suppress(StoreAway):
        pool.accepted = (await store.figures()).accepted
    ticking = asyncio.create_task(_tick(pool, application))
    try:
        yield application
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        await store.close()
        note(_log, "stop", level=logging.DEBUG, accepted=pool.accepted, refused=dict(application.refused))


async def _tick(pool: PoolService, application: Application) -> None:
    health = HealthLog()
    while True:
        pool.tick()
        health.look(pool.store.trouble, application.refused, now=time.monotonic())
        await asyncio.sleep(1.0)


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """The options of `incrowd serve`.

    Without an `admission` everybody may contribute. `remember_mb` is the memory for replaced versions: a device can
    answer while its version is there. The service refuses a `host` that other machines can reach: a proxy has TLS, and
    limits by address.
    """

    specification: Specification
    store: str = MEMORY
    folder: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    keep_every: float = KEEP_EVERY_S
    remember_mb: float = 64.0
    turned_away: float = 0.01
    lifetime: int = LIFETIME
    log_json: bool = False
    admission: Admission | None = None

    def __post_init__(self) -> None:
        _validate.count(workers=self.workers, lifetime=self.lifetime)
        _validate.positive(keep_every=self.keep_every, remember_mb=self.remember_mb)
        if self.workers > 1 and self.store == MEMORY:
            remedy = "several processes need a pool that they share: --store redis://..."
            raise ConfigError(field="workers", value=self.workers, remedy=remedy)
        if not this_machine(self.host):
            remedy = "give 127.0.0.1 or ::1: other machines come in through nginx (incrowd serve --nginx)"
            raise ConfigError(field="host", value=self.host, remedy=remedy)

    def admitting(self, key: Path, *, daily: int) -> "ServiceOptions":
        """Require tokens of the key in a file; make the file if it is missing."""
        return replace(self, admission=Admission(key=key_in(key), daily=daily))

    def new_store(self) -> PoolStore:
        """Make the store, still closed."""
        asked, desk = self.specification, DeskSettings(turned_away=self.turned_away, lifetime=self.lifetime)
        history = max(asked.instances, int(self.remember_mb * 2**20 / (4 * asked.size + _BYTES_BESIDE)))
        if self.store == MEMORY:
            return EmbeddedStore(asked, folder=self.folder, keep_every=self.keep_every, history=history, **desk)
        from incrowd.service.redis_store import RedisStore

        return RedisStore(asked, self.store, history=history, **desk)


def serve(options: ServiceOptions, *, listening: Callable[[str], object]) -> None:
    """Serve until a signal; `listening` gets the address once the store is open.

    Guarantee: SIGTERM or SIGINT ends it cleanly: it answers the requests under way, and keeps every acknowledged
    answer. The service replaces a worker that dies.
    """
    with closing(_bound(options)) as listener:
        url = _url(options, listener)
        if options.workers == 1:
            uvloop.run(_serve(options, listener, lambda: listening(url)))
        else:
            asyncio.run(_open_once(options.new_store()))
            _supervise(options, listener, lambda: listening(url))


async def _serve(options: ServiceOptions, listener: socket.socket, ready: Callable[[], object]) -> None:
    sys.setswitchinterval(_SWITCH_S)
    store = options.new_store()
    log_to_stderr(as_json=options.log_json)
    async with answering(store, admission=options.admission) as application:
        gc.collect()
        gc.freeze()  # the collector looks at none of this again, which would hold requests up
        if options.admission is None:
            note(_log, "open_admission", level=logging.WARNING, consequence=OPEN_ADMISSION)
        fingerprint = options.specification.fingerprint
        note(_log, "start", level=logging.DEBUG, url=_url(options, listener), specification=fingerprint)
        for number in _ENDING:
            signal.signal(number, _end)  # uvicorn takes them over, and sends them on in the end
        ready()
        await server(application).serve(sockets=[listener])


def server(application: Application) -> uvicorn.Server:
    """Make the server: it logs nothing, names itself nowhere, and ignores headers about addresses."""
    return uvicorn.Server(
        uvicorn.Config(
            application.asgi,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=10,
            backlog=2048,
        )
    )


def _end(_number: int, _frame: object) -> None:
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(0)


async def _open_once(store: PoolStore) -> None:
    """Fail in this process, before any worker begins, if there is no store."""
    await store.open()
    await store.close()


def _supervise(options: ServiceOptions, listener: socket.socket, ready: Callable[[], object]) -> None:
    """Run several processes until a signal, and replace one that dies."""
    start = multiprocessing.get_context("spawn")

    def begun() -> BaseProcess:
        process = start.Process(target=_work, args=(options, listener))
        process.start()
        return process

    ending: list[int] = []
    for number in _ENDING:
        signal.signal(number, lambda given, _: ending.append(given))
    processes = [begun() for _ in range(options.workers)]
    try:
        ready()
        while not ending:
            wait([process.sentinel for process in processes], timeout=0.2)
            processes = [process if process.is_alive() or ending else begun() for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _work(options: ServiceOptions, listener: socket.socket) -> None:
    """Serve from one of several processes, which ends with its parent."""
    Thread(target=_end_with_parent, daemon=True).start()
    try:
        uvloop.run(_serve(options, listener, lambda: None))
    except IncrowdError as error:  # the next process tries again
        note(_log, "store_trouble", why=str(error))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


def _bound(options: ServiceOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listener = socket.create_server((options.host, options.port), family=family, backlog=2048)
    except OSError as error:
        where = f"{options.host}:{options.port}"
        raise ConfigError(field="port", value=where, remedy=f"{error.strerror}: give another one") from error
    listener.setblocking(False)  # noqa: FBT003 - the socket has no keyword
    return listener


def _url(options: ServiceOptions, listener: socket.socket) -> str:
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"http://{host}:{listener.getsockname()[1]}"
