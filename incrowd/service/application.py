"""The HTTP application: devices draw and answer, monitors read figures, browsers load the device's modules."""

import asyncio
import json
import logging
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from importlib import resources
from pathlib import Path

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from incrowd._log import note
from incrowd.drawdiscard.server import PoolFigures
from incrowd.service.pool_service import PoolService, prometheus_text
from incrowd.service.store import HandedOut, StoreAway

_Header = tuple[bytes, bytes]
_Headers = Sequence[_Header]

_ALWAYS: _Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]
_ANY_ORIGIN: _Headers = [
    (b"access-control-allow-origin", b"*"),
    (
        b"access-control-expose-headers",
        b"incrowd-fingerprint, incrowd-gamma, incrowd-ticket, incrowd-outcome, retry-after",
    ),
]
_PREFLIGHT: _Headers = [
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"content-type, incrowd-admission, incrowd-fingerprint, incrowd-ticket"),
    (b"access-control-max-age", b"86400"),
]
_JSON, _BYTES = (b"content-type", b"application/json"), (b"content-type", b"application/octet-stream")
_MODULE = (b"content-type", b"text/javascript; charset=utf-8")
_METRICS = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_LONGEST_TICKET = 256  # hexadecimal digits

_log = logging.getLogger(__name__)


PROBLEMS = {
    "failed": (500, "this is a mistake of the server's: tell its operator"),
    "not_found": (404, "docs/service.md lists the names that the service has"),
    "method_not_allowed": (405, "this name takes another method: docs/service.md says which"),
    "length_required": (411, "state the length of the body in content-length; nothing chunked"),
    "too_large": (413, "send four bytes for each weight, and nothing else"),
    "away": (503, "the pool is out of reach for the moment: send the same again after retry-after seconds"),
    "other_specification": (409, "read /v1/specification again: this answers another one, and cannot count"),
    "late": (409, "draw again, and add the same noised gradient to what you draw: it costs nothing"),
    "not_weights": (400, "send one finite little-endian float32 for each weight"),
    "forged": (403, "send the ticket that came with the draw, as it came"),
    "unlike": (422, "this is hardly what an honest device sends; one in a hundred honest ones is"),
    "not_admitted": (403, "send the operator's token: incrowd-admission: ACCOUNT.SIGNATURE"),
    "day_over": (403, "the account's contributions of this day were accepted: wait for the next"),
}
"""The status and the remedy of each refusal, by its name for programs; those of answers have the names of `Reason`."""

_CLOSE = (b"connection", b"close")
_WITH = {"away": (b"retry-after", b"1"), "failed": _CLOSE, "length_required": _CLOSE, "too_large": _CLOSE}


class _Reply(Response):
    """A reply with these headers, its length, and the headers of every reply."""

    def __init__(
        self, body: bytes | memoryview, *headers: _Header, status: int = 200, cached: bytes = b"no-store"
    ) -> None:
        self.body, self.status_code, self.background = body, status, None
        length = [] if status in (204, 304) else [(b"content-length", b"%d" % len(body))]
        self.raw_headers = [*headers, *length, (b"cache-control", cached), *_ALWAYS]


@cache
def _refusal(name: str, *headers: _Header) -> _Reply:
    """Any page may read why its device was refused."""
    status, remedy = PROBLEMS[name]
    more = [_WITH[name]] if name in _WITH else []
    body = json.dumps({"reason": name, "remedy": remedy}).encode()
    return _Reply(body, _JSON, *more, *headers, *_ANY_ORIGIN, status=status)


