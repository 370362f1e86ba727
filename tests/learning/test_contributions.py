import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from incrowd import Local
from incrowd.errors import ConfigError
from incrowd.learning import CohortEngine, Contributions, Execution, mlp
from incrowd.learning.contributions import FlatDelta
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, clients


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


@pytest.mark.parametrize("place", [0, 16])
def test_a_factor_of_zero_leaves_out_even_nan(place: int) -> None:
    rows = dense(3, 0)
    rows[1, place] = np.nan
    chunk = chunk_of(rows)
    assert np.isfinite(chunk.norms()[:, 0]).tolist() == [True, False, True]
    total = np.zeros(17)
    chunk.add_to(total, np.array([[1.0], [0.0], [1.0]]))
    assert np.allclose(total, rows[0] + rows[2], atol=1e-6)


def test_sums_are_as_exact_as_float64() -> None:
    rows = dense(8, 3)
    factors = np.random.default_rng(3).random((8, 1))
    total = np.zeros(17)
    chunk_of(rows).add_to(total, factors)
    assert np.allclose(total, (factors * rows.astype(np.float64)).sum(axis=0), rtol=1e-12, atol=1e-14)


def test_a_norm_that_overflows_is_not_finite() -> None:
    rows = np.full((1, 17), np.inf, np.float32)
    assert not np.isfinite(chunk_of(rows).norms()).any()


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


def test_the_models_parts_are_its_layers() -> None:
    model = mlp((FEATURES, 70, CLASSES))
    engine = CohortEngine(model, clients(), Local(learning_rate=0.3, batch_size=4), Execution(chunk=3))
    for chunk in engine.train(model.initial(RANDOMNESS), range(6), randomness=RANDOMNESS, round=0):
        rows = chunk.rows().astype(np.float64)
        cut = FEATURES * 70 + 70
        assert model.parts == (cut, 70 * CLASSES + CLASSES)
        expected = np.stack([np.linalg.norm(rows[:, :cut], axis=1), np.linalg.norm(rows[:, cut:], axis=1)], axis=1)
        assert np.allclose(chunk.norms(model.parts), expected, rtol=2**-15)
        assert len(chunk) == len(rows)


def test_flat_contributions_outlive_the_next_training_as_they_are() -> None:
    rows = dense(3, 0)
    moved = chunk_of(rows).moved()
    assert moved.clients == (0, 1, 2)
    assert np.array_equal(moved.rows(), rows)
