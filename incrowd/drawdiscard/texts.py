"""Turns text into parts, words, n-grams and buckets by the rules of docs/fields.md, alike in every language.

Only ASCII letters become small or divide words: other letters depend on a language's tables and their age.
"""

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Integers

LONGEST_TEXT = 4_000  # only the first characters of a text count, up to this many

UrlPart = Literal["all", "scheme", "host", "name", "inner", "ending", "port", "path", "query", "fragment", "rest"]
"""The part of a URL that counts, or all of the text."""

BLANKS = " \t\n\r\f\v"
_CAPITALS = str.maketrans({chr(code): chr(code + 32) for code in range(ord("A"), ord("Z") + 1)})
_WORDS = re.compile("[a-zA-Z0-9\x80-\U0010ffff]+")
_SECOND_LEVELS = frozenset(("ac", "co", "com", "edu", "go", "gov", "ne", "net", "or", "org"))
_OFFSET, _PRIME = 2_166_136_261, 16_777_619


def text_of(value: object) -> str | None:
    """The text of a value: a text, or the digits of a whole number; None for any other value.

    Guarantee: UTF-8 can encode the result.
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


def words_of(text: str) -> list[str]:
    """The words of a text, in their order."""
    return _WORDS.findall(text)


def ngrams(units: Sequence[str], lengths: range, *, between: str) -> list[str]:
    """All runs of neighbouring units, for each of these lengths."""
    return [between.join(units[at : at + size]) for size in lengths for at in range(len(units) - size + 1)]


def buckets_of(texts: Sequence[str], buckets: int) -> Integers:
    """The bucket of each text: FNV-1a (Fowler, Noll and Vo 1991) of its UTF-8 bytes, modulo the number of buckets."""
    written = [text.encode() for text in texts]
    lengths = np.array([len(one) for one in written], np.int64)
    starts = np.cumsum(lengths) - lengths
    data = np.frombuffer(b"".join(written), np.uint8).astype(np.uint32)
    hashes: NDArray[np.uint32] = np.full(len(written), _OFFSET, np.uint32)
    for place in range(int(lengths.max(initial=0))):  # the bytes at one place of all texts at once
        longer = np.flatnonzero(lengths > place)
        hashes[longer] = (hashes[longer] ^ data[starts[longer] + place]) * np.uint32(_PRIME)
    return hashes.astype(np.int64) % buckets


def url_parts(text: str) -> dict[str, str]:
    """The parts of a text as of a URL, `UrlPart` by `UrlPart`; every text has parts."""
    before, separator, after = text.strip(BLANKS).partition("://")
    scheme, remaining = (before, after) if separator else ("", before)
    end = min((remaining.find(mark) for mark in "/?#" if mark in remaining), default=len(remaining))
    resource, _, fragment = remaining[end:].partition("#")
    path, _, query = resource.partition("?")
    host, _, port = remaining[:end].rpartition("@")[2].partition(":")
    labels = host.split(".")
    compound = len(labels) > 2 and len(labels[-1]) == 2 and labels[-2] in _SECOND_LEVELS  # as in example.co.uk
    name = max(0, len(labels) - (3 if compound else 2))
    inner = ".".join(labels[labels[0] == "www" : name])
    of_host = {"host": host, "name": labels[name], "inner": inner, "ending": labels[-1], "port": port}
    return of_host | {"scheme": scheme, "path": path, "query": query, "fragment": fragment, "rest": remaining[end:]}


def part_of(value: object, *, part: UrlPart, lower: bool) -> str | None:
    """The part of the first characters of a value's text, in small letters on request; None without a text."""
    text = text_of(value)
    if text is None:
        return None
    counted = text[:LONGEST_TEXT].translate(_CAPITALS) if lower else text[:LONGEST_TEXT]
    return counted if part == "all" else url_parts(counted)[part]
