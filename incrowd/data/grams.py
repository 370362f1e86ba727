"""Pieces of a text (n-grams), counted in buckets: how a text of any length becomes so many numbers.

Which bucket a piece falls into, and with which sign, follows from BLAKE2 of the piece alone: no vocabulary, which would
tell whose words are in it. Signs make what falls together cancel rather than add up (Weinberger et al. 2009).
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b

_WORD = re.compile(r"\w+")
_REMEMBERED = 1 << 18  # pieces: most of a language's short ones


def hashed(text: str, *, buckets: int, characters: tuple[int, int], words: bool) -> tuple[float, ...]:
    """The numbers of a text, of L2 norm 1.

    Guarantee: they follow from the text alone, and are the same on every machine.

    Edge cases: a text without a piece gives zeros.
    """
    counts = [0.0] * buckets
    for piece, count in Counter(_pieces(text.casefold(), characters, words=words)).items():
        number = _number(piece)
        counts[(number >> 1) % buckets] += count if number & 1 else -count
    roots = [math.copysign(math.sqrt(abs(count)), count) if count else 0.0 for count in counts]
    length = math.sqrt(math.fsum(abs(count) for count in counts))
    return tuple(root / length if root else 0.0 for root in roots)


def _pieces(text: str, characters: tuple[int, int], *, words: bool) -> Iterator[str]:
    if words:
        for word in _WORD.findall(text):
            yield f"\0{word}"  # not the same piece as these letters within a word
    least, most = characters
    for size in range(least, most + 1):
        for start in range(len(text) - size + 1):
            yield text[start : start + size]


@lru_cache(maxsize=_REMEMBERED)
def _number(piece: str) -> int:
    return int.from_bytes(blake2b(piece.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
