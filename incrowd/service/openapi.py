"""What the service answers, described for programs: OpenAPI 3.1, every error included."""

from typing import Any

from incrowd import __version__
from incrowd.drawdiscard.specification import Specification
from incrowd.drawdiscard.tickets import MARK_BYTES, TICKET_BYTES
from incrowd.service.problems import (
    AWAY,
    LENGTH_REQUIRED,
    NO_ADMIN,
    NO_AVERAGE,
    NO_TOKEN,
    NOT_FOUND,
    OF_REASON,
    PAUSED,
    TOO_LARGE,
    TOO_OFTEN,
    Problem,
)

JsonPart = dict[str, Any]

_ROW = "The weights, one little-endian float32 each."
_DRAWN = {
    "incrowd-fingerprint": ("The SHA-256 of the specification.", {"type": "string", "pattern": "^[0-9a-f]{64}$"}),
    "incrowd-gamma": ("The size of the step to take.", {"type": "number"}),
    "incrowd-ticket": ("What goes back with the answer.", {"type": "string", "pattern": "^([0-9a-f]{2})+$"}),
}


def openapi(asked: Specification) -> JsonPart:
    """The description of a service for a specification."""
    size = 4 * asked.size
    row = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    draw = {**_ok(_ROW, row, _DRAWN), **_problems(TOO_OFTEN, AWAY)}
    outcome = {"incrowd-outcome": ("What became of it.", {"type": "string", "enum": ["accepted", "repeated"]})}
    answer = {
        **_ok("It counts; the next instance.", row, _DRAWN | outcome),
        **_problems(*OF_REASON.values(), LENGTH_REQUIRED, TOO_LARGE, TOO_OFTEN, AWAY, PAUSED),
    }
    body = {"required": True, "description": f"Exactly {size} bytes. {_ROW}", "content": row}
    posted = {
        "operationId": "answer",
        "summary": "Send an updated instance back; the reply brings the next one.",
        "parameters": [
            _header("incrowd-fingerprint", "That of the draw.", {"type": "string", "const": asked.fingerprint}),
            _header(
                "incrowd-ticket",
                "That of the draw, and a mark behind it where a direction is named.",
                {"type": "string", "maxLength": 2 * (TICKET_BYTES + MARK_BYTES)},
            ),
            _header("incrowd-admission", "The operator's token.", {"type": "string", "maxLength": 129})
            | {"required": False},
        ],
        "requestBody": body | {"x-bytes": size},
        "responses": answer,
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Draw and discard: {asked.name}", "version": __version__, "description": asked.describe()},
        "paths": {
            "/v1/draw": {"get": {"operationId": "draw", "summary": "A random instance.", "responses": draw}},
            "/v1/answer": {"post": posted},
            **_others(),
            **{f"/v1/admin/{order}": {"post": _order(order, told)} for order, told in ORDERS.items()},
        },
        "components": {"securitySchemes": {"admin": {"type": "http", "scheme": "bearer"}}},
    }


def _others() -> JsonPart:
    """What is read now and then."""
    kinds = _any("application/json", "application/octet-stream", "application/safetensors")
    average = {**_ok("The average over the instances.", kinds), **_problems(NO_AVERAGE, TOO_OFTEN, AWAY)}
    metrics = {**_ok("Figures.", _any("text/plain")), **_problems(TOO_OFTEN, AWAY)}
    page = {**_ok("HTML.", _any("text/html")), **_problems(NOT_FOUND, TOO_OFTEN)}
    described = {
        "/v1/specification": ("specification", "What is asked of devices.", _json("The JSON.")),
        "/v1/average": ("average", "The weights that predict, as JSON, float32 or safetensors.", average),
        "/status.json": ("status", "What the page shows.", _json("Figures.", AWAY)),
        "/health": ("health", "Whether answers are taken.", _json("They are.", AWAY, PAUSED)),
        "/metrics": ("metrics", "For Prometheus.", metrics),
        "/openapi.json": ("openapi", "This description.", _json("OpenAPI.")),
        "/": ("page", "A page for people.", page),
    }
    return {path: {"get": _get(*those)} for path, those in described.items()} | {"/static/{name}": {"get": _static()}}


ORDERS = {
    "keep": "Put the pool on disk now.",
    "pause": "Let answers wait; draws go on.",
    "go-on": "Take answers again.",
}


def _static() -> JsonPart:
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    responses = {**_ok("The file.", _any("text/javascript")), **_problems(NOT_FOUND, TOO_OFTEN)}
    return _get("static", "A part of the page, or of the device for browsers.", responses) | {"parameters": [name]}


def _order(order: str, told: str) -> JsonPart:
    responses = _json("It is done.", NO_TOKEN, NO_ADMIN, AWAY)
    return {"operationId": order, "summary": told, "security": [{"admin": []}], "responses": responses}


def _get(name: str, summary: str, responses: JsonPart) -> JsonPart:
    return {"operationId": name, "summary": summary, "responses": responses}


def _json(told: str, *problems: Problem) -> JsonPart:
    return {**_ok(told, _any("application/json")), **_problems(TOO_OFTEN, *problems)}


def _any(*types: str) -> JsonPart:
    return {kind: {"schema": {}} for kind in types}


def _ok(told: str, content: JsonPart, headers: dict[str, tuple[str, JsonPart]] | None = None) -> JsonPart:
    described = {name: {"description": text, "schema": schema} for name, (text, schema) in (headers or {}).items()}
    return {"200": {"description": told, "content": content, "headers": described}}


def _problems(*problems: Problem) -> JsonPart:
    """The responses, by status: those of one status together."""
    by_status: dict[str, list[Problem]] = {}
    for problem in problems:
        by_status.setdefault(str(problem.status), []).append(problem)
    return {status: _turned_away(those) for status, those in by_status.items()}


def _turned_away(problems: list[Problem]) -> JsonPart:
    schema = {
        "type": "object",
        "required": ["reason", "remedy"],
        "properties": {"reason": {"enum": [problem.name for problem in problems]}, "remedy": {"type": "string"}},
    }
    return {
        "description": "; ".join(f"{problem.name}: {problem.remedy}" for problem in problems),
        "content": {"application/json": {"schema": schema}},
    }


def _header(name: str, told: str, schema: JsonPart) -> JsonPart:
    return {"name": name, "in": "header", "required": True, "description": told, "schema": schema}
