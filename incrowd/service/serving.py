"""A service that runs: one process, or several that share a socket and a Redis."""

import asyncio
import gc
import ipaddress
import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
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
from incrowd.service.rest import Rest
from incrowd.service.store import KEEP_EVERY, EmbeddedStore, PoolStore, StoreAway
from incrowd.service.tending import Board, Tending

REFUSALS_EVERY_S = 60.0
"""Refusals are counted for so long, and told in one line: a flood of requests is none of lines."""

_log = logging.getLogger(__name__)


class Changes:
    """Logs whether the store is well, and how many requests were refused: no address, no ticket, no content of one."""

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


@asynccontextmanager
async def answering(store: PoolStore, *, admission: Admission | None = None) -> AsyncIterator[Rest]:
    """What answers requests for a store, as long as this lasts: see `Rest`, and `ServiceOptions` for `admission`.

    The store is opened before the first request and closed after the last, and what was acknowledged by then is kept.
    """
    await store.open()
    tending = Tending(store, admission)
    board = Board(tending)
    rest = Rest(tending, board)
    with suppress(StoreAway):
        tending.accepted = (await store.figures()).accepted
    ticking = asyncio.create_task(_tick(store, board, rest))
    try:
        yield rest
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        await store.close()
        note(_log, "stop", level=logging.DEBUG, accepted=tending.accepted, refused=dict(rest.refused))


async def _tick(store: PoolStore, board: Board, rest: Rest) -> None:
    changes = Changes()
    while True:
        board.tick()
        changes.look(store.trouble, rest.refused, now=time.monotonic())
        await asyncio.sleep(1.0)


MEMORY = "memory"

SWITCH_S = 0.0005
"""Seconds after which a thread lets another go on: a keep does not hold up requests for the usual 5 ms at a time."""

BESIDE = 500
"""Bytes that a remembered version takes beside its weights, with the digest of an answer."""

WRONG_USE = 2

OPEN_ADMISSION = "anybody who can reach this service may contribute as often as they like: one address spoils the model"

Listening = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """What `incrowd serve` was asked for.

    `admission` says who may contribute; without it everybody may. `remember_mb` is the memory for replaced versions: a
    device can have drawn any of those and still answer. A `host` that other machines can reach is refused: TLS, and
    limits on who asks how often, are a proxy's.
    """

    specification: Specification
    store: str = MEMORY
    folder: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    keep_every: float = KEEP_EVERY
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
        if not _loopback(self.host):
            remedy = "give 127.0.0.1 or ::1: other machines come in through nginx (incrowd serve --nginx)"
            raise ConfigError(field="host", value=self.host, remedy=remedy)

    def admitting(self, key: Path, *, daily: int) -> "ServiceOptions":
        """The same for those alone who show a token of this key, which is made if there is none."""
        return replace(self, admission=Admission(key=key_in(key), daily=daily))

    @property
    def history(self) -> int:
        """How many replaced versions are remembered."""
        return max(self.specification.instances, int(self.remember_mb * 2**20 / (4 * self.specification.size + BESIDE)))

    def opened(self) -> PoolStore:
        """The store that was asked for."""
        desk: DeskSettings = {"turned_away": self.turned_away, "lifetime": self.lifetime}
        if self.store == MEMORY:
            return EmbeddedStore(
                self.specification, folder=self.folder, keep_every=self.keep_every, history=self.history, **desk
            )
        from incrowd.service.redis_store import RedisStore

        return RedisStore(self.specification, self.store, history=self.history, **desk)


def serve(options: ServiceOptions, *, listening: Listening) -> int:
    """Serve until a signal says to end; the exit status. `listening` hears the address once requests are taken.

    Guarantee: SIGTERM or SIGINT ends it cleanly: requests under way are answered, and what was acknowledged is kept.
    Of several processes one that dies is replaced.
    """
    with _bound(options) as listener:
        url = _url(options, listener)
        if options.workers == 1:
            asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_serve(options, listener, lambda: listening(url)))
            return 0
        return _supervise(options, listener, lambda: listening(url))


async def _serve(options: ServiceOptions, listener: socket.socket, ready: Callable[[], object]) -> None:
    sys.setswitchinterval(SWITCH_S)
    store = options.opened()
    log_to_stderr(as_json=options.log_json)
    async with answering(store, admission=options.admission) as rest:
        gc.collect()
        gc.freeze()  # what is here stays: looking through it now and then would keep devices waiting
        fingerprint = options.specification.fingerprint
        if options.admission is None:
            note(_log, "open_admission", level=logging.WARNING, consequence=OPEN_ADMISSION)
        note(_log, "start", level=logging.DEBUG, url=_url(options, listener), specification=fingerprint)
        await Served(settings(rest), ready).serve(sockets=[listener])


def settings(rest: Rest) -> uvicorn.Config:
    """How uvicorn serves: no log of its own, no names of itself. Nobody's word about addresses is listened to."""
    return uvicorn.Config(
        rest.application,
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


class Served(uvicorn.Server):
    """uvicorn's server, which says when it listens, and which a signal ends without an error."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See `uvicorn.Server`: the same, but the signal is not raised again afterwards."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def _supervise(options: ServiceOptions, listener: socket.socket, ready: Callable[[], object]) -> int:
    """Several processes, each replaced when it dies, until a signal says to end."""
    start = multiprocessing.get_context("spawn")
    reports, report = start.Pipe(duplex=False)

    def begun() -> BaseProcess:
        process = start.Process(target=_work, args=(options, listener, report))
        process.start()
        return process

    ending: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda given, _: ending.append(given))
    processes = [begun() for _ in range(options.workers)]
    heard = 0
    try:
        while not ending:
            wait([reports, *(process.sentinel for process in processes)], timeout=0.2)
            while reports.poll():
                reports.recv()
                heard += 1
                if heard == options.workers:
                    ready()
            for place, process in enumerate(processes):
                if process.exitcode is not None and not ending:
                    if heard < options.workers or process.exitcode == WRONG_USE:
                        return process.exitcode or 1
                    processes[place] = begun()
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
    return 0


def _work(
    options: ServiceOptions, listener: socket.socket, report: "multiprocessing.connection.Connection[str]"
) -> None:
    """One of several processes, which ends with the one that began it, however that ended."""
    Thread(target=_end_with_parent, daemon=True).start()
    try:
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        runner.run(_serve(options, listener, lambda: report.send("listens")))
    except IncrowdError as error:
        print(f"incrowd: {error}", file=sys.stderr)  # noqa: T201 - the process's only way to say why it ends
        sys.exit(WRONG_USE if isinstance(error, ConfigError) else 1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _bound(options: ServiceOptions) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((options.host, options.port))
        except OSError as error:
            where = f"{options.host}:{options.port}"
            raise ConfigError(field="port", value=where, remedy=f"{error.strerror}: give another one") from error
        listener.listen(2048)
        listener.setblocking(False)  # noqa: FBT003 - the socket's own way to say it
        yield listener
    finally:
        listener.close()


def _url(options: ServiceOptions, listener: socket.socket) -> str:
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"http://{host}:{listener.getsockname()[1]}"


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
