"""Pieces of sequences of tokens: against plain whole numbers of Python, and for one sequence alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd import Clients, Federation, Private
from incrowd.learning.features import TokenGrams
from incrowd.runs.config import RunOptions

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


def test_features_are_the_same_on_every_machine() -> None:
    made = TokenGrams(buckets=7, longest=2)(np.array([[3, 1, 4, 1, 5]], np.int64))
    assert np.allclose(made[0] * np.abs(made[0]) * 5, [1, 0, 0, -1, 3, 0, 0], atol=1e-5)


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


@pytest.mark.slow
def test_a_federation_on_tokens_learns_what_they_are_about(tmp_path: Path) -> None:
    made = np.random.default_rng(0)
    labels = made.integers(0, 3, 1200)
    tokens = made.integers(10, 60, (1200, 12))
    tokens[:, :4] = labels[:, None] * 3 + made.integers(0, 3, (1200, 4))
    tokens = made.permuted(tokens, axis=1)
    clients = Clients.from_arrays(
        tokens, labels, owner=np.arange(1200) % 200, classes=3, name="topics", public=True, test=(tokens, labels)
    )
    federation = Federation.by_recipe(
        "text",
        clients,
        privacy=Private(epsilon=4, delta=1e-4),
        run=RunOptions(randomness="seeded", seed=0, report_every=100, plot=False),
    )
    assert federation.settings.features.name == "tokens"
    accuracy = federation.train(tmp_path / "run").accuracy
    assert accuracy is not None
    assert accuracy > 0.9
