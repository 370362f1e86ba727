"""A server of draw and discard that is elsewhere, as a device sees it: over HTTP, with nothing taken on trust."""

import json
import math
import re
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike

from incrowd import _validate
from incrowd._random import Randomness, SystemRandomness
from incrowd.drawdiscard.desk import Drawn, Reason
from incrowd.drawdiscard.device import Device
from incrowd.drawdiscard.server import Outcome, ServerLike
from incrowd.drawdiscard.specification import LONGEST, Specification
from incrowd.errors import ConfigError, IncrowdError, ServiceFailed, SpecificationRefused
from incrowd.service.exchange import Address, Reply, after, exchange

_TICKET = re.compile("(?:[0-9a-f]{2}){1,128}")

_EXPLAINED = 65_536
"""Bytes of the longest explanation that is read."""

PACE_S = 10.0
"""Answers leave so many seconds after a draw, or twice, or three times."""


class RemoteServer:
    """The service at an address: a `ServerLike`.

    `most_weights` bounds what is read of an instance, whatever the specification says; each request ends within
    `deadline_s`. `context` is for certificates of an own authority, `plain` allows http beyond this machine. An answer
    leaves at a whole multiple of `pace_s` seconds after the draw before it (`PACE_S` unless given; 0: at once).

    Guarantee: each request has a connection of its own, and nothing in it tells this device from any other but the
    answer itself and the token. What a service sends is data: bounded before it is read, and of the right form, or
    `ServiceFailed`, which knows how long the service asks to wait (`retry_after`); nothing of it is shown or followed.
    A reply to an answer is read for one word only: taken, or why not. How long the device has worked on its examples,
    which would tell how many there are and how long their texts, shows in whole paces only (`Policy.most_work` bounds
    the work).
    """

    def __init__(
        self,
        url: str,
        *,
        most_weights: int = 100_000,
        deadline_s: float = 60.0,
        context: ssl.SSLContext | None = None,
        plain: bool = False,
        pace_s: float | None = None,
    ) -> None:
        self.address = Address.of(url, plain=plain)
        self._most_weights = most_weights
        self._deadline_s = deadline_s
        self._context = context
        self._asked: Specification | None = None
        self._token = ""
        self._pace_s = PACE_S if pace_s is None else pace_s
        _validate.non_negative(pace_s=self._pace_s)
        self._drawn_at: float | None = None

    def admitted_by(self, token: str) -> "RemoteServer":
        """The same service, which is shown the operator's token with every answer."""
        if not token or any(not "!" <= letter <= "~" for letter in token):
            raise ConfigError(field="token", value="...", remedy="give the token as the operator gave it, on one line")
        self._token = token
        return self

    def specification_json(self) -> str:
        """See `ServerLike.specification_json`."""
        reply = self._exchange("/v1/specification", most=LONGEST)
        try:
            text = reply.body.decode()
        except UnicodeDecodeError as error:
            self._refuse("its specification is not text", error)
        try:
            self._asked = Specification.from_json(text)
        except ConfigError as error:
            raise SpecificationRefused(f"the server's specification makes no sense: {error}") from error
        return text

    def draw(self) -> Drawn:
        """See `ServerLike.draw`."""
        asked = self._specification()
        if asked.size > self._most_weights:
            raise SpecificationRefused(f"{asked.size} weights are more than this device allows, {self._most_weights}")
        reply = self._exchange("/v1/draw", most=4 * asked.size)
        if len(reply.body) != 4 * asked.size:
            self._refuse(f"its instance has {len(reply.body)} bytes, not {4 * asked.size}")
        weights = np.frombuffer(reply.body, "<f4").astype(np.float32)
        headers = reply.headers
        self._drawn_at = time.monotonic()
        return Drawn(weights, headers.get("incrowd-fingerprint", ""), self._gamma(headers), self._ticket(headers))

    def offer(self, update: ArrayLike, ticket: bytes) -> Outcome:
        """See `ServerLike.offer`."""
        headers = {"incrowd-fingerprint": self._specification().fingerprint, "incrowd-ticket": ticket.hex()}
        if self._token:
            headers["incrowd-admission"] = self._token
        body = np.asarray(update, "<f4").tobytes()
        self._wait()
        reply = self._exchange("/v1/answer", most=_EXPLAINED, headers=headers, body=body)
        return Outcome(self._reason(reply))

    def _wait(self) -> None:
        """Until a whole number of paces has gone since the draw."""
        if self._drawn_at is not None and self._pace_s:
            time.sleep(self._pace_s - (time.monotonic() - self._drawn_at) % self._pace_s)
        self._drawn_at = None

    def _specification(self) -> Specification:
        if self._asked is None:
            self._asked = Specification.from_json(self.specification_json())
        return self._asked

    def _gamma(self, headers: Mapping[str, str]) -> float:
        try:
            gamma = float(headers.get("incrowd-gamma", "")[:40])
        except ValueError as error:
            self._refuse("its gamma is no number", error)
        if not 0 < gamma < math.inf:
            self._refuse("its gamma is no positive number")
        return gamma

    def _ticket(self, headers: Mapping[str, str]) -> bytes:
        said = headers.get("incrowd-ticket", "")
        if not _TICKET.fullmatch(said):
            self._refuse("its ticket is none")
        return bytes.fromhex(said)

    def _reason(self, reply: Reply) -> Reason:
        said: object = reply.headers.get("incrowd-outcome")
        if reply.status != HTTPStatus.OK:
            try:
                said = json.loads(reply.body).get("reason")
            except (ValueError, RecursionError, AttributeError) as error:
                self._refuse("it says nothing of what became of the answer", error)
        named = {reason.name.lower(): reason for reason in Reason}
        reason = named.get(re.sub("[- ]", "_", said[:40].lower())) if isinstance(said, str) else None
        if reason is None or (reason in (Reason.ACCEPTED, Reason.REPEATED)) != (reply.status == HTTPStatus.OK):
            self._refuse("it says nothing of what became of the answer")
        return reason

    def _exchange(
        self, path: str, *, most: int, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Reply:
        reply = exchange(
            self.address,
            path,
            most=most,
            deadline_s=self._deadline_s,
            context=self._context,
            headers=headers,
            body=body,
            skip_ok=body is not None,
        )
        status = reply.status
        if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            wait = after(reply)
            when = "later" if wait is None else f"in {wait:.0f} s"
            raise ServiceFailed(f"{self.address} has no time now (status {status}): try again {when}", retry_after=wait)
        if body is None and status != HTTPStatus.OK:
            self._refuse(f"it answers {path} with status {status}: is this the address of a service?")
        return reply

    def _refuse(self, why: str, error: Exception | None = None) -> NoReturn:
        raise ServiceFailed(f"{self.address} does not answer as a service does: {why}") from error


MOST_PATIENCE_S = 60.0
"""A service that asks to wait no longer than this is waited for."""

ATTEMPTS = 3
"""So often a contribution is tried at a service that asks to wait."""


@dataclass
class Turns:
    """What became of a device's contributions: what the service said to each answer, and what stopped them, if any."""

    reasons: Counter[Reason] = field(default_factory=Counter)
    stopped: IncrowdError | None = None

    @property
    def sent(self) -> int:
        """How many answers arrived at the service."""
        return self.reasons.total()

    @property
    def accepted(self) -> int:
        """How many of them it took."""
        return self.reasons[Reason.ACCEPTED] + self.reasons[Reason.REPEATED]


def take_turns(
    device: Device,
    server: ServerLike,
    *,
    times: int = 1,
    jitter_s: float = 0.0,
    randomness: Randomness | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Turns:
    """Contribute so many times, each after a random wait of at most `jitter_s` seconds.

    The wait is random so that the time of an answer tells nothing of the app that made the example. An answer of an
    earlier day that was paid for and did not arrive goes first, and counts as one of the times. Whatever stops a
    contribution stops those that follow; a service that asks to wait at most a minute is waited for, twice.
    """
    _validate.count(times=times)
    _validate.non_negative(jitter_s=jitter_s)
    stream = (randomness or SystemRandomness()).stream("jitter")
    turns = Turns()
    for _ in range(times):
        if jitter_s:
            sleep(jitter_s * float(stream.bits(1)[0]) / 2.0**64)
        try:
            turns.reasons[_patiently(device, server, sleep)] += 1
        except IncrowdError as error:
            turns.stopped = error
            break
    return turns


def _patiently(device: Device, server: ServerLike, sleep: Callable[[float], object]) -> Reason:
    for _ in range(ATTEMPTS - 1):
        try:
            return device.contribute(server).reason
        except ServiceFailed as error:
            wait = error.retry_after
            if wait is None or wait > MOST_PATIENCE_S:
                raise
            sleep(wait)
    return device.contribute(server).reason
