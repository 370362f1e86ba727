"""Random words made of a short key: ChaCha20 (Bernstein 2008; RFC 8439), compiled."""

import os

import numpy as np
from numpy.typing import NDArray

from incrowd._machine_code import compiled

BlockWords = NDArray[np.uint32]

LANES = 256
"""Blocks that are made side by side: their words stay in the cache, and a processor's lanes are full."""

WORDS = 16
"""The number of words of 32 bits in a block."""

_ROUNDS = 20
_COUNTER = 12  # the word of a block that has its number


def bits(size: int) -> NDArray[np.uint64]:
    """Whole numbers of 64 bits, from 256 bits of the operating system's that nothing else is made of.

    Edge cases: blocks have numbers of 32 bits, so one call is good for 2^35 numbers, which no memory holds.
    """
    words = np.empty((-(-2 * size // (WORDS * LANES)), WORDS, LANES), np.uint32)
    fill(first_blocks(os.urandom(32)), words)
    return words.reshape(-1).view(np.uint64)[:size]


def first_blocks(key: bytes, *, number: int = 0, nonce: bytes = bytes(12)) -> BlockWords:
    """The words from which the first blocks are made, [word, block]."""
    words = np.frombuffer(b"expand 32-byte k" + key + number.to_bytes(4, "little") + nonce, "<u4")
    blocks: BlockWords = np.repeat(words.astype(np.uint32)[:, None], LANES, axis=1)
    blocks[_COUNTER] += np.arange(LANES, dtype=np.uint32)
    return blocks


@compiled
def fill(blocks: BlockWords, words: BlockWords) -> None:
    """Blocks one after the other, [group, word, block of the group]; moves `blocks` on."""
    mixed, count = np.empty_like(blocks), blocks.shape[1]
    for group in range(words.shape[0]):
        for word in range(WORDS):
            for block in range(count):
                mixed[word, block] = blocks[word, block]
        for number in range(_ROUNDS):
            turn = number % 2  # columns of four by four words, and diagonals
            for column in range(4):
                b, c, d = (column + turn) % 4, (column + 2 * turn) % 4, (column + 3 * turn) % 4
                _quarter(mixed[column], mixed[4 + b], mixed[8 + c], mixed[12 + d])
        for word in range(WORDS):
            for block in range(count):
                words[group, word, block] = np.uint32(mixed[word, block] + blocks[word, block])
        for block in range(count):
            blocks[_COUNTER, block] = np.uint32(blocks[_COUNTER, block] + count)


@compiled
def _quarter(first: BlockWords, second: BlockWords, third: BlockWords, fourth: BlockWords) -> None:
    """A quarter of a round, of every block."""
    for block in range(first.size):
        a, b, c, d = first[block], second[block], third[block], fourth[block]
        a = np.uint32(a + b)
        d = _turned(d ^ a, 16)
        c = np.uint32(c + d)
        b = _turned(b ^ c, 12)
        a = np.uint32(a + b)
        d = _turned(d ^ a, 8)
        c = np.uint32(c + d)
        b = _turned(b ^ c, 7)
        first[block], second[block], third[block], fourth[block] = a, b, c, d


@compiled
def _turned(word: np.uint32, by: int) -> np.uint32:
    return np.uint32(np.uint32(word << np.uint32(by)) | np.uint32(word >> np.uint32(32 - by)))
