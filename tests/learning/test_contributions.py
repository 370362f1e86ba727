import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from incrowd.errors import ConfigError
from incrowd.learning import Contributions
from incrowd.learning.contributions import FlatDelta


def dense(c: int, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(size=(c, 3 * 4 + 5)).astype(np.float32)


def chunk_of(rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Contributions:
    return Contributions(tuple(range(len(rows))), FlatDelta(torch.from_numpy(rows.copy())))


@settings(max_examples=50, deadline=None)
@given(c=st.integers(1, 5), seed=st.integers(0, 99), parts=st.sampled_from([None, (17,), (12, 5), (14, 3)]))
def test_norms_and_sums_are_those_of_the_rows(c: int, seed: int, parts: tuple[int, ...] | None) -> None:
    rows = dense(c, seed)
    chunk = chunk_of(rows)
    norms = chunk.norms(parts)
    deltas = np.split(rows.astype(np.float64), np.cumsum(parts)[:-1] if parts else [], axis=1)
    assert np.allclose(norms, np.stack([np.linalg.norm(delta, axis=1) for delta in deltas], axis=1), rtol=2**-15)
    factors = np.random.default_rng(seed).random((c, 1))
    total = np.ones(17)
    chunk.add_to(total, factors)
    assert np.allclose(total, 1 + (factors * rows).sum(axis=0), rtol=1e-13)
    assert np.array_equal(chunk.rows(), rows)


@pytest.mark.parametrize("parts", [(12, 4), (12, 5, 1), (18,)])
def test_parts_that_do_not_add_up_are_refused(parts: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="give sizes of whole layers, 17 numbers in all"):
        chunk_of(dense(2, 0)).norms(parts)


def test_factors_and_totals_of_another_shape_are_refused() -> None:
    chunk = chunk_of(dense(2, 0))
    with pytest.raises(ConfigError, match=r"give \[2, 1\] factors and a total of 17 numbers"):
        chunk.add_to(np.zeros(17), np.ones(2))
    with pytest.raises(ConfigError, match="a total of 17"):
        chunk.add_to(np.zeros(16), np.ones((2, 1)))


def test_flat_contributions_outlive_the_next_training_as_they_are() -> None:
    rows = dense(3, 0)
    moved = chunk_of(rows).moved()
    assert moved.clients == (0, 1, 2)
    assert np.array_equal(moved.rows(), rows)
