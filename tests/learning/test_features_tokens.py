"""Pieces of sequences of tokens: against plain whole numbers of Python, and for one sequence alone."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.learning.features import TokenGrams

WORD = (1 << 64) - 1
SEQUENCES = st.lists(st.lists(st.integers(-3, 50), min_size=4, max_size=4), min_size=1, max_size=5)


def mixed(number: int) -> int:
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & WORD
    return number ^ (number >> 31)


def slow(sequence: list[int], grams: TokenGrams) -> list[float]:
    """Piece by piece, in whole numbers of Python."""
    counts = [0] * grams.buckets
    for start in range(len(sequence)):
        for end in range(start + 1, min(start + grams.longest, len(sequence)) + 1):
            piece = sequence[start:end]
            if grams.padding in piece or (grams.reads == "end" and end < len(sequence)):
                continue
            hashed = 0
            for token in piece:
                hashed = mixed((hashed + 0x9E3779B97F4A7C15 + token) & WORD)
            counts[(hashed >> 1) % grams.buckets] += 1 if hashed & 1 else -1
    length = sum(abs(count) for count in counts) ** 0.5
    return [(abs(count) ** 0.5 if count > 0 else -(abs(count) ** 0.5)) / length if length else 0.0 for count in counts]


@given(
    sequences=SEQUENCES,
    buckets=st.integers(1, 40),
    longest=st.integers(1, 6),
    reads=st.sampled_from(["end", "all"]),
    padding=st.sampled_from([None, 0, 7]),
)
def test_features_are_those_of_a_slow_reading(sequences: list[list[int]], **how: Any) -> None:
    grams = TokenGrams(**how)
    made = grams(np.array(sequences, np.int64))
    assert made.dtype == np.float32
    assert np.allclose(made, [slow(sequence, grams) for sequence in sequences], atol=1e-6)


@given(sequences=SEQUENCES)
def test_features_follow_from_one_sequence_alone(sequences: list[list[int]]) -> None:
    grams = TokenGrams(buckets=32)
    together = grams(np.array(sequences, np.int64))
    alone = np.concatenate([grams(np.array([sequence], np.int64)) for sequence in sequences])
    assert together.tobytes() == alone.tobytes()


def test_a_sequence_without_a_piece_gives_zeros_and_others_have_length_one() -> None:
    grams = TokenGrams(buckets=512, padding=0)
    nothing, something = grams(np.array([[0, 0, 0], [0, 5, 6]], np.int64))
    assert not nothing.any()
    assert np.linalg.norm(something) == pytest.approx(1.0)
    assert np.array_equal(something, grams(np.array([[5, 6]], np.int64))[0])
