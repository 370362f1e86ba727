"""Requests made from the service's own description: right ones, nearly right ones, and nonsense.

Seeded: the same requests each time. What comes back has to be described, and no mistake of the server's.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE")
ODD_TEXT = ("", "0", "-1", "NaN", "null", "\x7f", "é", "%00", "../../etc/passwd", "a" * 3_000, "{}", '"', "1e999", "\t")
ODD_FLOATS = (np.nan, np.inf, -np.inf, 3e38, 1e-45, 0.0, -0.0, 1e30, 65504.0)


@dataclass
class Fuzzer:
    """`description` is the service's OpenAPI; `drawn` the headers and body of a draw that was just made."""

    description: dict[str, Any]
    seed: int
    undescribed: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.generator = np.random.Generator(np.random.SFC64(self.seed))
        self.operations = [
            (path, method, operation)
            for path, methods in self.description["paths"].items()
            for method, operation in methods.items()
        ]

    def requests(self, count: int, drawn: dict[str, str], row: bytes) -> Iterator[tuple[str, str, bytes]]:
        """Path, method and the bytes to send."""
        for _ in range(count):
            path, method, operation = self.operations[self._below(len(self.operations))]
            yield self._request(path, method.upper(), operation, drawn, row)

    def check(self, path: str, method: str, status: int, headers: dict[str, str], body: bytes) -> None:
        """Note what came back, and what of it nobody has described."""
        self.statuses[status] += 1
        described = self.description["paths"].get(path, {}).get(method.lower())
        if status >= 500 and status != 503:
            self.undescribed[f"{method} {path}: {status}"] += 1
        if described is None or (status == 400 and method != "POST"):
            return
        if str(status) not in described["responses"] and status != 400:
            self.undescribed[f"{method} {path}: {status} is not described"] += 1
        elif status >= 400 and headers.get("content-type") == "application/json" and method != "HEAD":
            schema = described["responses"].get(str(status), {}).get("content", {}).get("application/json", {})
            names = schema.get("schema", {}).get("properties", {}).get("reason", {}).get("enum", [])
            reason = json.loads(body)["reason"]
            if status != 400 and reason not in names:
                self.undescribed[f"{method} {path}: {reason} is not described"] += 1

    def _request(
        self, path: str, method: str, operation: dict[str, Any], drawn: dict[str, str], row: bytes
    ) -> tuple[str, str, bytes]:
        sent_path = path.replace("{name}", self._one(("device.mjs", "index.html", *ODD_TEXT)))
        if self._rarely():
            method = self._one(METHODS)
        if self._rarely():
            sent_path += self._one(("?x=1", "/", "%2e%2e", "//", "#a", "?" + "y" * 500))
        headers = {"host": "here"}
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "header" and not self._rarely():
                headers[parameter["name"]] = self._header(parameter["name"], drawn)
        if self._rarely():
            headers[self._one(("accept", "origin", "authorization", "x-forwarded-for", "expect"))] = self._one(ODD_TEXT)
        if operation.get("security") and not self._rarely():
            headers["authorization"] = self._one(("Bearer wrong", "Basic eDp5", "Bearer ", *ODD_TEXT))
        body = self._body(row) if "requestBody" in operation else b""
        if method != "GET" or body:
            headers["content-length"] = str(len(body))
        lines = [
            f"{method} {_line(sent_path)} HTTP/1.1",
            *(f"{name}: {_line(value)}" for name, value in headers.items()),
        ]
        sent = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body
        return path if sent_path == path else "", method, sent

    def _header(self, name: str, drawn: dict[str, str]) -> str:
        right = drawn.get(name, "")  # an admission token comes with no draw
        kind = self._below(8)
        if kind == 0:
            return self._one(ODD_TEXT)
        if kind == 1 and right:
            place = self._below(len(right))
            return right[:place] + self._one(tuple("0123456789abcdefxyz")) + right[place + 1 :]
        return right

    def _body(self, row: bytes) -> bytes:
        kind = self._below(10)
        if kind == 0:
            return self.generator.bytes(self._below(3 * len(row)))
        if kind == 1:
            return row[: self._below(len(row))]
        numbers = np.frombuffer(row, "<f4").copy()
        if kind == 2:
            numbers[self._below(numbers.size)] = self._one(ODD_FLOATS)
        elif kind == 3:
            return self.generator.bytes(len(row))
        elif kind == 4:
            numbers *= np.float32(self._one((0, -1, 2, 1000)))
        else:
            numbers += self.generator.laplace(scale=0.04, size=numbers.size).astype(np.float32)
        return numbers.tobytes()

    def _rarely(self) -> bool:
        return self._below(8) == 0

    def _below(self, count: int) -> int:
        return int(self.generator.integers(max(1, count)))

    def _one(self, choices: Sequence[T]) -> T:
        return choices[self._below(len(choices))]


def _line(text: str) -> str:
    """What stays in its line: what breaks out of it is the business of other tests."""
    return text.replace("\r", "").replace("\n", "").replace(" ", "%20") if len(text) < 2_000 else text
