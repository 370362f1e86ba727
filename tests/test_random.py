import os
import random
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers import Cipher
from hypothesis import given
from hypothesis import strategies as st

from incrowd import _random
from incrowd._random import Floats, Randomness, SeededRandomness, Stream, SystemRandomness
from tests.statistics import (
    LAPLACE_MOMENTS,
    NORMAL_MOMENTS,
    ODD,
    chi_square,
    fair,
    ks,
    rejects_wrong_scale,
    uncorrelated,
)

SIZE = 100_000
KINDS = pytest.mark.parametrize(
    "draw", [lambda s, n: s.normals(n), lambda s, n: s.laplaces(n)], ids=["normals", "laplaces"]
)
Draw = Callable[[Stream, int], Floats]


@pytest.fixture(params=["given", "stretched", "seeded"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Randomness:
    """The operating system's words, these stretched by a cipher, and a generator that repeats itself."""
    monkeypatch.setattr(_random, "_MANY", {"given": 2**62, "stretched": 0}.get(request.param, _random._MANY))
    return SeededRandomness(3) if request.param == "seeded" else SystemRandomness()


def test_values_are_standard_normal_and_standard_laplace(source: Randomness) -> None:
    stream = source.stream("noise")
    for check, moments, sample in (
        (ks("norm"), NORMAL_MOMENTS, stream.normals(SIZE)),
        (ks("laplace"), LAPLACE_MOMENTS, stream.laplaces(SIZE)),
    ):
        assert rejects_wrong_scale(check, sample)
        assert rejects_wrong_scale(moments, sample)
    assert stream.bits(0).size == stream.normals(0).size == stream.laplaces(0).size == 0
    assert not np.intersect1d(stream.bits(1000), stream.bits(1000)).size  # drawing moves it on


def test_tails_are_as_heavy_as_they_should_be(source: Randomness) -> None:
    stream = source.stream("tails")
    normals, laplaces = stream.normals(SIZE), stream.laplaces(SIZE)
    for threshold, chance in [(2, 0.0455002639), (3, 0.0026997961), (4, 0.0000633425)]:
        assert fair(int(np.sum(np.abs(normals) > threshold)), SIZE, chance=chance) > ODD
        assert fair(int(np.sum(np.abs(laplaces) > 2 * threshold)), SIZE, chance=np.exp(-2 * threshold)) > ODD
    assert fair(int(np.sum(np.abs(normals) * 2 / 3 > 3)), SIZE, chance=0.0026997961) < ODD


@KINDS
def test_a_value_and_its_sign_say_nothing_about_the_next(source: Randomness, draw: Draw) -> None:
    sample = draw(source.stream("noise"), SIZE)
    assert uncorrelated(sample[1:], sample[:-1]) > ODD
    assert uncorrelated(np.abs(sample[1:]), np.abs(sample[:-1])) > ODD
    assert fair(int(np.sum(sample > 0)), SIZE) > ODD


def test_all_64_bits_are_fair_and_independent(source: Randomness) -> None:
    bits = source.stream("bits").bits(SIZE)
    each = (bits[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    tosses = each.astype(np.float32)
    together = (tosses.T @ tosses).astype(np.float64)
    heads = np.diag(together)
    assert all(fair(int(count), SIZE) > ODD for count in (heads.min(), heads.max()))
    pairs = together[np.triu_indices(64, 1)] - SIZE / 4
    assert np.abs(pairs).max() < 6 * np.sqrt(SIZE * 3 / 16)
    for shift in (0, 24, 56):
        bytes_seen = np.bincount(((bits >> np.uint64(shift)) & np.uint64(255)).astype(np.int64), minlength=256)
        assert chi_square(bytes_seen, np.full(256, 1 / 256)) > ODD


@KINDS
def test_no_value_comes_twice_because_each_has_64_bits_of_its_own(source: Randomness, draw: Draw) -> None:
    sample = draw(source.stream("noise"), SIZE)
    assert len(np.unique(sample)) == SIZE
    assert len(np.unique(sample.astype(np.float32))) < SIZE  # with 24 bits a value they would


@pytest.mark.parametrize("bits", [0, 2**63], ids=["positive", "negative"])
def test_the_largest_magnitudes_of_the_system_stream_are_finite(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    monkeypatch.setattr(_random, "_MANY", 2**62)
    monkeypatch.setattr("os.urandom", lambda count: bits.to_bytes(8, "little") * (count // 8))
    stream = SystemRandomness().stream("noise")
    assert np.allclose(np.abs(stream.normals(2)), 9.1553, atol=1e-4)
    assert np.allclose(np.abs(stream.laplaces(2)), 44.3614, atol=1e-4)


@pytest.mark.parametrize(
    ("cipher", "bytes_asked"), [("here", [8, 32]), ("absent", [8, 128]), ("refused", [8, 32, 128])]
)
def test_a_large_draw_is_made_of_256_bits_of_the_system_s(
    cipher: str, bytes_asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ChaCha20 (RFC 8439, appendix A.1, 1 and 2); where no library has it, all bits are the system's."""
    asked = []

    def urandom(count: int) -> bytes:
        asked.append(count)
        return bytes(count)

    monkeypatch.setattr(os, "urandom", urandom)
    monkeypatch.setattr(_random, "_MANY", 2)
    if cipher == "absent":
        monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    if cipher == "refused":
        monkeypatch.setattr(Cipher, "encryptor", _refuses)
    stream = SystemRandomness().stream("noise")
    drawn = [stream.bits(size).tobytes() for size in (1, 16)]
    assert asked == bytes_asked
    assert drawn[0] == bytes(8)
    blocks = drawn[1][:16].hex(), drawn[1][64:80].hex()
    assert (blocks == ("76b8e0ada0f13d90405d6ae55386bd28", "9f07e7be5551387a98ba977c732d080d")) == (cipher == "here")


def _refuses(*_: object) -> None:
    raise UnsupportedAlgorithm("an OpenSSL that keeps to FIPS")


def test_the_system_stream_ignores_every_seed() -> None:
    def seeded_draw() -> Floats:
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - the global seed is what must have no effect
        torch.manual_seed(0)
        return SystemRandomness().stream("noise", 1).normals(1000)

    assert not np.intersect1d(seeded_draw(), seeded_draw()).size


def test_neither_source_moves_the_global_generators() -> None:
    def drawn_after(sources: list[Randomness]) -> tuple[float, float, float]:
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - the global generator is what must not move
        torch.manual_seed(0)
        for source in sources:
            source.stream("noise").normals(10)
        return random.random(), np.random.random(), float(torch.rand(()))  # noqa: NPY002, S311 - as above

    assert drawn_after([]) == drawn_after([SystemRandomness(), SeededRandomness(0)])


def test_two_runs_never_share_noise() -> None:
    first, second = (SystemRandomness().stream("noise", 7).normals(10_000) for _ in range(2))
    assert not np.intersect1d(first, second).size
    assert uncorrelated(first, second) > ODD


@given(st.integers(0, 2**70), st.text(max_size=5), st.lists(st.integers(0, 10**6), max_size=3))
def test_a_seeded_stream_repeats_itself_in_any_order_of_asking(seed: int, purpose: str, indices: list[int]) -> None:
    alone = SeededRandomness(seed).stream(purpose, *indices).normals(5)
    source = SeededRandomness(seed)
    source.stream("other", 1).bits(3)
    assert np.array_equal(source.stream(purpose, *indices).normals(5), alone)


def test_seeded_values_are_the_same_on_every_machine() -> None:
    assert SeededRandomness(42).stream("noise", 3).bits(2).tolist() == [9248549958073043691, 12474495576081450394]


STREAMS = {
    "this": (0, "noise", (1, 2)),
    "seed": (1, "noise", (1, 2)),
    "purpose": (0, "sampling", (1, 2)),
    "round": (0, "noise", (2, 2)),
    "order": (0, "noise", (2, 1)),
    "joined": (0, "noise", (12,)),
    "shorter": (0, "noise", (1,)),
    "in the name": (0, "noise1", (2,)),
    "nul in the name": (0, "noise\0" + "1", (2,)),
}


def test_streams_that_differ_in_anything_are_independent() -> None:
    draws = {
        name: SeededRandomness(seed).stream(purpose, *indices).normals(20_000)
        for name, (seed, purpose, indices) in STREAMS.items()
    }
    names = list(draws)
    for i, first in enumerate(names):
        for second in names[:i]:
            assert uncorrelated(draws[first], draws[second]) > ODD, (first, second)
            assert not np.intersect1d(draws[first], draws[second]).size, (first, second)


def test_only_the_seeded_source_is_a_simulation() -> None:
    assert SeededRandomness(1).simulated
    assert not SystemRandomness().simulated
