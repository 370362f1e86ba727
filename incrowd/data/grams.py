"""Pieces of a text (n-grams) as numbers: how a text of any length becomes a row of so many.

A piece's bucket and sign follow from BLAKE2 of the piece alone. There is no vocabulary, which would tell whose words
are in it. Opposite signs let pieces in one bucket cancel rather than add up (Weinberger et al. 2009).
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from itertools import islice

BUCKETS = 1 << 16
"""The most buckets that a piece's number tells apart."""

_WORD = re.compile(r"[\w']+|[^\w\s]+")  # or marks, such as !? and ://
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")  # kana and Han
_LETTERS = 4
_REMEMBERED = 1 << 18  # pieces: most of a language's short ones


def numbered(text: str, most: int) -> tuple[float, ...]:
    """The numbers of a text's first pieces, at most so many; zeros where it has fewer.

    A number is 1 + the piece's bucket, times its sign. A single character counts half: its number is `BUCKETS` higher.

    Guarantee: the numbers follow from the text alone, and are the same on every machine.
    """
    found = tuple(islice(_numbers(text.casefold()), most))
    return found + (0.0,) * (most - len(found))


def _numbers(text: str) -> Iterator[float]:
    for word in _WORD.findall(text):
        if _UNSPACED.search(word):  # no blanks between words: each character, and each pair
            yield from (_number(letter, BUCKETS) for letter in word)
            yield from (_number(word[at : at + 2]) for at in range(len(word) - 1))
        else:
            yield _number(f"\0{word}")  # not the same piece as these letters within a word
            edged = f"<{word}>"
            yield from (_number(edged[at : at + _LETTERS]) for at in range(len(edged) - _LETTERS + 1))


@lru_cache(maxsize=_REMEMBERED)
def _number(piece: str, more: int = 0) -> float:
    hashed = int.from_bytes(blake2b(piece.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
    size = float(1 + (hashed >> 1) % BUCKETS + more)
    return size if hashed & 1 else -size