class Application:
    """The requests to a pool. `draws` counts the instances handed out, `refused` the refusals by reason.

    Guarantee: pages of every origin may make a device's calls, without credentials, and may not read figures. The
    service reads a body only if its stated length is at most an answer's. It never looks at a client's address.
    """

    def __init__(self, pool: PoolService) -> None:
        self._pool, self._store = pool, pool.store
        specification = self._store.desk.specification
        self._specification = specification.to_json().encode()
        self._size, self._fingerprint = 4 * specification.size, specification.fingerprint
        self._of_this = (b"incrowd-fingerprint", self._fingerprint.encode())
        self._modules = _modules()
        self._turn = asyncio.Lock()
        self._average_of: tuple[PoolFigures | None, bytes] = (None, b"")
        self.draws = 0
        self.refused: Counter[str] = Counter()
        self.asgi = Starlette(
            routes=[
                _device_call("/v1/answer", self._answer, "POST"),
                _device_call("/v1/draw", self._draw, "GET"),
                _device_call("/v1/specification", self._show_specification, "GET"),
                _device_call("/v1/average", self._average, "GET"),
                Route("/status.json", self._status),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/static/{name}", self._static),
            ],
            exception_handlers={HTTPException: self._unknown, StoreAway: self._away, Exception: self._failed},
        )
        self.asgi.router.redirect_slashes = False

    async def _draw(self, request: Request) -> Response:
        drawn = await self._pool.draw()
        self.draws += 1
        return self._instance(drawn)

    async def _answer(self, request: Request) -> Response:
        headers = request.headers
        stated = headers.get("content-length")
        if stated is None or "transfer-encoding" in headers:
            return self._refuse("length_required")
        if stated.isdigit() and int(stated[:20]) > self._size:
            return self._refuse("too_large")
        if headers.get("incrowd-fingerprint") != self._fingerprint:
            self._store.turned["other_specification"] += 1
            return self._refuse("other_specification")
        body = await request.body()
        if len(body) != self._size:
            return self._refuse("not_weights")
        ticket, token = _ticket(headers.get("incrowd-ticket", "")), headers.get("incrowd-admission", "")
        reason, following = await self._pool.offer(np.frombuffer(body, "<f4"), ticket, token)
        if following is None:
            return self._refuse(reason.name.lower())
        return self._instance(following, (b"incrowd-outcome", reason.name.lower().encode()))

    def _instance(self, instance: HandedOut, *outcome: _Header) -> Response:
        version, row, accepted = instance
        drawn = self._store.desk.hand_out(version, row, accepted=accepted)
        gamma, ticket = repr(drawn.gamma).encode(), drawn.ticket.hex().encode()
        stated = (_BYTES, self._of_this, (b"incrowd-gamma", gamma), (b"incrowd-ticket", ticket))
        return _Reply(row.data.cast("B"), *stated, *outcome, *_ANY_ORIGIN)

    async def _show_specification(self, request: Request) -> Response:
        return _Reply(self._specification, _JSON, *_ANY_ORIGIN)

    async def _average(self, request: Request) -> Response:
        figures = await self._pool.figures()
        async with self._turn:  # many weights take long to write: once for all readers
            if figures is not self._average_of[0]:
                self._average_of = figures, await asyncio.to_thread(_weights_json, figures)
            content = self._average_of[1]
        return _Reply(content, _JSON, self._of_this, *_ANY_ORIGIN)

    async def _status(self, request: Request) -> Response:
        return _Reply(json.dumps(await self._pool.status(), allow_nan=False).encode(), _JSON)

    async def _health(self, request: Request) -> Response:
        await self._pool.figures()
        return self._refuse("away") if self._store.trouble else _Reply(b'{"health": "well"}', _JSON)

    async def _metrics(self, request: Request) -> Response:
        text = prometheus_text(await self._pool.status(), draws=self.draws, refused=self.refused)
        return _Reply(text.encode(), _METRICS)

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._modules:
            return self._refuse("not_found")
        content, tag = self._modules[name]
        known = request.headers.get("if-none-match", "").encode("latin-1") == tag
        body, status = (b"", HTTPStatus.NOT_MODIFIED) if known else (content, HTTPStatus.OK)
        return _Reply(body, _MODULE, (b"etag", tag), *_ANY_ORIGIN, status=status, cached=b"no-cache")

    async def _unknown(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException) or error.status_code != HTTPStatus.METHOD_NOT_ALLOWED:
            return self._refuse("not_found")
        return self._refuse("method_not_allowed", (b"allow", dict(error.headers or {}).get("Allow", "").encode()))

    async def _away(self, request: Request, error: Exception) -> Response:
        return self._refuse("away")

    async def _failed(self, request: Request, error: Exception) -> Response:
        """Log the place of a mistake in incrowd, and no value."""
        *_, last = traceback.extract_tb(error.__traceback__)
        place = f"{Path(last.filename).name}:{last.lineno}"
        note(_log, "failed", level=logging.ERROR, error=type(error).__name__, at=place)
        return self._refuse("failed")

    def _refuse(self, name: str, *headers: _Header) -> Response:
        self.refused[name] += 1
        return _refusal(name, *headers)


def _device_call(path: str, handler: Callable[[Request], Awaitable[Response]], method: str) -> Route:
    """Make a route that pages of every origin may call."""

    async def handle(request: Request) -> Response:
        if request.method == "OPTIONS":
            return _Reply(b"", *_ANY_ORIGIN, *_PREFLIGHT, status=HTTPStatus.NO_CONTENT)
        return await handler(request)

    return Route(path, handle, methods=[method, "OPTIONS"])


def _ticket(digits: str) -> bytes:
    """Read a ticket from its header; a malformed one is empty."""
    try:
        return bytes.fromhex(digits) if len(digits) <= _LONGEST_TICKET else b""
    except ValueError:
        return b""


def _weights_json(figures: PoolFigures) -> bytes:
    return json.dumps({"weights": figures.mean.tolist()}, allow_nan=False).encode()


def _modules() -> dict[str, tuple[bytes, bytes]]:
    """Read the device's modules, each with its entity tag."""
    files = [file for file in (resources.files("incrowd.service") / "static").iterdir() if file.name.endswith(".mjs")]
    return {file.name: (body := file.read_bytes(), b'"%s"' % sha256(body).hexdigest()[:32].encode()) for file in files}
