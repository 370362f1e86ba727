"""Directions that every language makes alike: +1 or -1 for every weight, from a seed of 20 bits.

The first 20 signs are the seed itself, so who is shown a direction knows its seed, and whether it is one at all. The
others are the bits of hashed words. A million directions are many enough to reach every corner of a model, and few
enough that none of them lies close to one that somebody wishes for (docs/draw-and-discard.md says how close).
"""

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats, Integers

SEED_BITS = 20
"""SignBits of a seed."""

Hashes = NDArray[np.uint32]
SignBits = NDArray[np.uint8]

_AT_ONCE = 2**22  # signs in memory


def mixed(words: Hashes) -> Hashes:
    """Each word mixed by itself, one to one (the last steps of MurmurHash3, which are in the public domain)."""
    words = words ^ (words >> np.uint32(16))
    words = words * np.uint32(0x85EBCA6B)
    words = words ^ (words >> np.uint32(13))
    words = words * np.uint32(0xC2B2AE35)
    return words ^ (words >> np.uint32(16))


def sign_bits(seeds: Integers, size: int) -> SignBits:
    """The signs of these seeds' directions, [seeds, size]: 1 is +1 and 0 is -1.

    Word i (from 1) of a seed is mixed(mixed(seed) xor mixed(i)); its lowest bit comes first.
    """
    count = -(-max(0, size - SEED_BITS) // 32)
    of_seed, of_place = mixed(seeds.astype(np.uint32)), mixed(np.arange(1, count + 1, dtype=np.uint32))
    words = mixed(of_seed[:, None] ^ of_place[None, :])
    following = np.unpackbits(words.astype("<u4").view(np.uint8), axis=1, bitorder="little")
    first = ((seeds[:, None] >> np.arange(SEED_BITS)) & 1).astype(np.uint8)
    return np.concatenate([first, following], axis=1)[:, :size]


def seed_of(bits: SignBits) -> int:
    """The seed of the direction that begins with these signs."""
    return int(bits[:SEED_BITS].astype(np.int64) @ (1 << np.arange(len(bits[:SEED_BITS]))))


def most_along(seeds: Integers, gradient: Floats) -> int:
    """Which of these seeds' directions points most along a gradient of whole numbers; the first, of several.

    Sums are exact where the sizes of the numbers add up to at most 2^52. Private.
    """
    each = max(1, _AT_ONCE // max(1, len(gradient)))
    parts = [seeds[start : start + each] for start in range(0, len(seeds), each)]
    return int(
        np.argmax(np.concatenate([sign_bits(part, len(gradient)).astype(np.float64) @ gradient for part in parts]))
    )
