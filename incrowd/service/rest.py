"""Everything but draw and answer: what is read now and then, what an operator orders, the page and its parts."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from incrowd.drawdiscard.kept_pool import packed
from incrowd.drawdiscard.showing import PoolFigures
from incrowd.service.board import Board
from incrowd.service.openapi import ORDERS, openapi
from incrowd.service.problems import (
    ALWAYS,
    AWAY,
    NO_ADMIN,
    NO_AVERAGE,
    NO_TOKEN,
    NOT_ALLOWED,
    NOT_FOUND,
    OPEN,
    PAUSED,
    Headers,
    Problem,
)
from incrowd.service.store import PoolStore, StoreAway

Replying = Callable[[Request], Awaitable[Response]]

_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "svg": "image/svg+xml",
}
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PREFLIGHT: Headers = [
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"content-type, incrowd-fingerprint, incrowd-ticket"),
    (b"access-control-max-age", b"86400"),
]


class Rest:
    """The Starlette application for all that is not hot.

    `token` is what orders have to show; without one none are taken. `metrics` writes the figures for a monitor.

    Guarantee: the token is compared in constant time. The device's calls are open to pages of every origin; figures,
    orders and the page are not. Bodies are not read.
    """

    def __init__(
        self,
        store: PoolStore,
        board: Board,
        *,
        token: str | None,
        metrics: Callable[[dict[str, Any]], str],
        extra: Headers,
    ) -> None:
        self._store, self._board, self._metrics, self._extra = store, board, metrics, extra
        self._token = None if token is None else hashlib.sha256(token.encode()).digest()
        asked = store.desk.specification
        self._asked, self._specification = asked, asked.to_json().encode()
        self._openapi = json.dumps(openapi(asked)).encode()
        self._files = _files()
        self._turn = asyncio.Lock()
        self._averaged: PoolFigures | None = None
        self._averages: dict[str, bytes] = {}
        device = ("/v1/specification", "/v1/draw", "/v1/answer", "/v1/average")
        self.application = Starlette(
            routes=[
                Route("/v1/specification", self._answer(self._asked_of_devices), methods=["GET"]),
                Route("/v1/average", self._answer(self._average), methods=["GET"]),
                *(Route(path, self._answer(self._preflight), methods=["OPTIONS"]) for path in device),
                Route("/status.json", self._answer(self._status), methods=["GET"]),
                Route("/health", self._answer(self._health), methods=["GET"]),
                Route("/metrics", self._answer(self._figures), methods=["GET"]),
                Route("/openapi.json", self._answer(self._description), methods=["GET"]),
                Route("/", self._answer(self._static), methods=["GET"]),
                Route("/static/{name}", self._answer(self._static), methods=["GET"]),
                Route("/v1/admin/{order}", self._answer(self._order), methods=["POST"]),
            ],
            exception_handlers={HTTPException: self._unknown},
        )
        self.application.router.redirect_slashes = False

    def _answer(self, answer: Replying) -> Replying:
        """The same, where the store may be away."""

        async def answering(request: Request) -> Response:
            try:
                return await answer(request)
            except StoreAway:
                return self._problem(AWAY)

        return answering

    async def _asked_of_devices(self, request: Request) -> Response:
        return self._reply(self._specification, "application/json", OPEN)

    async def _average(self, request: Request) -> Response:
        kind = _accepted(request.headers.get("accept", ""))
        if kind is None:
            return self._problem(NO_AVERAGE)
        figures = await self._board.figures()
        async with self._turn:  # written once for all who ask: of many weights that takes a while
            if figures is not self._averaged:
                self._averaged, self._averages = figures, {}
            if kind not in self._averages:
                self._averages[kind] = await asyncio.to_thread(_WRITTEN[kind], figures.average)
            content = self._averages[kind]
        headers = [*OPEN, (b"incrowd-fingerprint", self._asked.fingerprint.encode()), (b"vary", b"accept")]
        return self._reply(content, kind, headers)

    async def _preflight(self, request: Request) -> Response:
        return self._reply(b"", "text/plain", [*OPEN, *_PREFLIGHT], status=204)

    async def _status(self, request: Request) -> Response:
        status = await self._board.status()
        return self._reply(json.dumps(status, allow_nan=False).encode(), "application/json", [])

    async def _health(self, request: Request) -> Response:
        if self._store.trouble is not None:
            return self._problem(AWAY)
        if self._store.paused:
            return self._problem(PAUSED)
        return self._reply(b'{"health": "well"}', "application/json", [])

    async def _figures(self, request: Request) -> Response:
        text = self._metrics(await self._board.status())
        return self._reply(text.encode(), "text/plain; version=0.0.4; charset=utf-8", [])

    async def _description(self, request: Request) -> Response:
        return self._reply(self._openapi, "application/json", OPEN)

    async def _static(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        content = self._files.get(name)
        if content is None:
            return self._problem(NOT_FOUND)
        kind = _KINDS[name.rpartition(".")[2]]
        tag = b'"' + hashlib.sha256(content).hexdigest()[:32].encode() + b'"'
        headers = [(b"etag", tag), *(OPEN if name.endswith("js") else [])]
        policy = _PAGE_POLICY.encode()
        if request.headers.get("if-none-match", "").encode("latin-1") == tag:  # its headers replace those that are kept
            return self._reply(b"", kind, headers, status=304, cache=b"no-cache", policy=policy)
        return self._reply(content, kind, headers, cache=b"no-cache", policy=policy)

    async def _order(self, request: Request) -> Response:
        if self._token is None:
            return self._problem(NO_ADMIN)
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(hashlib.sha256(given.encode("latin-1")).digest(), self._token):
            return self._problem(NO_TOKEN)
        order = request.path_params["order"]
        if order not in ORDERS:
            return self._problem(NOT_FOUND)
        if order == "keep":
            await self._store.keep()
        else:
            await self._store.pause(paused=order == "pause")
        return self._reply(json.dumps({"done": order}).encode(), "application/json", [])

    async def _unknown(self, request: Request, error: Exception) -> Response:
        wrong_method = isinstance(error, HTTPException) and error.status_code == NOT_ALLOWED.status
        return self._problem(NOT_ALLOWED if wrong_method else NOT_FOUND)

    def _problem(self, problem: Problem) -> Response:
        response = Response(problem.body, status_code=problem.status)
        response.raw_headers = [*problem.headers, *self._extra]
        return response

    def _reply(
        self,
        content: bytes,
        kind: str,
        headers: Headers,
        *,
        status: int = 200,
        cache: bytes | None = None,
        policy: bytes | None = None,
    ) -> Response:
        response = Response(content, status_code=status)
        own = {b"cache-control": cache, b"content-security-policy": policy}
        always = [(name, own.get(name) or value) for name, value in ALWAYS]
        length = [] if status in (204, 304) else [(b"content-length", b"%d" % len(content))]
        response.raw_headers = [(b"content-type", kind.encode()), *length, *always, *headers, *self._extra]
        return response


def _accepted(accept: str) -> str | None:
    """The first kind that is accepted, in the order of the header; JSON where all are."""
    for part in accept.lower().split(",") or [""]:
        wanted = part.partition(";")[0].strip()
        if wanted in ("", "*/*", "application/*"):
            return "application/json"
        if wanted in _WRITTEN:
            return wanted
    return None


_WRITTEN: dict[str, Callable[[Any], bytes]] = {
    "application/json": lambda average: json.dumps({"weights": average.tolist()}, allow_nan=False).encode(),
    "application/octet-stream": lambda average: average.astype("<f4").tobytes(),
    "application/safetensors": lambda average: packed({"weights": average.astype(np.float32)}),
}


def _files() -> dict[str, bytes]:
    """The files of the page and of the device, which are few and small."""
    folder = resources.files("incrowd.service") / "static"
    if not folder.is_dir():
        return {}
    return {
        each.name: each.read_bytes()
        for each in folder.iterdir()
        if each.is_file() and each.name.rpartition(".")[2] in _KINDS
    }
