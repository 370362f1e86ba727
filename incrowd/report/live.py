"""The live page over HTTP: for this machine alone, or for whoever has the token; events that tell what has changed."""

import asyncio
import hmac
import json
import secrets
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any, Protocol
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from incrowd.report.feed import PageFeed
from incrowd.report.page import entry

COOKIE = "incrowd-watch"

MOST_WATCHING = 64
"""So many pages may be open at once."""

HEARTBEAT = 10.0
"""After so many seconds without news a client hears that the server is there."""

STUCK = 30.0
"""A client that takes nothing for so many seconds is let go."""

LONGEST_FORM = 4_096

HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True, kw_only=True)
class Door:
    """Who is let in: who calls the server by one of its names, and, if there is a `token`, has that.

    Guarantee: a page of another site that has its name point here is not let in, for it calls the server by that name.
    A token is compared in constant time, and is in no address that a server, a log or another site sees.

    Edge cases: without `names` any name will do, and there has to be a token.
    """

    names: frozenset[str]
    token: str | None = field(default=None, repr=False)

    def knows(self, request: Request) -> bool:
        """Whether it was called by a name of its own, and not by a page of somebody else's."""
        host = request.headers.get("host", "").rsplit("@", 1)[-1]
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        own = request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        return (not self.names or name.lower() in self.names) and (own or request.url.path == "/")

    def open(self, request: Request) -> bool:
        """Whether the caller has the token, if there is one."""
        if self.token is None:
            return True
        try:
            cookies = SimpleCookie(request.headers.get("cookie", ""))
        except CookieError:
            return False
        return COOKIE in cookies and self.fits(cookies[COOKIE].value)

    def fits(self, given: str) -> bool:
        """Whether this is the token."""
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())


class Piece(Protocol):
    """What sends a piece of an event stream, of which there is `more`, or not."""

    def __call__(self, content: bytes, *, more: bool = True) -> Awaitable[None]:
        """Send it."""
        ...


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(24)


class LivePage:
    """The application (ASGI): `/` the page, `/events` what changes, `/enter` for those who have the token.

    Guarantee: nothing is told to who is not let in; no other path, method or host has an answer. What one client does,
    slow or stuck, costs no other one anything, and no more than so many are served.
    """

    def __init__(self, feed: PageFeed, door: Door, *, secure: bool = False) -> None:
        self._feed, self._door, self._secure = feed, door, secure
        self._watching = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        if request.url.path == "/events" and request.method == "GET" and self._welcome(request):
            await self._events(request, receive, send)
            return
        response = await self._answer(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    def _welcome(self, request: Request) -> bool:
        return self._door.knows(request) and self._door.open(request)

    async def _answer(self, request: Request) -> Response:
        if not self._door.knows(request):
            return PlainTextResponse("this server is not called so\n", 421)
        if request.url.path == "/enter" and request.method == "POST" and self._door.token is not None:
            return await self._enter(request)
        if request.url.path == "/events":
            return PlainTextResponse("a token is needed\n", 401)
        if request.url.path != "/" or request.method not in ("GET", "HEAD"):
            return PlainTextResponse("there is nothing here\n", 404)
        if not self._door.open(request):
            return HTMLResponse(entry(), 401)
        return HTMLResponse(self._feed.page)

    async def _enter(self, request: Request) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > LONGEST_FORM:
                return PlainTextResponse("that is no token\n", 413)
        given = parse_qs(body.decode("ascii", "replace")).get("token", [""])[0]
        if not self._door.fits(given):
            await asyncio.sleep(0.5)
            return HTMLResponse(entry(wrong=True), 403)
        response = RedirectResponse("/", 303)
        response.set_cookie(COOKIE, given, httponly=True, samesite="strict", secure=self._secure, path="/")
        return response

    async def _events(self, request: Request, receive: Receive, send: Send) -> None:
        """Tell a client what it has not seen, again and again, until it goes, or takes nothing any more."""
        if self._watching >= MOST_WATCHING:
            await PlainTextResponse("too many pages are open\n", 503)(request.scope, receive, send)
            return
        self._watching += 1
        try:
            gone = asyncio.ensure_future(_until_gone(receive))
            telling = asyncio.ensure_future(self._tell(request, _patient(send)))
            await asyncio.wait({gone, telling}, return_when=asyncio.FIRST_COMPLETED)
            for task in (gone, telling):
                task.cancel()
            await asyncio.gather(gone, telling, return_exceptions=True)
        finally:
            self._watching -= 1

    async def _tell(self, request: Request, send: Piece) -> None:
        feed = self._feed
        seen = _number(request.headers.get("last-event-id") or request.query_params.get("seen"), most=feed.version)
        layout = request.query_params.get("layout", "")
        await send(b"retry: 1000\n\n")
        said: tuple[str, str] | None = None
        while not feed.closed:
            if layout != feed.layout:
                await send(_event("reload", {}, feed.version), more=False)
                return
            version, changed = feed.version, feed.since(seen)
            if changed:
                await send(_event("sections", changed, version))
            standing = "over" if feed.over else "live", feed.trouble
            if standing != said:
                await send(_event("standing", {"is": standing[0], "trouble": standing[1]}, version))
            elif not changed:
                await send(b": still here\n\n")
            seen, said = version, standing
            await feed.wait(version, at_most=HEARTBEAT)
        await send(b"", more=False)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _patient(send: Send) -> Piece:
    """What sends pieces of an event stream; a client that is stuck is a `TimeoutError`."""
    begun = False

    async def piece(content: bytes, *, more: bool = True) -> None:
        nonlocal begun
        if not begun:
            begun = True
            headers = HEADERS | {"content-type": "text/event-stream", "x-accel-buffering": "no"}
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": raw})
        message: dict[str, Any] = {"type": "http.response.body", "body": content, "more_body": more}
        await asyncio.wait_for(send(message), STUCK)

    return piece


def _event(kind: str, content: object, version: int) -> bytes:
    return f"id: {version}\nevent: {kind}\ndata: {json.dumps(content)}\n\n".encode()


def _number(given: str | None, *, most: int) -> int:
    """The version that a client says it has seen; 0, all is new, where that makes no sense."""
    with suppress(TypeError, ValueError):
        number = int(given or "")
        return number if 0 <= number <= most else 0
    return 0
