"""Draw and answer, the two requests that come by the million: from their bytes to the bytes of the reply.

They go past ASGI, to which everything else is left: its events and tasks take as long for one request as all that is
done here (docs/service.md has the figures).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from incrowd.drawdiscard.desk import Reason
from incrowd.service.problems import (
    ALWAYS,
    AWAY,
    LENGTH_REQUIRED,
    NOT_ALLOWED,
    OF_REASON,
    OPEN,
    OUTCOMES,
    PAUSED,
    TOO_LARGE,
    TOO_OFTEN,
    Headers,
    Problem,
)
from incrowd.service.rates import AddressRates, Caller, TrustedProxies
from incrowd.service.store import HandedOut, StoreAway
from incrowd.service.tending import Tending

DRAW, ANSWER = b"/v1/draw", b"/v1/answer"

Pieces = Sequence[bytes | memoryview]
"""The bytes of a reply, one after the other."""


class DeviceRequest(NamedTuple):
    """A request, as far as it is known before its body: what `HotPath` needs of it."""

    method: bytes
    path: bytes
    headers: Headers
    length: bytes | None
    chunked: bool
    ticket: bytes | None
    fingerprint: bytes | None


class HotPath:
    """``GET /v1/draw`` and ``POST /v1/answer``; and what every request has to pass.

    Guarantee: a body is read only where its stated length is that of an answer. The address of a client is looked at
    for its rate, and nowhere else.
    """

    def __init__(self, tending: Tending, *, rates: AddressRates, proxies: TrustedProxies, extra: Headers) -> None:
        asked = tending.store.desk.specification
        self._tending, self._rates, self._proxies = tending, rates, proxies
        self._bytes = 4 * asked.size
        self._length = b"%d" % self._bytes
        self._fingerprint = asked.fingerprint.encode()
        self._gamma = 0.0, b""
        self._extra = extra
        fixed: Headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", self._length),
            (b"incrowd-fingerprint", self._fingerprint),
            *ALWAYS,
            *OPEN,
            *extra,
        ]
        self._head = b"HTTP/1.1 200 OK\r\n" + b"".join(b"%b: %b\r\n" % each for each in fixed)
        self.draws = 0
        self.turned_back: dict[str, int] = {}

    def early(self, asked: DeviceRequest, caller: Caller) -> Problem | None:
        """Why a request is turned away before its body is read; None where it is not."""
        if self._proxies.any:
            forwarded = b",".join(value for name, value in asked.headers if name == b"x-forwarded-for")
            caller = Caller(self._proxies.client(caller.address, forwarded))
        wait = self._rates.wait(caller)
        if wait:
            return TOO_OFTEN.after(wait)
        if asked.path == ANSWER and asked.method == b"POST":
            return self._early_answer(asked)
        if asked.path in (ANSWER, DRAW) and asked.method != b"OPTIONS" and not self.takes(asked):
            return NOT_ALLOWED
        return None

    def takes(self, asked: DeviceRequest) -> bool:
        """Whether a request is one of the two."""
        return (asked.path == ANSWER and asked.method == b"POST") or (asked.path == DRAW and asked.method == b"GET")

    async def reply(self, asked: DeviceRequest, body: bytes) -> Pieces:
        """The reply to one of the two."""
        try:
            if asked.path == DRAW:
                instance = await self._tending.draw()
                self.draws += 1
                return self._hand(instance, None)
            if len(body) != self._bytes:
                return self.refusal(OF_REASON[Reason.NOT_WEIGHTS])
            reason, following = await self._tending.offer(np.frombuffer(body, "<f4"), _ticket(asked.ticket))
        except StoreAway:
            return self.refusal(AWAY)
        return self.refusal(OF_REASON[reason]) if following is None else self._hand(following, OUTCOMES[reason])

    def refusal(self, problem: Problem, *, close: bool = False) -> Pieces:
        """The reply to a request that is turned away, counted."""
        self.turned_back[problem.name] = self.turned_back.get(problem.name, 0) + 1
        return problem.replied(self._extra, close=close)

    def due(self, asked: DeviceRequest) -> bool:
        """Whether the body of a request is none, or as long as an answer: so much can be let pass unread."""
        return not asked.chunked and asked.length in (None, b"0", self._length)

    def _early_answer(self, asked: DeviceRequest) -> Problem | None:
        if asked.length != self._length or asked.chunked:
            return self._wrong_length(asked)
        if asked.fingerprint != self._fingerprint:
            self._tending.store.count("other_specification")
            return OF_REASON[Reason.OTHER_SPECIFICATION]
        return PAUSED if self._tending.store.paused else None

    def _hand(self, instance: HandedOut, outcome: bytes | None) -> Pieces:
        version, row, accepted = instance
        _, _, gamma, ticket = self._tending.store.desk.hand_out(version, row, accepted=accepted)
        if gamma != self._gamma[0]:
            self._gamma = gamma, repr(gamma).encode()
        told = b"\r\n" if outcome is None else b"\r\nincrowd-outcome: " + outcome + b"\r\n"
        own = b"incrowd-gamma: " + self._gamma[1] + b"\r\nincrowd-ticket: " + ticket.hex().encode()
        base: object = row.base
        return self._head + own + told + b"\r\n", base if isinstance(base, bytes) else row.data.cast("B")

    def _wrong_length(self, asked: DeviceRequest) -> Problem:
        if asked.length is None or asked.chunked:
            return LENGTH_REQUIRED
        digits = asked.length.decode("latin-1")
        return TOO_LARGE if digits.isdigit() and int(digits[:20]) > self._bytes else OF_REASON[Reason.NOT_WEIGHTS]


def _ticket(value: bytes | None) -> bytes:
    """The bytes that a header spells; none where it spells none."""
    if value is None or len(value) > 256:
        return b""
    try:
        return bytes.fromhex(value.decode("latin-1"))
    except ValueError:
        return b""
