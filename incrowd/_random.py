"""Randomness is a parameter: one source a run, one named stream a purpose.

There are two sources. `SystemRandomness` asks the operating system and is the default wherever a promise is made.
`SeededRandomness` repeats itself, must be asked for by name, and marks every report as a simulation. Neither reads nor
changes the global generators of NumPy or torch.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from incrowd import _validate

_MANY = 2**11  # with fewer a key of their own does not pay

Floats = NDArray[np.float64]
Bits = NDArray[np.uint64]
Integers = NDArray[np.int64]


def _words(size: int) -> Bits:
    """Words of 64 bits from the operating system's generator, which a cipher gives less to do where there are many."""
    cipher = _cipher() if size >= _MANY else None
    return np.frombuffer(os.urandom(8 * size) if cipher is None else cipher.update(bytes(8 * size)), np.uint64)


def _cipher() -> Any:
    """ChaCha20 under 256 bits of the operating system's that nothing else is made of; None where there is none, for the
    noise that waits for it may be paid for.
    """
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    except ImportError:
        return None
    try:
        return Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), mode=None).encryptor()
    except (UnsupportedAlgorithm, RuntimeError):  # an OpenSSL that keeps to FIPS
        return None


class Stream(Protocol):
    """Random values for one purpose. Drawing moves the stream on."""

    def bits(self, size: int) -> Bits:
        """Whole numbers of 64 independent fair bits each."""

    def normals(self, size: int) -> Floats:
        """Independent standard normal values."""

    def laplaces(self, size: int) -> Floats:
        """Independent standard Laplace values (scale 1)."""


class Randomness(Protocol):
    """The source of a run's random bits."""

    @property
    def simulated(self) -> bool:
        """Whether someone could repeat the draws, which makes every promise a simulation of one."""

    @property
    def source(self) -> str:
        """Its name in a ledger: "system", or a name that follows from the seed."""

    def stream(self, purpose: str, *indices: int) -> Stream:
        """The stream for one purpose, say ``stream("noise", round)``."""


@dataclass(frozen=True)
class SystemRandomness:
    """The operating system's generator.

    For a large draw the system gives a key of 256 bits, for this call alone, and OpenSSL's ChaCha20 stretches it. Linux
    does the same inside its generator, at several times the cost.

    Guarantee: nothing that a program or user sets (a seed of any library) changes what is drawn; every value uses 64
    fresh bits of its own.
    """

    simulated: bool = field(default=False, init=False)
    source: str = field(default="system", init=False)

    def stream(self, purpose: str, *indices: int) -> Stream:
        """A new view of the one generator; the name only documents the purpose."""
        return SystemStream()


@dataclass(frozen=True)
class SeededRandomness:
    """A fast generator that repeats itself: for simulation only.

    Guarantee: the same seed, purpose and indices give the same values, in any order of asking, on any machine with the
    same NumPy; streams that differ in seed, purpose or any index are independent.
    """

    seed: int
    simulated: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        _validate.natural(seed=self.seed)

    @property
    def source(self) -> str:
        """See `Randomness.source`: equal for equal seeds, and a long seed cannot be read from it."""
        return f"seeded {hashlib.sha256(json.dumps([int(self.seed)]).encode()).hexdigest()[:16]}"

    def stream(self, purpose: str, *indices: int) -> Stream:
        """The stream of this seed, purpose and indices, from its beginning."""
        name = json.dumps([int(self.seed), purpose, *map(int, indices)])  # no two streams have the same
        digest = hashlib.sha256(name.encode()).digest()
        return SeededStream(np.random.Generator(np.random.SFC64(np.frombuffer(digest, "<u4"))))


class SystemStream:
    """Values computed from the operating system's bits, one 64-bit draw each."""

    def bits(self, size: int) -> Bits:
        """See `Stream.bits`."""
        return _words(size)

    def normals(self, size: int) -> Floats:
        """Standard normal values by inversion: one bit is the sign, 63 choose the place in the tail.

        Edge cases: the largest magnitude is 9.2 (probability 2^-64 lies beyond).
        """
        sign, tail = _sign_and_tail(self.bits(size))
        ndtri(tail, out=tail)
        return np.multiply(tail, sign, out=tail)

    def laplaces(self, size: int) -> Floats:
        """Standard Laplace values by inversion, as `normals`.

        Edge cases: the largest magnitude is 44.4 (probability 2^-64 lies beyond).
        """
        sign, tail = _sign_and_tail(self.bits(size))
        tail *= 2
        return np.multiply(np.log(tail, out=tail), sign, out=tail)


class KeyedStream(SystemStream):
    """The same values for the same key of 256 bits of the operating system's: for a draw that must not be repeated
    otherwise.
    """

    def __init__(self, key: bytes) -> None:
        self._key, self._calls = key, 0

    def bits(self, size: int) -> Bits:
        """See `Stream.bits`: SHAKE-256 of the key and the number of the call."""
        self._calls += 1
        digest = hashlib.shake_256(self._key + self._calls.to_bytes(8)).digest(8 * size)
        return np.frombuffer(digest, "<u8").astype(np.uint64)


@dataclass(frozen=True)
class SeededStream:
    """Values from NumPy's fast samplers over a generator of its own."""

    generator: np.random.Generator

    def bits(self, size: int) -> Bits:
        """See `Stream.bits`."""
        bits: Bits = self.generator.bit_generator.random_raw(size)  # as `integers` of all 64 bits, with less around it
        return bits

    def normals(self, size: int) -> Floats:
        """See `Stream.normals`."""
        return self.generator.standard_normal(size)

    def laplaces(self, size: int) -> Floats:
        """See `Stream.laplaces`."""
        return self.generator.laplace(size=size)


def _sign_and_tail(bits: Bits) -> tuple[Floats, Floats]:
    """A fair sign and an independent uniform value in (0, 1/2), from one draw.

    The tail is (63 bits + 1/2) / 2^64: never 0, and fine near 0, where the large magnitudes come from.
    """
    sign = np.where(bits >> np.uint64(63), 1.0, -1.0)
    tail = (bits & np.uint64(2**63 - 1)).astype(np.float64)
    tail += 0.5
    tail *= 2.0**-64
    return sign, tail
