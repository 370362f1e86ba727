"""ChaCha20's blocks, as RFC 8439 writes them down (section 2.3), one word after the other."""

QUARTERS = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
QUARTERS += [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]


def block(key: bytes, *, number: int = 0, nonce: bytes = bytes(12)) -> list[int]:
    """The 16 words of one block."""
    start = b"expand 32-byte k" + key + number.to_bytes(4, "little") + nonce
    before = [int.from_bytes(start[place : place + 4], "little") for place in range(0, 64, 4)]
    words = list(before)
    for _ in range(10):
        for places in QUARTERS:
            _quarter(words, *places)
    return [(word + added) % 2**32 for word, added in zip(words, before, strict=True)]


def _quarter(words: list[int], a: int, b: int, c: int, d: int) -> None:
    for first, second, third, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        words[first] = (words[first] + words[second]) % 2**32
        words[third] ^= words[first]
        words[third] = (words[third] << by | words[third] >> 32 - by) % 2**32
