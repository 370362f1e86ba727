"""A live page that is served: on this machine, until a signal says to end."""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

import uvicorn

from incrowd.errors import ConfigError
from incrowd.report.feed import PageFeed
from incrowd.report.live import Door, LivePage, new_token
from incrowd.report.sources import Sources

LOCAL = frozenset(("127.0.0.1", "localhost", "[::1]", "::1"))
"""Names of this machine that no other machine has."""

_PATIENCE_S = 1  # for pages that are open when the server ends

Told = Callable[[str], object]


def watch(
    places: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    listening: Told,
) -> None:
    """Serve the live page of what is in these places, until SIGTERM or SIGINT.

    `listening` hears the address, with the token at its end where there is one: other machines need one, so one is made
    unless it is given.

    Guarantee: without a token nobody but this machine is answered. Nothing that is watched is changed.

    Edge cases: a port that is taken, or an address that is not this machine's, is a `ConfigError`.
    """
    local = _is_local(host)
    door = Door(names=LOCAL if local else frozenset(), token=token if local or token else new_token())
    sources = Sources(places)
    with _bound(host, port) as listener:
        asyncio.run(_serve(sources, door, listener, lambda: listening(_url(listener, host, door))))


async def _serve(sources: Sources, door: Door, listener: socket.socket, ready: Callable[[], object]) -> None:
    feed = PageFeed(sources)
    looking = asyncio.create_task(feed.run())
    config = uvicorn.Config(
        LivePage(feed, door),
        lifespan="off",
        ws="none",
        access_log=False,  # what is asked for is nobody's business
        log_level="warning",
        server_header=False,
        h11_max_incomplete_event_size=16_384,
        limit_concurrency=512,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=_PATIENCE_S,
    )
    try:
        await _WatchServer(config, feed, ready).serve(sockets=[listener])
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


class _WatchServer(uvicorn.Server):
    """Says when it takes requests, and lets open pages go before it waits for them to end."""

    def __init__(self, config: uvicorn.Config, feed: PageFeed, ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._feed, self._ready = feed, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        await self._feed.close()
        await super().shutdown(sockets)


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bound(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        remedy = f"it cannot be listened to ({error}): give --host of this machine, and --port that is free, or 0"
        raise ConfigError(field="port", value=f"{host}:{port}", remedy=remedy) from error


def _url(listener: socket.socket, host: str, door: Door) -> str:
    port = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + ("" if door.token is None else f"#token={door.token}")
