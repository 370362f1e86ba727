"""A live page: the page of a report, served to this machine until a signal says to end."""

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from incrowd.errors import ConfigError
from incrowd.report.page import page
from incrowd.report.sources import Sources

PACE = 0.4
"""So many seconds pass between two looks, and three times as many as a look takes, whichever is more."""

_HOST = "127.0.0.1"
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class LivePage:
    """The page of what is watched. It looks when it is asked, at most every `PACE` seconds for all readers together."""

    def __init__(self, sources: Sources) -> None:
        self._sources, self._lock = sources, threading.Lock()
        self._text, self._next = self._page(), 0.0

    def answer(self, request: Request) -> Response:
        """The page as it stands; nothing (304) for a reader who has it."""
        with self._lock:
            if time.monotonic() >= self._next:
                begun = time.monotonic()
                if self._sources.look() and self._sources.shown:
                    self._text = self._page()
                self._next = time.monotonic() + max(PACE, 3 * (time.monotonic() - begun))
            text = self._text
        tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=_HEADERS)
        return HTMLResponse(text, headers=_HEADERS | {"etag": tag})

    def _page(self) -> str:
        shown = self._sources.shown
        over = all(one.over for one in shown)
        state = "Over: nothing will change any more" if over else "Live"
        return page(shown, state=" · ".join([state, *self._sources.troubles]))


def application(sources: Sources) -> Starlette:
    """The application (ASGI).

    Guarantee: one page is served, and it answers to the names of this machine alone, so a page of another site that has
    its name point here is refused.
    """
    named = Middleware(TrustedHostMiddleware, allowed_hosts=[_HOST, "localhost"], www_redirect=False)
    return Starlette(routes=[Route("/", LivePage(sources).answer)], middleware=[named])


def watch(places: Sequence[str], *, port: int = 0, listening: Callable[[str], object]) -> None:
    """Serve the live page of what is in these places to this machine, until SIGTERM or SIGINT; `listening` is told the
    address.

    Guarantee: nothing that is watched is changed.

    Edge cases: a port that is taken is a `ConfigError`.
    """
    app = application(Sources(places))
    try:
        listener = socket.create_server((_HOST, port))
    except (OSError, OverflowError) as error:
        remedy = f"it cannot be listened to ({error}): give a --port that is free, or 0"
        raise ConfigError(field="port", value=port, remedy=remedy) from error
    with listener:
        listening(f"http://{_HOST}:{listener.getsockname()[1]}/")
        config = uvicorn.Config(
            app, lifespan="off", ws="none", access_log=False, log_level="warning", timeout_graceful_shutdown=1
        )
        uvicorn.Server(config).run(sockets=[listener])
