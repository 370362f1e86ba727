"""Noise for simulations, in large blocks: where millions of updates are simulated, noise is most of the work."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Stream
from incrowd.privacy.mechanism.whole_noise import SEED_BITS, ChosenDirection, sign_bits

NoiseRow = NDArray[np.float32]
FillRow = Callable[[Stream, NoiseRow], None]

BLOCK = 2**17
"""About so many values are drawn at once: many enough that NumPy's calls do not count, few enough for the cache."""

_MAGNITUDE = np.uint32(2**31 - 1)


class Noise(Protocol):
    """The noise of updates."""

    def on(self, gradient: NoiseRow, update: int) -> NoiseRow:
        """What a device releases of this gradient."""
        ...


class BlockNoise:
    """Independent values of the sampler's distribution times `scale`, in the order in which they are asked for."""

    def __init__(self, sampler: FillRow, *, size: int, scale: float, stream: Stream) -> None:
        self._sampler = sampler
        self._scale = np.float32(scale)
        self._stream = stream
        self._block = np.empty((max(1, BLOCK // size), size), np.float32)
        self._taken = len(self._block)

    def on(self, gradient: NoiseRow, update: int) -> NoiseRow:
        """See `Noise.on`: the next row."""
        if self._taken == len(self._block):
            self._sampler(self._stream, self._block)
            self._block *= self._scale
            self._taken = 0
        self._taken += 1
        gradient += self._block[self._taken - 1]
        return gradient


class FastDirections:
    """Directions, each named for its gradient with a device's chances, up to float32 (`ChosenDirection`)."""

    def __init__(self, choice: ChosenDirection, *, stream: Stream) -> None:
        self._ways, self._stream = choice, stream
        self._each = np.float32(choice.length * choice.step)

    def on(self, gradient: NoiseRow, update: int) -> NoiseRow:
        """See `Noise.on`."""
        choice = self._ways
        bits = self._stream.bits(choice.candidates + 2)
        seeds = (bits[2:] % np.uint64(2**SEED_BITS)).astype(np.int64)
        signs = sign_bits(seeds, choice.size)
        along = signs.astype(np.float32) @ gradient
        best = int(np.argmax(along))
        if float(bits[0]) * 2.0**-64 >= choice.honest:
            best = (best + 1 + int(bits[1] % np.uint64(choice.candidates - 1))) % choice.candidates
        row: NoiseRow = (2 * signs[best].astype(np.float32) - 1) * self._each
        return row


def to_expected(choice: ChosenDirection, gradient: NoiseRow) -> None:
    """Make a gradient, in place, what is released of it on average, as directions are random."""
    norm = float(np.linalg.norm(gradient))
    length = choice.length * choice.step * math.sqrt(choice.size)
    gradient *= np.float32(choice.gain * length / norm if norm else 0.0)


def fill_laplace(stream: Stream, block: NDArray[Any]) -> None:
    """Standard Laplace values in float32, by inversion: of 32 bits one is the sign, 31 choose the place in the tail."""
    bits = np.array(stream.bits(block.size // 2 + 1)).view(np.uint32)[: block.size].reshape(block.shape)
    whole = block.view(np.uint32)
    np.bitwise_and(bits, _MAGNITUDE, out=whole)
    np.copyto(block, whole.view(np.int32), casting="unsafe")
    block += np.float32(0.5)
    block *= np.float32(2.0**-31)
    np.log(block, out=block)  # at most 0: its sign is set
    bits |= _MAGNITUDE
    whole &= bits


def fill_normal(stream: Stream, block: NDArray[Any]) -> None:
    """Standard normal values in float32."""
    block[...] = stream.normals(block.size).reshape(block.shape)
