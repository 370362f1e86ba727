"""A device's side of the service: a server over HTTP that the device does not trust, and contributions in turn."""

import json
import math
import re
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike

from incrowd import _validate
from incrowd._random import Randomness, SystemRandomness
from incrowd.drawdiscard.desk import Drawn, Outcome, Reason, ServerLike
from incrowd.drawdiscard.device import Device
from incrowd.drawdiscard.specification import LONGEST, Specification
from incrowd.errors import ConfigError, IncrowdError, ServiceFailed, SpecificationRefused
from incrowd.service.exchange import Address, Reply, exchange

PACE_S = 10.0
PATIENCE_S = 60.0
ATTEMPTS = 3
_LONGEST_EXPLANATION = 65_536
_TICKET = re.compile("(?:[0-9a-f]{2}){1,128}")
_REASONS = {reason.name.lower(): reason for reason in Reason}
_TAKEN = (Reason.ACCEPTED, Reason.REPEATED)


class RemoteServer:
    """The service at an address: a `ServerLike`.

    `most_weights` limits the instance that the device reads; each request ends within `deadline_s`. `context` holds the
    certificates of a private authority, `plain` allows http beyond this machine. An answer leaves a whole multiple of
    `pace_s` seconds after its draw (by default `PACE_S`; 0: at once).

    Guarantee: each request has a fresh connection, and only the answer and the token in it differ from another
    device's. The device bounds a reply before it reads it, checks its form, and follows nothing in it; a malformed
    reply raises `ServiceFailed`. The time of an answer shows the device's work in whole paces alone
    (`Policy.most_work` limits the work).
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
        self._send = partial(exchange, self.address, deadline_s=deadline_s, context=context)
        self._pace_s = PACE_S if pace_s is None else pace_s
        _validate.non_negative(pace_s=self._pace_s)
        self._known: Specification | None = None
        self._token: dict[str, str] = {}
        self._drawn_at: float | None = None

    def admitted_by(self, token: str) -> "RemoteServer":
        """Show the operator's token with every answer."""
        if not token or any(not "!" <= letter <= "~" for letter in token):
            raise ConfigError(field="token", value="...", remedy="give the token as the operator gave it, on one line")
        self._token = {"incrowd-admission": token}
        return self

    def specification_json(self) -> str:
        """See `ServerLike.specification_json`."""
        reply = self._exchange("/v1/specification", most=LONGEST)
        try:
            text = reply.body.decode()
            self._known = Specification.from_json(text)
        except UnicodeDecodeError as error:
            self._refuse("its specification is not text", error)
        except ConfigError as error:
            raise SpecificationRefused(f"the server's specification makes no sense: {error}") from error
        return text

    def draw(self) -> Drawn:
        """See `ServerLike.draw`."""
        size = self._specification().size
        if size > self._most_weights:
            raise SpecificationRefused(f"{size} weights are more than this device allows, {self._most_weights}")
        _, headers, body = self._exchange("/v1/draw", most=4 * size)
        if len(body) != 4 * size:
            self._refuse(f"its instance has {len(body)} bytes, not {4 * size}")
        self._drawn_at = time.monotonic()
        weights = np.frombuffer(body, "<f4").astype(np.float32)
        gamma, ticket = _number(headers.get("incrowd-gamma", "")), headers.get("incrowd-ticket", "")
        if not 0 < gamma < math.inf:
            self._refuse("its gamma is no positive number")
        if not _TICKET.fullmatch(ticket):
            self._refuse("its ticket is malformed")
        return Drawn(weights, headers.get("incrowd-fingerprint", ""), gamma, bytes.fromhex(ticket))

    def offer(self, update: ArrayLike, ticket: bytes) -> Outcome:
        """See `ServerLike.offer`."""
        fingerprint = self._specification().fingerprint
        headers = {"incrowd-fingerprint": fingerprint, "incrowd-ticket": ticket.hex(), **self._token}
        body = np.asarray(update, "<f4").tobytes()
        self._wait()
        return Outcome(
            self._reason(self._exchange("/v1/answer", most=_LONGEST_EXPLANATION, headers=headers, body=body))
        )

    def _wait(self) -> None:
        """Wait until a whole number of paces after the draw."""
        if self._drawn_at is not None and self._pace_s:
            time.sleep(self._pace_s - (time.monotonic() - self._drawn_at) % self._pace_s)
        self._drawn_at = None

    def _specification(self) -> Specification:
        return self._known or Specification.from_json(self.specification_json())

    def _reason(self, reply: Reply) -> Reason:
        taken, stated = reply.status == HTTPStatus.OK, reply.headers.get("incrowd-outcome")
        if not taken:
            try:
                stated = json.loads(reply.body)["reason"]
            except (ValueError, RecursionError, TypeError, KeyError) as error:
                self._refuse("it does not say what became of the answer", error)
        reason = _REASONS.get(re.sub("[- ]", "_", stated[:40].lower())) if isinstance(stated, str) else None
        if reason is None or (reason in _TAKEN) != taken:
            self._refuse("it does not say what became of the answer")
        return reason

    def _exchange(
        self, path: str, *, most: int, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Reply:
        answers = body is not None
        reply = self._send(path, most=most, headers=headers, body=body, skip_ok=answers)
        status = reply.status
        if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            when = "later" if reply.retry_after is None else f"in {reply.retry_after:.0f} s"
            why = f"{self.address} has no time now (status {status}): try again {when}"
            raise ServiceFailed(why, retry_after=reply.retry_after)
        if not answers and status != HTTPStatus.OK:
            self._refuse(f"it answers {path} with status {status}: is this the address of a service?")
        return reply

    def _refuse(self, why: str, error: Exception | None = None) -> NoReturn:
        raise ServiceFailed(f"{self.address} does not answer as a service does: {why}") from error


def _number(text: str) -> float:
    try:
        return float(text[:40])
    except ValueError:
        return math.nan


@dataclass
class Turns:
    """The outcomes of a device's contributions, and the error that stopped them."""

    reasons: Counter[Reason] = field(default_factory=Counter)
    stopped: IncrowdError | None = None

    @property
    def sent(self) -> int:
        """The number of answers that reached the service."""
        return self.reasons.total()

    @property
    def accepted(self) -> int:
        """The number of accepted answers."""
        return sum(self.reasons[reason] for reason in _TAKEN)


def take_turns(
    device: Device,
    server: ServerLike,
    *,
    times: int = 1,
    jitter_s: float = 0.0,
    randomness: Randomness | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Turns:
    """Contribute `times` times, each after a random wait of at most `jitter_s` seconds.

    The random wait hides the time at which the app made the example. A paid answer that did not arrive earlier goes
    first, and counts as one contribution. An error stops all following ones; a service may ask for a wait of up to
    `PATIENCE_S` seconds twice.
    """
    _validate.count(times=times)
    _validate.non_negative(jitter_s=jitter_s)
    stream = (randomness or SystemRandomness()).stream("jitter")
    turns = Turns()
    for _ in range(times):
        if jitter_s:
            sleep(jitter_s * float(stream.bits(1)[0]) / 2.0**64)
        try:
            turns.reasons[_contribute(device, server, sleep)] += 1
        except IncrowdError as error:
            turns.stopped = error
            break
    return turns


def _contribute(device: Device, server: ServerLike, sleep: Callable[[float], object]) -> Reason:
    for _ in range(ATTEMPTS - 1):
        try:
            return device.contribute(server).reason
        except ServiceFailed as error:
            if error.retry_after is None or error.retry_after > PATIENCE_S:
                raise
            sleep(error.retry_after)
    return device.contribute(server).reason
