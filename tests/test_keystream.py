"""Words that are made of a key: those of the standard, of another key in every call."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from incrowd import _keystream, _machine_code, _random
from incrowd._machine_code import LoopsOrPlain
from incrowd._random import SystemRandomness
from tests.reference import chacha

COUNTING = bytes(range(32))
IN_A_GROUP = _keystream.WORDS * _keystream.LANES // 2  # numbers of 64 bits


def made(key: bytes, groups: int, *, number: int = 0, nonce: bytes = bytes(12)) -> NDArray[np.uint32]:
    words = np.empty((groups, _keystream.WORDS, _keystream.LANES), np.uint32)
    _keystream.fill(_keystream.first_blocks(key, number=number, nonce=nonce), words)
    return words


@pytest.mark.parametrize(
    ("key", "number", "nonce", "expected"),
    [
        (COUNTING, 1, "000000090000004a00000000", "10f1e7e4d13b5915500fdd1fa32071c4"),  # section 2.3.2
        (bytes(32), 0, "00" * 12, "76b8e0ada0f13d90405d6ae55386bd28"),  # appendix A.1, 1 and 2
        (bytes(32), 1, "00" * 12, "9f07e7be5551387a98ba977c732d080d"),
    ],
    ids=["2.3.2", "A.1 1", "A.1 2"],
)
def test_blocks_are_those_of_the_standard(key: bytes, number: int, nonce: str, expected: str) -> None:
    found = made(key, 1, number=number, nonce=bytes.fromhex(nonce))[0, :, 0]
    assert found.astype("<u4").tobytes().hex().startswith(expected)
    assert found.tolist() == chacha.block(key, number=number, nonce=bytes.fromhex(nonce))


@settings(max_examples=20)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 3), st.sampled_from([0, 2**31, 2**32 - 100]))
def test_every_block_has_its_number(key: bytes, groups: int, number: int) -> None:
    words = made(key, groups, number=number)
    for place in (0, 1, _keystream.LANES - 1, groups * _keystream.LANES - 1):
        group, lane = divmod(place, _keystream.LANES)
        assert words[group, :, lane].tolist() == chacha.block(key, number=(number + place) % 2**32)


def test_they_are_what_another_library_makes() -> None:
    ciphers = pytest.importorskip("cryptography.hazmat.primitives.ciphers")
    cipher = ciphers.Cipher(ciphers.algorithms.ChaCha20(COUNTING, bytes(16)), mode=None)
    expected = np.frombuffer(cipher.encryptor().update(bytes(2 * 8 * IN_A_GROUP)), "<u4")
    assert np.array_equal(made(COUNTING, 2).transpose(0, 2, 1).reshape(-1), expected)


@pytest.mark.parametrize("size", [0, 1, IN_A_GROUP, IN_A_GROUP + 1, 3 * IN_A_GROUP])
def test_a_call_s_words_are_made_of_a_key_that_the_system_gives_for_it(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = made(COUNTING, 3)  # and the loops are compiled, for which numba draws names of files
    asked = []

    def urandom(count: int) -> bytes:
        asked.append(count)
        return COUNTING

    monkeypatch.setattr(os, "urandom", urandom)
    found = _keystream.bits(size)
    assert asked == [32]
    assert found.shape == (size,)
    assert np.array_equal(found, expected.reshape(-1).view(np.uint64)[:size])


@pytest.mark.slow
def test_a_process_that_draws_much_stretches_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_machine_code, "WORTH", 2**13)
    monkeypatch.setattr(_random, "_STRETCHED", LoopsOrPlain("incrowd._keystream", plain=_random.SystemWords))
    made(COUNTING, 1)
    asked = []
    urandom = os.urandom

    def counted(count: int) -> bytes:
        asked.append(count)
        return urandom(count)

    monkeypatch.setattr(os, "urandom", counted)
    stream = SystemRandomness().stream("noise")
    for size in (2**12, 2**12, 2**20, 2**11 - 1):
        assert len(np.unique(stream.bits(size))) == size
    assert asked == [8 * 2**12, 32, 32, 8 * (2**11 - 1)]
