"""The desk: what a server looks at before an answer may enter its pool, wherever the pool is.

A draw comes with a ticket: proof that an instance was drawn here, and from which version at which step size. All draws
of one version in one minute get the same ticket, so it names no device: it tells a server what the nearest instance
would tell it anyway (docs/draw-and-discard.md says how much that is).

A device that names a direction puts a mark behind its ticket, 64 random bits of its own that stay with one answer:
others may name the same direction from the same version, and send the same bytes.
"""

import hmac
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple, TypedDict

from numpy.typing import ArrayLike

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.drawdiscard.pool import Instance, as_weights
from incrowd.drawdiscard.spam import answer_test
from incrowd.drawdiscard.specification import Specification, check_rounding
from incrowd.errors import ConfigError, DataError

LIFETIME = 60
"""Minutes from a draw until its answer comes too late."""

KEY_BYTES = 32
MARK_BYTES = 8
DIGEST = 16
"""Bytes of the digest of an answer."""

_BODY = struct.Struct("<8sQQI")
_MAC = 16
TICKET_BYTES = _BODY.size + _MAC

_DIGESTED = 1024
"""Bytes of an answer that its digest is of: with noise in them, or a mark beside them, no two answers share them."""


class Reason(StrEnum):
    """What became of an answer: a name for programs, a sentence for people."""

    ACCEPTED = "it is in the pool"
    REPEATED = "it was accepted before, and counts once"
    OTHER_SPECIFICATION = "it answers another specification than this server's"
    NOT_WEIGHTS = "it is not one finite number for each weight of the model"
    FORGED = "its ticket was not issued by this server"
    LATE = "what it was drawn from is too old: draw again"
    UNLIKE = "hardly an honest device would have sent it"
    NOT_ADMITTED = "it shows no admission token of this server's operator"
    DAY_OVER = "its account's contributions of this day were accepted already: the same answer waits for the next"


