"""Pieces of texts and of tokens in buckets: against plain whole numbers of Python, and for one example alone."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from incrowd.data import Columns, Reading, Text
from incrowd.errors import ConfigError
from incrowd.federation import Federation
from incrowd.learning.features import Spread, TextBuckets, TextPieces, TokenGrams, compose
from incrowd.learning.features.feature_map import Values
from incrowd.runs.build import featured
from incrowd.runs.config import Config, Private
from incrowd.runs.data_config import Table
from incrowd.runs.predict import predict
from incrowd.runs.sources import federated_data

WORD = (1 << 64) - 1
SEQUENCES = st.lists(st.lists(st.integers(-3, 50), min_size=4, max_size=4), min_size=1, max_size=5)
TEXTS = st.lists(st.text(alphabet="abcDE !我们好", max_size=30), min_size=1, max_size=4)


def mixed(number: int) -> int:
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & WORD
    return number ^ (number >> 31)


def slow(sequence: list[int], grams: TokenGrams, buckets: int) -> list[float]:
    """Piece by piece, in whole numbers of Python."""
    counts = [0] * buckets
    for start in range(len(sequence)):
        for end in range(start + 1, min(start + grams.longest, len(sequence)) + 1):
            piece = sequence[start:end]
            if grams.padding in piece or (grams.reads == "end" and end < len(sequence)):
                continue
            hashed = 0
            for token in piece:
                hashed = mixed((hashed + 0x9E3779B97F4A7C15 + token) & WORD)
            counts[(hashed >> 1) % 2**16 % buckets] += 1 if hashed & 1 else -1
    logs = [math.copysign(math.log1p(abs(count)), count) for count in counts]
    length = math.sqrt(sum(log * log for log in logs))
    return [log / length if length else 0.0 for log in logs]


def encoded(texts: list[str], pieces: int = 64) -> Values:
    column = Text(pieces=pieces, missing="")
    return np.array([column.encoded(text, Reading(blanks="keep")) for text in texts], np.float32)


@given(
    sequences=SEQUENCES,
    buckets=st.integers(1, 40),
    longest=st.integers(1, 6),
    reads=st.sampled_from(["end", "all"]),
    padding=st.sampled_from([None, 0, 7]),
)
def test_features_are_those_of_a_slow_reading(sequences: list[list[int]], buckets: int, **how: Any) -> None:
    grams = TokenGrams(**how)
    made = compose(grams, Spread(buckets=buckets).whole)(np.array(sequences, np.int64))
    assert made.dtype == np.float32
    assert np.allclose(made, [slow(sequence, grams, buckets) for sequence in sequences], atol=1e-5)


@given(texts=TEXTS, buckets=st.integers(1, 300), constant=st.sampled_from([0.0, 0.1]))
def test_features_follow_from_one_text_alone_in_any_order_of_its_pieces(
    texts: list[str], buckets: int, constant: float
) -> None:
    spread, numbers = Spread(buckets=buckets, constant=constant).whole, encoded(texts)
    together = spread(numbers)
    alone = np.concatenate([spread(numbers[row : row + 1, ::-1].copy()) for row in range(len(texts))])
    assert together.tobytes() == alone.tobytes()
    lengths = np.linalg.norm(together[:, :buckets], axis=1)
    assert ((lengths == 0) | np.isclose(lengths, 1, atol=1e-5)).all()
    assert (together[:, buckets:] == np.float32(constant)).all()


def test_the_same_word_is_another_feature_in_another_column_and_numbers_stay() -> None:
    stated = Columns(client="", label="y", classes=2, schema={"a": Text(pieces=8), "b": Text(pieces=8)}).resolved(())
    first, second = np.split(TextPieces(columns=stated)(np.hstack([encoded(["word"], 8)] * 2)), 2, axis=1)
    assert np.array_equal(first, encoded(["word"], 8))
    assert not set(np.abs(first[first != 0])) & set(np.abs(second[second != 0]))
    mixed_columns = Columns(client="", label="y", classes=2, schema={"age": {"range": [0, 9]}, "a": Text(buckets=16)})
    row = np.hstack([[[0.25]], encoded(["word"], 512)]).astype(np.float32)
    made = TextBuckets(columns=mixed_columns.resolved(()))(row)[0]
    assert made[0] == 0.25
    assert np.array_equal(made[1:], Spread(buckets=16).whole(row[:, 1:])[0])
    with pytest.raises(ConfigError, match="age is no text"):
        TextPieces(columns=mixed_columns.resolved(()))


def test_texts_stay_pieces_until_a_model_counts_them(tmp_path: Path) -> None:
    rows = "".join(f"{k},{'good' if k % 2 else 'bad'} film,{k % 2}\n" for k in range(60))
    (tmp_path / "films.csv").write_text("who,note,liked\n" + rows)
    table = Table(
        file=str(tmp_path / "films.csv"),
        client="who",
        label="liked",
        classes=2,
        columns={"note": {"kind": "text", "buckets": 64, "pieces": 32}},
        holdout_clients=0.5,
        public=True,
    )

    def made(module: nn.Module | None) -> tuple[Federation, tuple[int, ...]]:
        federation = Federation.by_recipe("text", table, privacy=Private(epsilon=1e4, delta=1e-3), module=module)
        assert isinstance(federation.settings, Config)
        data = federated_data(federation.settings, federation.given)
        return federation, featured(federation.settings, data).examples.shape

    assert made(nn.Linear(64, 2))[1] == (64,)  # a module has the buckets that the column states
    federation, shape = made(None)
    assert shape == (32,)
    result = federation.train(tmp_path / "run", progress=False)
    assert result.accuracy == 1
    assert result.predict(tmp_path / "films.csv").tolist() == [0, 1] * 30
    assert predict(tmp_path / "run", tmp_path / "films.csv").labels.tolist() == [0, 1] * 30
