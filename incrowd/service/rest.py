"""The requests: draw and answer, what is read now and then, the modules for browsers."""

import asyncio
import hashlib
import json
import logging
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources
from pathlib import Path

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from incrowd._log import note
from incrowd.drawdiscard.desk import Reason
from incrowd.drawdiscard.showing import PoolFigures
from incrowd.service.problems import (
    ALWAYS,
    AWAY,
    FAILED,
    LENGTH_REQUIRED,
    NOT_ALLOWED,
    NOT_FOUND,
    OF_REASON,
    OPEN,
    OUTCOMES,
    TOO_LARGE,
    Headers,
    Problem,
)
from incrowd.service.store import HandedOut, StoreAway
from incrowd.service.tending import Board, Tending, exposition

Replying = Callable[[Request], Awaitable[Response]]

_MODULE = "text/javascript; charset=utf-8"
LONGEST_TICKET = 256
"""Digits of the longest ticket that is looked at."""

_PREFLIGHT: Headers = [
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"content-type, incrowd-admission, incrowd-fingerprint, incrowd-ticket"),
    (b"access-control-max-age", b"86400"),
]


_log = logging.getLogger(__name__)


class Rest:
    """The application: a Starlette one.

    `refused` counts refusals by reason.

    Guarantee: the device's calls are open to pages of every origin; figures are not. A body is read only where its
    stated length is that of an answer. Nothing looks at the address of a client.
    """

    def __init__(self, tending: Tending, board: Board) -> None:
        self._tending, self._store, self._board = tending, tending.store, board
        asked = self._store.desk.specification
        self._asked, self._specification = asked, asked.to_json().encode()
        self._bytes, self._fingerprint = 4 * asked.size, asked.fingerprint.encode()
        self._files = _files()
        self._turn = asyncio.Lock()
        self._averaged: tuple[PoolFigures | None, bytes] = (None, b"")
        self.draws = 0
        self.refused: Counter[str] = Counter()
        self.application = Starlette(
            routes=[
                self._of_devices("/v1/answer", self._answer, "POST"),
                self._of_devices("/v1/draw", self._draw, "GET"),
                self._of_devices("/v1/specification", self._asked_of_devices, "GET"),
                self._of_devices("/v1/average", self._average, "GET"),
                Route("/status.json", self._status, methods=["GET"]),
                Route("/health", self._health, methods=["GET"]),
                Route("/metrics", self._figures, methods=["GET"]),
                Route("/static/{name}", self._static, methods=["GET"]),
            ],
            exception_handlers={HTTPException: self._unknown, StoreAway: self._away, Exception: self._failed},
        )
        self.application.router.redirect_slashes = False

    def _of_devices(self, path: str, answer: Replying, method: str) -> Route:
        """A call of devices, which pages of every origin may make."""

        async def answering(request: Request) -> Response:
            if request.method == "OPTIONS":
                return self._reply(b"", "text/plain", [*OPEN, *_PREFLIGHT], status=204)
            return await answer(request)

        return Route(path, answering, methods=[method, "OPTIONS"])

    async def _away(self, request: Request, error: Exception) -> Response:
        return self._problem(AWAY)

    async def _draw(self, request: Request) -> Response:
        drawn = await self._tending.draw()
        self.draws += 1
        return self._hand(drawn, [])

    async def _answer(self, request: Request) -> Response:
        headers = request.headers
        problem = self._wrong_length(headers)
        if problem is not None:
            return self._problem(problem, close=True)
        if headers.get("incrowd-fingerprint") != self._asked.fingerprint:
            self._store.count("other_specification")
            return self._problem(OF_REASON[Reason.OTHER_SPECIFICATION])
        body = await request.body()
        if len(body) != self._bytes:
            return self._problem(OF_REASON[Reason.NOT_WEIGHTS])
        ticket = _ticket(headers.get("incrowd-ticket", ""))
        token = headers.get("incrowd-admission", "")
        reason, following = await self._tending.offer(np.frombuffer(body, "<f4"), ticket, token)
        if following is None:
            return self._problem(OF_REASON[reason])
        return self._hand(following, [(b"incrowd-outcome", OUTCOMES[reason])])

    def _wrong_length(self, headers: Mapping[str, str]) -> Problem | None:
        stated = headers.get("content-length")
        if stated is None or "transfer-encoding" in headers:
            return LENGTH_REQUIRED
        return TOO_LARGE if stated.isdigit() and int(stated[:20]) > self._bytes else None

    def _hand(self, instance: HandedOut, outcome: Headers) -> Response:
        version, row, accepted = instance
        drawn = self._store.desk.hand_out(version, row, accepted=accepted)
        response = Response(row.data.cast("B"))
        response.raw_headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", b"%d" % self._bytes),
            (b"incrowd-fingerprint", self._fingerprint),
            (b"incrowd-gamma", repr(drawn.gamma).encode()),
            (b"incrowd-ticket", drawn.ticket.hex().encode()),
            *outcome,
            *ALWAYS,
            *OPEN,
        ]
        return response

    async def _asked_of_devices(self, request: Request) -> Response:
        return self._reply(self._specification, "application/json", OPEN)

    async def _average(self, request: Request) -> Response:
        figures = await self._board.figures()
        async with self._turn:  # written once for all who ask: of many weights that takes a while
            if figures is not self._averaged[0]:
                self._averaged = figures, await asyncio.to_thread(_written, figures)
            content = self._averaged[1]
        return self._reply(content, "application/json", [*OPEN, (b"incrowd-fingerprint", self._fingerprint)])

    async def _status(self, request: Request) -> Response:
        status = await self._board.status()
        return self._reply(json.dumps(status, allow_nan=False).encode(), "application/json", [])

    async def _health(self, request: Request) -> Response:
        await self._board.figures()
        if self._store.trouble is not None:
            return self._problem(AWAY)
        return self._reply(b'{"health": "well"}', "application/json", [])

    async def _figures(self, request: Request) -> Response:
        text = exposition(await self._board.status(), draws=self.draws, refused=self.refused)
        return self._reply(text.encode(), "text/plain; version=0.0.4; charset=utf-8", [])

    async def _static(self, request: Request) -> Response:
        content = self._files.get(request.path_params["name"])
        if content is None:
            return self._problem(NOT_FOUND)
        tag = b'"' + hashlib.sha256(content).hexdigest()[:32].encode() + b'"'
        fresh = request.headers.get("if-none-match", "").encode("latin-1") == tag
        headers = [(b"etag", tag), *OPEN]
        if fresh:  # its headers replace those that are kept
            return self._reply(b"", _MODULE, headers, status=304, cache=b"no-cache")
        return self._reply(content, _MODULE, headers, cache=b"no-cache")

    async def _unknown(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException) or error.status_code != NOT_ALLOWED.status:
            return self._problem(NOT_FOUND)
        response = self._problem(NOT_ALLOWED)
        response.headers["allow"] = dict(error.headers or {}).get("Allow", "")
        return response

    async def _failed(self, request: Request, error: Exception) -> Response:
        """A mistake of ours; where it happened is told, and not what with."""
        *_, last = traceback.extract_tb(error.__traceback__)
        at = f"{Path(last.filename).name}:{last.lineno}"
        note(_log, "failed", level=logging.ERROR, error=type(error).__name__, at=at)
        return self._problem(FAILED, close=True)

    def _problem(self, problem: Problem, *, close: bool = False) -> Response:
        self.refused[problem.name] += 1
        response = Response(problem.body, status_code=problem.status)
        response.raw_headers = [*problem.headers, *([(b"connection", b"close")] if close else [])]
        return response

    def _reply(
        self,
        content: bytes,
        kind: str,
        headers: Headers,
        *,
        status: int = 200,
        cache: bytes = b"no-store",
    ) -> Response:
        response = Response(content, status_code=status)
        always = dict(ALWAYS) | {b"cache-control": cache}
        length = [] if status in (204, 304) else [(b"content-length", b"%d" % len(content))]
        response.raw_headers = [(b"content-type", kind.encode()), *length, *always.items(), *headers]
        return response


def _ticket(value: str) -> bytes:
    """The bytes that a header spells; none where it spells none."""
    try:
        return bytes.fromhex(value) if len(value) <= LONGEST_TICKET else b""
    except ValueError:
        return b""


def _written(figures: PoolFigures) -> bytes:
    return json.dumps({"weights": figures.mean.tolist()}, allow_nan=False).encode()


def _files() -> dict[str, bytes]:
    folder = resources.files("incrowd.service") / "static"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name.endswith(".mjs")}