def minutes_now() -> int:
    """The present minute."""
    return int(time.time() // 60)


@dataclass(frozen=True)
class Ticket:
    """The version that was drawn, the epoch of the step size, the minute in which the ticket runs out, and a mark."""

    version: int
    epoch: int
    expires: int
    mark: bytes = b""


class Tickets:
    """Issues tickets under a key, and reads them again; those that ran out, too.

    Guarantee: a ticket that `read` accepts was issued under this key, for this specification; nobody without the key
    makes another one (keyed BLAKE2b, compared in constant time). Draws of one version and minute share one ticket.
    """

    def __init__(
        self, key: bytes, fingerprint: str, *, lifetime: int = LIFETIME, now: Callable[[], int] = minutes_now
    ) -> None:
        _validate.count(lifetime=lifetime)
        if len(key) != KEY_BYTES:
            raise ConfigError(field="key", value=f"{len(key)} bytes", remedy=f"give {KEY_BYTES} random bytes")
        self.key, self._lifetime, self._now = key, lifetime, now
        self._keyed = blake2b(key=key, digest_size=_MAC)
        self._specification, self._whole_fingerprint = bytes.fromhex(fingerprint[:16]), fingerprint.encode()

    def issue(self, version: int, epoch: int) -> bytes:
        """The ticket of a version that is drawn now."""
        body = _BODY.pack(self._specification, version, epoch, self._now() + self._lifetime)
        return body + self._mac(body)

    def read(self, ticket: bytes) -> Ticket | Reason:
        """What a ticket says; `FORGED` or `OTHER_SPECIFICATION` where it was not issued for this."""
        if len(ticket) not in (TICKET_BYTES, TICKET_BYTES + MARK_BYTES):
            return Reason.FORGED
        ticket, mark = ticket[:TICKET_BYTES], ticket[TICKET_BYTES:]
        body = ticket[: _BODY.size]
        specification, version, epoch, expires = _BODY.unpack(body)
        if specification != self._specification:
            return Reason.OTHER_SPECIFICATION
        if not hmac.compare_digest(self._mac(body), ticket[_BODY.size :]):
            return Reason.FORGED
        return Ticket(version, epoch, expires, mark)

    def _mac(self, body: bytes) -> bytes:
        mac = self._keyed.copy()
        mac.update(body + self._whole_fingerprint)
        return mac.digest()


class Visit(NamedTuple):
    """An account on a day: a keyed digest of both, and how many of its answers may be accepted on that day."""

    day: str
    account: bytes
    most: int


class Drawn(NamedTuple):
    """An instance for a device to update, with its specification's fingerprint and the size of the step to take.

    The ticket goes back with the answer.
    """

    weights: Instance
    fingerprint: str
    gamma: float
    ticket: bytes


@dataclass(frozen=True, eq=False)
class Returned:
    """An answer that is what it should look like: whether it may enter is the test's to say.

    `visit` says whose it is, where a service admits accounts alone.
    """

    weights: Instance
    ticket: Ticket
    gamma: float
    digest: bytes
    visit: Visit | None = None


class DeskSettings(TypedDict, total=False):
    """What may be chosen of a desk: see `Desk`."""

    turned_away: float
    lifetime: int
    randomness: Randomness | None


class Desk:
    """Hands out instances and looks at answers, for a pool that lies elsewhere; one thread at a time may judge.

    `key` is the secret of its tickets: desks of one pool share it. `turned_away` is the share of honest answers that
    the test may turn away, `lifetime` how many minutes a device has, `randomness` what is secret of the test.

    Guarantee: an answer that passes `read` and `judge` is one finite number a weight, was drawn here within the
    lifetime, and differs from what was drawn as an honest device's may (see `ResidualTest` and `DirectionTest`).
    Nothing is noted of who offers.
    """

    def __init__(
        self,
        specification: Specification,
        *,
        key: bytes,
        turned_away: float = 0.01,
        lifetime: int = LIFETIME,
        now: Callable[[], int] = minutes_now,
        randomness: Randomness | None = None,
    ) -> None:
        self.specification = specification
        self.fingerprint = specification.fingerprint
        self.test = answer_test(specification.mechanism, turned_away=turned_away, randomness=randomness)
        check_rounding(specification.mechanism, gamma=specification.gamma)  # it never falls below what can be shown
        self._tickets = Tickets(key, self.fingerprint, lifetime=lifetime, now=now)
        self._size, self._now = specification.size, now
        self._gamma_of = lru_cache(maxsize=1024)(specification.gamma_of)  # a power, asked for twice an answer

    def hand_out(self, version: int, weights: Instance, *, accepted: int) -> Drawn:
        """An instance on its way to a device, when so many answers were accepted."""
        epoch = self.specification.epoch(accepted)
        return Drawn(weights, self.fingerprint, self._gamma_of(epoch), self._tickets.issue(version, epoch))

    def read(self, update: ArrayLike, ticket: bytes) -> Returned | Reason:
        """The answer that was offered, or why it cannot be one."""
        stated = self._tickets.read(ticket)
        if isinstance(stated, Reason):
            return stated
        try:
            weights = as_weights(update, self._size)
        except DataError:
            return Reason.NOT_WEIGHTS
        # Noise tells answers apart by itself, and a copy with another mark would be a copy.
        mark = stated.mark if self.specification.noise == "direction" else b""
        return Returned(weights, stated, self._gamma_of(stated.epoch), _digest(weights, stated.version, mark))

    def judge(self, answer: Returned, parent: Instance | None) -> Reason | None:
        """Why an answer may not enter, given what it was drawn from; None where it may."""
        if parent is None or answer.ticket.expires < self._now():
            return Reason.LATE
        return None if self.test.accepts(answer.weights, parent, answer.gamma) else Reason.UNLIKE


def _digest(weights: Instance, version: int, mark: bytes) -> bytes:
    """Not of the ticket: a version that is drawn in the next minute comes with another one."""
    digest = blake2b(version.to_bytes(8, "little") + mark, digest_size=DIGEST)
    digest.update(weights.data.cast("B")[:_DIGESTED] if weights.flags.c_contiguous else weights.tobytes()[:_DIGESTED])
    return digest.digest()
