"""Which direction an answer is, compiled: what `direction_test.named_seed` says."""

import numpy as np

from incrowd._machine_code import compiled
from incrowd.drawdiscard.pool import Instance
from incrowd.privacy.mechanism.signs import SEED_BITS

_WORD = np.uint32(0xFFFFFFFF)


@compiled
def _mixed(word: np.uint32) -> np.uint32:
    """See `signs.mixed`."""
    word = np.uint32(word ^ (word >> np.uint32(16)))
    word = np.uint32((word * np.uint32(0x85EBCA6B)) & _WORD)
    word = np.uint32(word ^ (word >> np.uint32(13)))
    word = np.uint32((word * np.uint32(0xC2B2AE35)) & _WORD)
    return np.uint32(word ^ (word >> np.uint32(16)))


@compiled
def named_seed(answer: Instance, parent: Instance, length: float) -> int:
    """See `direction_test.named_seed`."""
    seed, word, of_seed = np.uint32(0), np.uint32(0), np.uint32(0)
    for place in range(answer.size):
        wide, mine = np.float64(parent[place]), answer[place]
        if not np.isfinite(mine):
            return -1
        up = mine == np.float32(wide - length)
        if not up and mine != np.float32(wide + length):
            return -1
        if place < SEED_BITS:
            if up:
                seed |= np.uint32(1) << np.uint32(place)
            continue
        bit = (place - SEED_BITS) % 32
        if bit == 0:
            if place == SEED_BITS:
                of_seed = _mixed(seed)
            word = _mixed(of_seed ^ _mixed(np.uint32((place - SEED_BITS) // 32 + 1)))
        if up != (((word >> np.uint32(bit)) & np.uint32(1)) == 1):
            return -1
    return np.int64(seed)
