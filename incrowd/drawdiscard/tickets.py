"""Tickets: proof that an instance was drawn here, and from which version at which step size.

All draws of one version in one minute get the same ticket, so it names no device: it tells a server what the nearest
instance would tell it anyway (docs/draw-and-discard.md says how much that is).

A device that names a direction puts a mark behind its ticket, 64 random bits of its own that stay with one answer:
others may name the same direction from the same version, and send the same bytes.
"""

import hmac
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

from incrowd import _validate
from incrowd.errors import ConfigError

KEY_BYTES = 32
_BODY = struct.Struct("<8sQQI")
_MAC = 16
TICKET_BYTES = _BODY.size + _MAC
DIGEST = 16
"""Bytes of the digest of an answer."""

MARK_BYTES = 8
"""Of what a device puts behind a ticket."""


@dataclass(frozen=True)
class Ticket:
    """What a ticket says: the version that was drawn, the epoch of the step size, the minute in which it runs out.

    `mark` is a device's own, and empty where it put none behind the ticket.
    """

    version: int
    epoch: int
    expires: int
    mark: bytes = b""


class Stranger(Exception):
    """The ticket was not issued here."""


class OtherSpecification(Exception):
    """The ticket is of another specification, by this server or another."""


def minutes_now() -> int:
    """The present minute."""
    return int(time.time() // 60)


@dataclass(frozen=True)
class Tickets:
    """Issues tickets under a key, and reads them again.

    Guarantee: a ticket that `read` accepts was issued under this key, for this specification; nobody without the key
    makes another one (keyed BLAKE2b, compared in constant time). Draws of one version and minute share one ticket.

    Edge cases: a key that is too short is refused (`ConfigError`). Tickets that ran out are read: whether they still
    count is the caller's to say.
    """

    key: bytes = field(repr=False)
    fingerprint: str
    lifetime: int = 60
    now: Callable[[], int] = minutes_now

    def __post_init__(self) -> None:
        _validate.count(lifetime=self.lifetime)
        if len(self.key) != KEY_BYTES:
            raise ConfigError(field="key", value=f"{len(self.key)} bytes", remedy=f"give {KEY_BYTES} random bytes")

    def issue(self, version: int, epoch: int) -> bytes:
        """The ticket of a version that is drawn now."""
        body = _BODY.pack(self._specification, version, epoch, self.now() + self.lifetime)
        return body + self._mac(body)

    def read(self, ticket: bytes) -> Ticket:
        """What a ticket says; `Stranger` or `OtherSpecification` where it was not issued for this."""
        if len(ticket) not in (TICKET_BYTES, TICKET_BYTES + MARK_BYTES):
            raise Stranger
        ticket, mark = ticket[:TICKET_BYTES], ticket[TICKET_BYTES:]
        body = ticket[: _BODY.size]
        specification, version, epoch, expires = _BODY.unpack(body)
        if specification != self._specification:
            raise OtherSpecification
        if not hmac.compare_digest(self._mac(body), ticket[_BODY.size :]):
            raise Stranger
        return Ticket(version, epoch, expires, mark)

    @cached_property
    def _specification(self) -> bytes:
        return bytes.fromhex(self.fingerprint[:16])

    @cached_property
    def _keyed(self) -> blake2b:
        return blake2b(key=self.key, digest_size=_MAC)

    @cached_property
    def _whole_fingerprint(self) -> bytes:
        return self.fingerprint.encode()

    def _mac(self, body: bytes) -> bytes:
        mac = self._keyed.copy()
        mac.update(body + self._whole_fingerprint)
        return mac.digest()
