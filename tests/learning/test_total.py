from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.learning import Contributions
from incrowd.learning.contributions import Shortening, Total, summed
from incrowd.privacy.mechanism.clipping import FixedClip

SIZE = 17
Factors = Callable[[Floats], Floats]


def total_of(
    chunk: Contributions, bound: float, parts: tuple[int, ...] | None = None, factors: Factors | None = None
) -> Total:
    clip = FixedClip(clip_norm=bound)
    return Total(chunk, Shortening(bound=bound, parts=parts, factors=factors or clip.factors))


def given_factors(factors: Floats, _norms: Floats) -> Floats:
    return factors


def some_rows(c: int, scale: float, seed: int) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).normal(size=(c, SIZE)) * scale).astype(np.float32)


@settings(max_examples=200, deadline=None)
@given(
    bound=st.sampled_from([1e-100, 1e-40, 2.0**-30, 0.7, 1.0, 3.3, 1e20, 1e60, 1e100]),
    longer=st.sampled_from([1e-30, 1e-9, 1e-3, 0.2, 1.0, 1.5, 1e6, 1e20]),
    seed=st.integers(0, 999),
)
def test_what_enters_is_never_longer_than_the_bound(bound: float, longer: float, seed: int) -> None:
    """In exact arithmetic; a sum of one contribution shows what entered."""
    rows = some_rows(1, float(np.clip(bound * longer, 1e-44, 1e37)), seed)
    chunk = chunk_of(rows)
    total = total_of(chunk, bound)
    total.add(chunk)
    entered = [Fraction(x) for x in total.flat().tolist()]
    assert sum(x * x for x in entered) <= Fraction(bound) ** 2
    assert all(abs(x) <= abs(Fraction(y)) for x, y in zip(entered, rows[0].tolist(), strict=True))


def test_a_contribution_enters_as_it_is_within_the_grid() -> None:
    rows = some_rows(3, 0.3, 1)
    for parts in (None, (12, 5), (12, 2, 3)):
        factors = np.random.default_rng(2).uniform(0.1, 0.3, (3, 1 if parts is None else len(parts)))
        chunk = chunk_of(rows)
        total = total_of(chunk, 1.0, parts, partial(given_factors, factors))
        norms = chunk.norms(parts)
        assert total.add(chunk).tolist() == norms.tolist()
        expected = (np.repeat(factors, parts or (SIZE,), axis=1) * rows).sum(axis=0)
        assert np.abs(total.flat() - expected).max() <= 3 * 2.0**-18


def test_sums_are_the_same_in_any_order_and_any_chunks() -> None:
    """To the last bit, through more contributions than float32 takes at once."""
    rows = some_rows(100, 0.5, 3)
    order = np.random.default_rng(4).permutation(100)
    sums = []
    for several in ([rows], np.split(rows, [1, 7, 40, 41]), np.split(rows[order], 50)):
        chunks = [chunk_of(some) for some in several]
        total = total_of(chunks[0], 1.0)
        for chunk in chunks:
            total.add(chunk)
        sums.append(total.flat().tolist())
    assert sums[0] == sums[1] == sums[2]


def test_the_largest_sums_are_exact() -> None:
    """All of the bound in one number, and the same again and again."""
    for place in (0, SIZE - 1):
        rows = np.zeros((1, SIZE), np.float32)
        rows[0, place] = 3.0
        total, single = (total_of(chunk_of(rows), 1.0) for _ in range(2))
        single.add(chunk_of(rows))
        for _ in range(333):
            total.add(chunk_of(rows))
        entered = single.flat()[place]
        assert 1 - 2.0**-14 <= entered <= 1
        assert total.flat()[place] == 333 * entered


def test_a_sum_of_nothing_is_zero() -> None:
    found = summed([], Shortening(bound=1.0, parts=(12, 5), factors=np.ones_like), size=SIZE)
    assert found.norms.shape == (0, 2)
    assert found.total.tolist() == [0.0] * SIZE


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_factor_of_zero_leaves_a_part_out_whatever_it_holds(bad: float) -> None:
    rows = some_rows(3, 0.1, 0)
    rows[1, 0], rows[2, 16] = bad, bad
    chunk = chunk_of(rows)
    total = total_of(chunk, 1.0, (12, 5), lambda norms: np.isfinite(norms).astype(float))
    assert np.isfinite(total.add(chunk)).tolist() == [[True, True], [False, True], [True, False]]
    expected = np.concatenate([rows[[0, 2], :12].sum(axis=0), rows[[0, 1], 12:].sum(axis=0)])
    assert np.abs(total.flat() - expected).max() <= 3 * 2.0**-18


def test_a_chunk_that_was_added_cannot_be_used_again() -> None:
    chunk = chunk_of(some_rows(2, 1.0, 0))
    total = total_of(chunk, 1.0)
    total.add(chunk)
    for use in (chunk.norms, chunk.rows, lambda: total.add(chunk)):
        with pytest.raises(ConfigError, match="used up by a sum"):
            use()


def dense(c: int, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(size=(c, 3 * 4 + 5)).astype(np.float32)


def chunk_of(rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Contributions:
    return Contributions(tuple(range(len(rows))), torch.from_numpy(rows.copy()))


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
