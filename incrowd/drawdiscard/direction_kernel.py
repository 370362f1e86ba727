"""Which direction an answer is, compiled: what `direction.named_seed` says."""

import numpy as np

from incrowd._machine_code import compiled
from incrowd.drawdiscard.pool import Instance
from incrowd.privacy.mechanism.signs import SEED_BITS

LARGEST = np.finfo(np.float32).max
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
    """See `direction.named_seed`."""
    seed, first = np.uint32(0), min(SEED_BITS, answer.size)
    for place in range(first):
        wide, mine = np.float64(parent[place]), answer[place]
        up = mine == np.float32(wide - length)
        if not np.isfinite(mine) or (not up and mine != np.float32(wide + length)):
            return -1
        if up:
            seed |= np.uint32(1) << np.uint32(place)
    of_seed, wrong = _mixed(seed), np.zeros(32, np.uint8)
    for start in range(first, answer.size, 32):
        word = _mixed(of_seed ^ _mixed(np.uint32((start - first) // 32 + 1)))
        mine, its = answer[start : start + 32], parent[start : start + 32]
        for bit in range(mine.size):  # each place by itself, so that it is a few vector operations
            plus = np.float64((word >> np.uint32(bit)) & np.uint32(1))
            expected = np.float32(np.float64(its[bit]) + (length - 2.0 * length * plus))
            wrong[bit] |= np.uint8(mine[bit] != expected) | np.uint8(np.abs(mine[bit]) > LARGEST)
    return -1 if wrong.any() else int(seed)
