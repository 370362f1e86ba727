"""How often one address may ask: told apart by a keyed hash, in memory of a fixed size, for an hour at most."""

import ipaddress
import os
import socket
import time
from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b

from incrowd import _validate
from incrowd.errors import ConfigError

BUCKETS = 2**17
_HOUR = 3600.0
_SHARED_V6 = 8
"""Bytes of an IPv6 address that one customer has to herself all the rest of."""

Networks = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]


class Caller:
    """Who asks, as long as a connection lasts: its places are looked up once an hour instead of at each request."""

    __slots__ = ("address", "places", "until")

    def __init__(self, address: str) -> None:
        self.address = address
        self.places = 0, 0
        self.until = 0.0


class AddressRates:
    """So many requests a second by each address, and a burst of so many.

    Guarantee: no address is kept: what is kept are moments, in places that a hash under a random key names, and the key
    lives for an hour. The memory is of one size whoever asks. An address alone gets its whole rate: it has two places,
    and both have to be used up by others who share one before it is told to wait.

    Edge cases: the addresses of one IPv6 network (/64) count as one; what is no address counts as one, too.
    """

    def __init__(self, rate: float, burst: int, *, now: Callable[[], float] = time.monotonic) -> None:
        _validate.positive(rate=rate)
        _validate.count(burst=burst)
        self._interval, self._room = 1 / rate, (burst - 1) / rate
        self._now = now
        self._renew(now())

    def wait(self, caller: "Caller") -> float:
        """Count a request; seconds to wait where it is one too many, otherwise 0."""
        now = self._now()
        if now >= self._until:
            self._renew(now)
        if caller.until != self._until:
            digest = blake2b(network(caller.address), digest_size=8, key=self._key).digest()
            caller.places = (
                int.from_bytes(digest[:4], "little") % BUCKETS,
                int.from_bytes(digest[4:], "little") % BUCKETS,
            )
            caller.until = self._until
        one, other = caller.places
        full = self._full
        begun = max(min(full[one], full[other]), now)  # the emptier of the two is nearer the truth
        if begun - now > self._room:
            return begun - now - self._room
        due = begun + self._interval
        full[one], full[other] = max(full[one], due), max(full[other], due)
        return 0.0

    def _renew(self, now: float) -> None:
        self._key = os.urandom(16)
        self._full = array("d", bytes(8 * BUCKETS))
        self._until = now + _HOUR


def _place(digest: bytes) -> int:
    return int.from_bytes(digest, "little") % BUCKETS


def network(address: str) -> bytes:
    """The part of an address that stands for whoever has it."""
    try:
        return socket.inet_pton(socket.AF_INET, address)  # far faster than a module of Python's for the usual case
    except (OSError, ValueError):
        pass
    try:
        found = ipaddress.IPv6Address(address)
    except ValueError:
        return b""
    return found.ipv4_mapped.packed if found.ipv4_mapped is not None else found.packed[:_SHARED_V6]


class TrustedProxies:
    """Whose word on the address of a client counts: nobody's but theirs whose networks are named.

    Guarantee: what a client itself writes into the header changes nothing: the addresses are read from the right, and
    the first that is no trusted proxy's is taken.
    """

    def __init__(self, named: Sequence[str] = ()) -> None:
        self._networks: Networks = [_network(name) for name in named]

    def client(self, peer: str, forwarded: bytes) -> str:
        """The client's address, given the other end of the connection and the header ``x-forwarded-for``."""
        if not self._networks or not self.trusted(peer):
            return peer
        for part in reversed(forwarded.decode("latin-1").split(",")):
            address = part.strip()
            if address and not self.trusted(address):
                return address
        return peer

    @property
    def any(self) -> bool:
        """Whether anybody is trusted."""
        return bool(self._networks)

    def trusted(self, address: str) -> bool:
        """Whether an address is that of a proxy whose word counts."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in each for each in self._networks)


def _network(name: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(name)
    except ValueError as error:
        remedy = "give an address, or a network such as 10.0.0.0/8"
        raise ConfigError(field="trust-proxy", value=name, remedy=remedy) from error
