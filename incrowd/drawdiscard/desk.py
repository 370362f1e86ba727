"""The desk checks an answer before it may enter a pool, in any store.

A draw comes with a ticket, which proves the draw, its version and its step size. All draws of one version in one minute
share a ticket, so it names no device: the nearest instance tells the server as much (docs/draw-and-discard.md).

A device that names a direction appends a mark of 64 random bits to the ticket of each answer: another device may name
the same direction from the same version, and send the same bytes.
"""

import hmac
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple, Protocol, TypedDict

from numpy.typing import ArrayLike

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.drawdiscard.pool import Instance, as_weights
from incrowd.drawdiscard.spam import answer_test
from incrowd.drawdiscard.specification import Specification, check_rounding
from incrowd.errors import ConfigError, DataError

LIFETIME = 60  # minutes from a draw until its answer comes too late
KEY_BYTES = 32
MARK_BYTES = 8
DIGEST = 16  # bytes of the digest of an answer
_BODY = struct.Struct("<8sQQI")
_MAC = 16
TICKET_BYTES = _BODY.size + _MAC

_DIGESTED = 1024  # the digest covers this many bytes: their noise, or the mark, tells answers apart


class Reason(StrEnum):
    """The outcome of an answer: a name for programs, a sentence for people."""

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
    """The version of a draw, the epoch of its step size, the minute in which the ticket expires, and a mark."""

    version: int
    epoch: int
    expires: int
    mark: bytes = b""


class Tickets:
    """Issues tickets under a key, and reads them, expired ones too.

    Guarantee: a ticket that `read` accepts was issued under this key, for this specification (keyed BLAKE2b, compared
    in constant time). Draws of one version and minute share one ticket.
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
        """The ticket of a draw of this version now."""
        body = _BODY.pack(self._specification, version, epoch, self._now() + self._lifetime)
        return body + self._mac(body)

    def read(self, ticket: bytes) -> Ticket | Reason:
        """The content of a ticket; `FORGED` or `OTHER_SPECIFICATION` for a ticket of another source."""
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
    """An account on a day: a keyed digest of both, and the most answers of that day."""

    day: str
    account: bytes
    most: int


class Drawn(NamedTuple):
    """An instance for a device, with its specification's fingerprint, the step size, and the ticket to send back."""

    weights: Instance
    fingerprint: str
    gamma: float
    ticket: bytes


@dataclass(frozen=True)
class Outcome:
    """Whether an answer was accepted, and why (not)."""

    reason: Reason

    @property
    def accepted(self) -> bool:
        """Whether the answer is in the pool, by this attempt or an earlier one."""
        return self.reason in (Reason.ACCEPTED, Reason.REPEATED)

    def __str__(self) -> str:
        return f"{'accepted' if self.accepted else 'turned away'}: {self.reason}"


class ServerLike(Protocol):
    """The part of a server that a device uses, in this process or over a network; the device trusts none of it."""

    def specification_json(self) -> str:
        """The specification, as `Specification.to_json` writes it."""

    def draw(self) -> Drawn:
        """An instance to update."""

    def offer(self, update: ArrayLike, ticket: bytes) -> Outcome:
        """Take the updated instance of this ticket, or refuse it with a reason."""


@dataclass(frozen=True, eq=False)
class Returned:
    """An answer in the right form, before the test; a service that admits accounts adds the `visit`."""

    weights: Instance
    ticket: Ticket
    gamma: float
    digest: bytes
    visit: Visit | None = None


class DeskSettings(TypedDict, total=False):
    """The settings of a `Desk`."""

    turned_away: float
    lifetime: int
    randomness: Randomness | None


class Desk:
    """Hands out instances of a pool and checks answers; one thread at a time may judge.

    All desks of a pool share the `key` of the tickets. The test may turn away a share `turned_away` of the honest
    answers, and takes its secrets from `randomness`. A device has `lifetime` minutes.

    Guarantee: an answer that passes `read` and `judge` has one finite number for each weight, its draw is younger than
    the lifetime, and it differs from its parent as an honest device's may (`ResidualTest`, `DirectionTest`). The desk
    notes nothing of the device.
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
        self._gamma_of = lru_cache(maxsize=1024)(specification.gamma_of)  # a power, needed twice an answer

    def hand_out(self, version: int, weights: Instance, *, accepted: int) -> Drawn:
        """An instance for a device, after this many accepted answers."""
        epoch = self.specification.epoch(accepted)
        return Drawn(weights, self.fingerprint, self._gamma_of(epoch), self._tickets.issue(version, epoch))

    def read(self, update: ArrayLike, ticket: bytes) -> Returned | Reason:
        """The answer in an offer, or the reason to refuse it."""
        stated = self._tickets.read(ticket)
        if isinstance(stated, Reason):
            return stated
        try:
            weights = as_weights(update, self._size)
        except DataError:
            return Reason.NOT_WEIGHTS
        # Noise alone tells answers apart, and a copy with another mark would be a copy.
        mark = stated.mark if self.specification.noise == "direction" else b""
        return Returned(weights, stated, self._gamma_of(stated.epoch), _digest(weights, stated.version, mark))

    def judge(self, answer: Returned, parent: Instance | None) -> Reason | None:
        """The reason to refuse an answer with this parent; None for an answer that may enter."""
        if parent is None or answer.ticket.expires < self._now():
            return Reason.LATE
        return None if self.test.accepts(answer.weights, parent, answer.gamma) else Reason.UNLIKE


def _digest(weights: Instance, version: int, mark: bytes) -> bytes:
    """A digest without the ticket: a draw of the same version in the next minute comes with another ticket."""
    digest = blake2b(version.to_bytes(8, "little") + mark, digest_size=DIGEST)
    digest.update(weights.data.cast("B")[:_DIGESTED] if weights.flags.c_contiguous else weights.tobytes()[:_DIGESTED])
    return digest.digest()
