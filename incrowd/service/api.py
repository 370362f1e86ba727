"""What the service answers: its problems, each with a status, a name and a remedy, and all of it as OpenAPI 3.1."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from incrowd import __version__
from incrowd.drawdiscard.desk import MARK_BYTES, TICKET_BYTES, Reason
from incrowd.drawdiscard.specification import Specification

Headers = list[tuple[bytes, bytes]]

ALWAYS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
]
"""Nothing that is served is guessed at, framed, or kept by anyone between."""

OPEN: Headers = [
    (b"access-control-allow-origin", b"*"),
    (
        b"access-control-expose-headers",
        b"incrowd-fingerprint, incrowd-gamma, incrowd-ticket, incrowd-outcome, retry-after",
    ),
]
"""Any page may be a device: drawing and answering need no cookie and no login, so that no page can borrow anyone's."""


@dataclass(frozen=True)
class Problem:
    """A request that is turned away, and what to do about it."""

    status: int
    name: str
    remedy: str
    retry_after: int | None = None

    @cached_property
    def body(self) -> bytes:
        """What is sent: JSON."""
        return json.dumps({"reason": self.name, "remedy": self.remedy}).encode()

    @cached_property
    def headers(self) -> Headers:
        """Headers for `body`; open to every page, so that a device in one can read why."""
        later = [] if self.retry_after is None else [(b"retry-after", b"%d" % self.retry_after)]
        length = b"%d" % len(self.body)
        return [(b"content-type", b"application/json"), (b"content-length", length), *later, *ALWAYS, *OPEN]


FAILED = Problem(500, "failed", "this is a mistake of the server's: tell who runs it")
NOT_FOUND = Problem(404, "not_found", "there is nothing of this name: see /openapi.json")
NOT_ALLOWED = Problem(405, "method_not_allowed", "this name takes another method: see /openapi.json")
LENGTH_REQUIRED = Problem(411, "length_required", "state the length of the body in content-length; nothing chunked")
TOO_LARGE = Problem(413, "too_large", "send four bytes for each weight, and nothing else")
TOO_OFTEN = Problem(429, "too_often", "too many requests from this address: wait for retry-after seconds", 1)
"""nginx says it, in these words."""

NO_TOKEN = Problem(401, "no_token", "send the server's token: authorization: Bearer TOKEN")
NO_ADMIN = Problem(403, "no_admin", "this server was started without a token: it takes no orders over the network")
AWAY = Problem(503, "away", "the pool is out of reach for the moment: send the same again after retry-after seconds", 1)
PAUSED = Problem(503, "paused", "answers wait at present: send the same again after retry-after seconds", 60)
NO_AVERAGE = Problem(406, "not_acceptable", "accept application/json, application/octet-stream or safetensors")

OF_REASON: dict[Reason, Problem] = {
    Reason.OTHER_SPECIFICATION: Problem(
        409, "other_specification", "read /v1/specification again: this answers another one, and cannot count"
    ),
    Reason.LATE: Problem(
        409, "late", "draw again, and add the same noised gradient to what you draw: it costs nothing"
    ),
    Reason.NOT_WEIGHTS: Problem(400, "not_weights", "send one finite little-endian float32 for each weight"),
    Reason.FORGED: Problem(403, "forged", "send the ticket that came with the draw, as it came"),
    Reason.UNLIKE: Problem(
        422, "unlike", "this is hardly what an honest device sends; one in a hundred honest ones is"
    ),
    Reason.NOT_ADMITTED: Problem(
        403, "not_admitted", "send the operator's token: incrowd-admission: ACCOUNT.SIGNATURE"
    ),
    Reason.DAY_OVER: Problem(
        403, "day_over", "the account's contributions of this day were accepted: wait for the next"
    ),
}
"""What is said of an answer that is turned away."""

OUTCOMES = {reason: reason.name.lower().encode() for reason in Reason}
"""The header ``incrowd-outcome``."""


JsonPart = dict[str, Any]

