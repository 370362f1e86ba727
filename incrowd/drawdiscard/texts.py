"""How text becomes units and buckets: rules that are the same in every language, to the last bit.

| step            | rule                                                                                            |
| --------------- | ----------------------------------------------------------------------------------------------- |
| text of a value | text is itself; a whole number is its decimal digits (so 1.0 is ``1``); all else is no text     |
| characters      | Unicode code points; half of a surrogate pair alone is U+FFFD; only the first 4,000 count       |
| small letters   | A to Z become a to z; nothing else changes                                                      |
| words           | the longest runs of a to z, A to Z, 0 to 9 and characters from U+0080 on                        |
| n-grams         | n characters, or n words with one space between them, wherever they follow each other           |
| bucket          | FNV-1a, 32 bits, over the UTF-8 bytes of the n-gram, modulo the number of buckets               |

Only ASCII is folded and split, because what else is a letter, and which, depends on a language's tables and their age.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Integers

LONGEST_TEXT = 4_000
"""So many characters of a text count, from its beginning."""

UrlPart = Literal["all", "scheme", "host", "name", "inner", "ending", "port", "path", "query", "fragment", "rest"]
"""What of a text counts: all of it, or a part of the URL that it is taken for."""

_CAPITALS = str.maketrans({chr(code): chr(code + 32) for code in range(ord("A"), ord("Z") + 1)})
_WORDS = re.compile("[a-zA-Z0-9\x80-\U0010ffff]+")
BLANKS = " \t\n\r\f\v"
_SECOND_LEVELS = frozenset(("ac", "co", "com", "edu", "go", "gov", "ne", "net", "or", "org"))
_OFFSET, _PRIME = 2_166_136_261, 16_777_619


def text_of(value: object) -> str | None:
    """The text that a value counts as; None where it counts as none.

    Guarantee: what it gives can be written in UTF-8.
    """
    if isinstance(value, int):
        return str(int(value))  # true and false are 1 and 0
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) <= 2**53 else None
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def lowered(text: str) -> str:
    """The text with small letters for A to Z."""
    return text.translate(_CAPITALS)


def words_of(text: str) -> list[str]:
    """The words of a text, in their order."""
    return _WORDS.findall(text)


def ngrams(units: Sequence[str], *, shortest: int, longest: int, between: str) -> list[str]:
    """Every n units that follow each other, for each n of a range."""
    return [
        between.join(units[place : place + length])
        for length in range(shortest, longest + 1)
        for place in range(len(units) - length + 1)
    ]


def buckets_of(texts: Sequence[str], buckets: int) -> Integers:
    """The bucket of each text: FNV-1a (Fowler, Noll and Vo 1991) of its UTF-8 bytes, modulo the number of buckets."""
    written = [text.encode() for text in texts]
    lengths = np.array([len(one) for one in written], np.int64)
    starts = np.cumsum(lengths) - lengths
    data = np.frombuffer(b"".join(written), np.uint8).astype(np.uint32)
    hashes: NDArray[np.uint32] = np.full(len(written), _OFFSET, np.uint32)
    for place in range(int(lengths.max(initial=0))):  # the bytes at one place of all texts at once
        there = np.flatnonzero(lengths > place)
        hashes[there] = (hashes[there] ^ data[starts[there] + place]) * np.uint32(_PRIME)
    return hashes.astype(np.int64) % buckets


@dataclass(frozen=True)
class UrlParts:
    """The parts of a text that is taken for a URL; nothing is looked up, and every text has parts.

    Blanks at both ends are left out. `scheme` is what stands before the first ``://``, or nothing. Up to the first of
    ``/ ? #`` after it there are `host`, behind the last ``@`` and before the first ``:`` that follows, and `port`,
    behind that. What comes next is `rest`, of which `fragment` stands behind the first ``#``, `query` before it and
    behind the first ``?``, and `path` before both.
    """

    scheme: str
    host: str
    port: str
    path: str
    query: str
    fragment: str
    rest: str

    @classmethod
    def of(cls, text: str) -> "UrlParts":
        """The parts of this text."""
        written = text.strip(BLANKS)
        before, separator, after = written.partition("://")
        scheme, remaining = (before, after) if separator else ("", written)
        end = min((remaining.find(mark) for mark in "/?#" if mark in remaining), default=len(remaining))
        resource, _, fragment = remaining[end:].partition("#")
        path, _, query = resource.partition("?")
        host, _, port = remaining[:end].rpartition("@")[2].partition(":")
        return cls(scheme, host, port, path, query, fragment, remaining[end:])

    @property
    def labels(self) -> list[str]:
        """What the dots of the host divide."""
        return self.host.split(".")

    @property
    def ending(self) -> str:
        """The last label of the host."""
        return self.labels[-1]

    @property
    def name(self) -> str:
        """The label that someone registered: see `_own`."""
        return self.labels[self._own]

    @property
    def inner(self) -> str:
        """The labels before that, but for a leading ``www``."""
        return ".".join(self.labels[self.labels[0] == "www" : self._own])

    @property
    def _own(self) -> int:
        """The place of the label before the last.

        Of the one before that, where there are three at least, the last has two characters, and it stands behind one of
        ac, co, com, edu, go, gov, ne, net, or, org.
        """
        labels = self.labels
        compound = len(labels) > 2 and len(labels[-1]) == 2 and labels[-2] in _SECOND_LEVELS
        return max(0, len(labels) - (3 if compound else 2))


def part_of(value: object, *, part: UrlPart, lower: bool) -> str | None:
    """What counts of a value: its first characters, in small letters if asked for, and of these the part.

    None where the value is no text.
    """
    text = text_of(value)
    if text is None:
        return None
    counted = lowered(text[:LONGEST_TEXT]) if lower else text[:LONGEST_TEXT]
    return counted if part == "all" else str(getattr(UrlParts.of(counted), part))
