"""Features that are nearly constant: told apart exactly, by a client's own examples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from incrowd.learning.paths.fused.first_loops import RarePairs, multiply_rare
from incrowd.learning.rare import Rare, rare_features

FEATURES = 12
ALL = np.arange(FEATURES)


def table(kind: str, examples: int, *, usual: float, exceptions: float, seed: int) -> NDArray[np.generic]:
    """Half of the features are `usual` but for a share of exceptions, the others are anything."""
    generator = np.random.default_rng(seed)
    numbers = generator.integers(0, 200, (examples, FEATURES))
    same = generator.random((examples, FEATURES)) >= exceptions
    same[:, FEATURES // 2 :] = False
    found: NDArray[np.generic] = np.where(same, usual, numbers).astype(kind)
    return found


def whole(rare: Rare, examples: int) -> NDArray[np.float64]:
    """The rare features, put together again."""
    found = np.tile(rare.usual.astype(np.float64), (examples, 1))
    for example in range(examples):
        own = slice(rare.begins[example], rare.begins[example + 1])
        found[example, rare.places[own]] += rare.values[own]
    return found


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(["uint8", "int16", "int64", "float32"]),
    examples=st.integers(16, 90),
    usual=st.sampled_from([0, 7]),
    exceptions=st.sampled_from([0.0, 0.03, 0.1]),
    scale=st.sampled_from([1.0, 1 / 255]),
    offset=st.sampled_from([0.0, -0.25]),
    seed=st.integers(0, 99),
)
def test_nothing_is_lost(
    kind: str, examples: int, usual: float, exceptions: float, scale: float, offset: float, seed: int
) -> None:
    stored = table(kind, examples, usual=usual, exceptions=exceptions, seed=seed)
    rare = rare_features(stored, ALL, scale=scale, offset=offset)
    if rare is None:
        counts = [np.unique(stored[:, f], return_counts=True)[1].max() for f in range(FEATURES)]
        assert max(counts) < examples  # what is constant is always found
        return
    meant = stored.astype(np.float64) * scale + offset
    assert np.allclose(whole(rare, examples), meant[:, rare.features], rtol=1e-6, atol=1e-6)
    beyond = meant[:, rare.features] - rare.usual
    assert np.allclose(rare.products, beyond @ rare.usual.astype(np.float64), rtol=1e-5, atol=1e-5)
    assert len(rare.values) == np.count_nonzero(np.abs(beyond) > 1e-4)
    assert all(len(np.flatnonzero(np.abs(column) > 1e-4)) <= examples / 8 for column in beyond.T)


def test_only_features_that_are_asked_for_are_named_and_too_few_do_not_pay() -> None:
    stored = table("uint8", 60, usual=3, exceptions=0.05, seed=1)
    rare = rare_features(stored, np.array([1, 3, 8, 10]), scale=1.0, offset=0.0)
    assert rare is not None
    assert rare.features.tolist() == [1, 3]
    one = np.random.default_rng(0).integers(0, 200, (60, 30)).astype(np.uint8)
    one[:, :2] = 5
    assert rare_features(one, np.arange(30), scale=1.0, offset=0.0) is None
    one[:, 2] = 5
    assert rare_features(one, np.arange(30), scale=1.0, offset=0.0) is not None


@pytest.mark.parametrize("usual", [np.nan, np.inf, 1e4, 1e-23])
def test_what_is_usual_is_a_moderate_number(usual: float) -> None:
    stored = table("float32", 60, usual=usual, exceptions=0.05, seed=1)
    assert rare_features(stored, ALL, scale=1.0, offset=0.0) is None


def test_a_few_examples_tell_nothing_and_nobody_tells_nothing() -> None:
    stored = table("uint8", 15, usual=3, exceptions=0.0, seed=1)
    assert rare_features(stored, ALL, scale=1.0, offset=0.0) is None
    assert rare_features(np.repeat(stored, 2, 0), ALL, scale=1.0, offset=0.0) is not None
    assert rare_features(np.repeat(stored, 2, 0), ALL[:0], scale=1.0, offset=0.0) is None


def test_a_wrong_guess_leaves_a_feature_with_the_others() -> None:
    stored = np.zeros((100, 2), np.uint8)
    stored[:, 1] = np.arange(100)
    stored[[0, 24, 49, 74, 99], 0] = 9  # the examples that the guess looks at
    rare = rare_features(stored, np.arange(2), scale=1.0, offset=0.0)
    assert rare is None or 0 not in rare.features


def test_exceptions_that_are_no_numbers_are_kept_as_such() -> None:
    stored = table("float32", 60, usual=0.5, exceptions=0.0, seed=1)
    stored[7, 2], stored[9, 3] = np.nan, -np.inf
    rare = rare_features(stored, ALL, scale=1.0, offset=0.0)
    assert rare is not None
    found = whole(rare, 60)
    assert np.isnan(found[7, 2])
    assert found[9, 3] == -np.inf
    assert np.isnan(rare.products[7])


def test_a_zero_with_a_sign_is_another_number_of_value_zero() -> None:
    stored = table("float32", 60, usual=0.0, exceptions=0.0, seed=1)
    stored[5, 1] = -0.0
    rare = rare_features(stored, ALL, scale=1.0, offset=0.0)
    assert rare is not None
    assert rare.values.tolist() == [0.0]


@pytest.mark.parametrize("usual", [0, 7])
@pytest.mark.parametrize("exceptions", [0.0, 0.03, 0.1])
def test_products_of_examples_with_those_before_them_are_those_of_the_features(usual: float, exceptions: float) -> None:
    rare = rare_features(table("float32", 60, usual=usual, exceptions=exceptions, seed=1), ALL, scale=0.1, offset=0.0)
    assert rare is not None
    rows = np.random.default_rng(0).permutation(60)[:25]
    pairs = RarePairs(rare.begins, rare.places, rare.values, rare.products)
    found = np.ones((25, 25), np.float32)
    multiply_rare(pairs, rows, len(rare.features), found)
    own = whole(rare, 60)[rows]
    expected = 1 + own @ own.T - np.sum(rare.usual.astype(np.float64) ** 2)
    lower = np.tril_indices(25)
    assert np.allclose(found[lower], expected[lower], rtol=1e-5, atol=1e-4)
    if exceptions:
        assert not np.allclose(expected[lower], 1)  # the control: there is something to add
