import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.privacy.mechanism import signs
from incrowd.privacy.mechanism.signs import SEED_BITS, most_along, seed_of, sign_bits
from tests.statistics import ODD, fair

SEEDS = st.integers(0, 2**SEED_BITS - 1)


def mixed(word: int) -> int:
    """MurmurHash3's last steps in whole numbers of any size, cut to 32 bits."""
    word ^= word >> 16
    word = word * 0x85EBCA6B % 2**32
    word ^= word >> 13
    word = word * 0xC2B2AE35 % 2**32
    return word ^ word >> 16


def one_by_one(seed: int, size: int) -> list[int]:
    """The slow twin: the seed's bits, then those of its words."""
    bits = [seed >> place & 1 for place in range(SEED_BITS)]
    number = 1
    while len(bits) < size:
        word = mixed(mixed(seed) ^ mixed(number))
        bits += [word >> place & 1 for place in range(32)]
        number += 1
    return bits[:size]


@given(st.lists(SEEDS, min_size=1, max_size=5), st.integers(1, 200))
def test_signs_are_those_of_the_slow_twin(seeds: list[int], size: int) -> None:
    found = sign_bits(np.array(seeds), size)
    assert found.tolist() == [one_by_one(seed, size) for seed in seeds]


@given(SEEDS, st.integers(SEED_BITS, 100))
def test_a_direction_tells_its_seed(seed: int, size: int) -> None:
    assert seed_of(sign_bits(np.array([seed]), size)[0]) == seed


def test_signs_are_fair_and_no_two_places_go_together() -> None:
    """Over all seeds in turn, for the seed's own bits are then fair exactly: of a place alone, and of two at once."""
    bits = sign_bits(np.arange(0, 2**SEED_BITS, 64), 120).astype(np.int64)
    count = len(bits)
    later = bits[:, SEED_BITS:]
    assert min(fair(int(heads), count) for heads in later.sum(axis=0)) > ODD
    same = 2 * bits[:, 6:] - 1
    together = same.T @ same
    np.fill_diagonal(together, 0)
    assert np.abs(together).max() < 7 * count**0.5
    same[:, 50] = same[:, 51]
    assert np.abs(same[:, 50] @ same[:, 51]) > 7 * count**0.5  # the control


@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 2**32))
def test_the_direction_most_along_is_that_of_the_slow_twin(size: int, count: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    seeds, gradient = draw.integers(0, 2**SEED_BITS, count), draw.integers(-5, 6, size).astype(np.float64)
    sums = [sum(g if bit else -g for g, bit in zip(gradient, one_by_one(int(s), size), strict=True)) for s in seeds]
    assert most_along(seeds, gradient) == sums.index(max(sums))


def test_many_directions_at_a_time_are_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(3)
    seeds, gradient = draw.integers(0, 2**SEED_BITS, 200), draw.normal(size=70).round(3) * 1000
    expected = most_along(seeds, gradient)
    monkeypatch.setattr(signs, "_AT_ONCE", 100)
    assert most_along(seeds, gradient) == expected