ORDERS = {
    "keep": "Put the pool on disk now.",
    "pause": "Let answers wait; draws go on.",
    "go-on": "Take answers again.",
}
_ROW = "The weights, one little-endian float32 each."
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_DRAWN = {
    "incrowd-fingerprint": ("The SHA-256 of the specification.", {"type": "string", "pattern": "^[0-9a-f]{64}$"}),
    "incrowd-gamma": ("The size of the step to take.", {"type": "number"}),
    "incrowd-ticket": ("What goes back with the answer.", {"type": "string", "pattern": "^([0-9a-f]{2})+$"}),
}
_OUTCOME = {"incrowd-outcome": ("What became of it.", {"type": "string", "enum": ["accepted", "repeated"]})}
_FILE = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
_JSON, _AVERAGES = ("application/json",), ("application/json", "application/octet-stream", "application/safetensors")
_READ: list[tuple[str, str, str, tuple[str, ...], tuple[Problem, ...]]] = [
    ("/v1/specification", "specification", "What is asked of devices.", _JSON, ()),
    (
        "/v1/average",
        "average",
        "The average over the instances.",
        _AVERAGES,
        (NO_AVERAGE, AWAY),
    ),
    ("/status.json", "status", "What the page shows.", _JSON, (AWAY,)),
    ("/health", "health", "Whether answers are taken.", _JSON, (AWAY, PAUSED)),
    ("/metrics", "metrics", "Figures for Prometheus.", ("text/plain",), (AWAY,)),
    ("/openapi.json", "openapi", "This description.", _JSON, ()),
    ("/", "page", "A page for people.", ("text/html",), (NOT_FOUND,)),
    ("/static/{name}", "static", "A part of the page, or of the device.", ("text/javascript",), (NOT_FOUND,)),
]


def openapi(asked: Specification) -> JsonPart:
    """The description of a service for a specification."""
    ticket = "That of the draw, and a mark behind it where a direction is named."
    longest = {"type": "string", "maxLength": 2 * (TICKET_BYTES + MARK_BYTES)}
    answered = (*OF_REASON.values(), LENGTH_REQUIRED, TOO_LARGE, TOO_OFTEN, AWAY, PAUSED)
    posted = {
        "operationId": "answer",
        "summary": "Send an updated instance back; the reply brings the next one.",
        "parameters": [
            _header("incrowd-fingerprint", "That of the draw.", {"type": "string", "const": asked.fingerprint}),
            _header("incrowd-ticket", ticket, longest),
            _header("incrowd-admission", "The operator's token.", {"type": "string", "maxLength": 129}, required=False),
        ],
        "requestBody": {
            "required": True,
            "description": f"Exactly {4 * asked.size} bytes. {_ROW}",
            "content": _BYTES,
            "x-bytes": 4 * asked.size,
        },
        "responses": _responses("It counts; the next instance.", _BYTES, answered, _DRAWN | _OUTCOME),
    }
    drawn = _responses(_ROW, _BYTES, (TOO_OFTEN, AWAY), _DRAWN)
    paths: JsonPart = {
        "/v1/draw": {"get": {"operationId": "draw", "summary": "A random instance.", "responses": drawn}},
        "/v1/answer": {"post": posted},
    }
    for path, name, summary, kinds, problems in _READ:
        responses = _responses(summary, {kind: {"schema": {}} for kind in kinds}, (TOO_OFTEN, *problems))
        paths[path] = {"get": {"operationId": name, "summary": summary, "responses": responses}}
    paths["/static/{name}"]["get"]["parameters"] = [_FILE]
    done = _responses("It is done.", {"application/json": {"schema": {}}}, (TOO_OFTEN, NO_TOKEN, NO_ADMIN, AWAY))
    for order, told in ORDERS.items():
        ordered = {"operationId": order, "summary": told, "security": [{"admin": []}], "responses": done}
        paths[f"/v1/admin/{order}"] = {"post": ordered}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Draw and discard: {asked.name}", "version": __version__, "description": asked.describe()},
        "paths": paths,
        "components": {"securitySchemes": {"admin": {"type": "http", "scheme": "bearer"}}},
    }


def _responses(
    told: str,
    content: JsonPart,
    problems: tuple[Problem, ...],
    headers: Mapping[str, tuple[str, JsonPart]] | None = None,
) -> JsonPart:
    """What may come back, by status: problems of one status together."""
    described = {name: {"description": text, "schema": schema} for name, (text, schema) in (headers or {}).items()}
    responses: JsonPart = {"200": {"description": told, "content": content, "headers": described}}
    by_status: dict[int, list[Problem]] = {}
    for problem in problems:
        by_status.setdefault(problem.status, []).append(problem)
    for status, those in by_status.items():
        schema = {
            "type": "object",
            "required": ["reason", "remedy"],
            "properties": {"reason": {"enum": [problem.name for problem in those]}, "remedy": {"type": "string"}},
        }
        responses[str(status)] = {
            "description": "; ".join(f"{problem.name}: {problem.remedy}" for problem in those),
            "content": {"application/json": {"schema": schema}},
        }
    return responses


def _header(name: str, told: str, schema: JsonPart, *, required: bool = True) -> JsonPart:
    return {"name": name, "in": "header", "required": required, "description": told, "schema": schema}
