from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from incrowd._random import Floats, SeededRandomness
from incrowd.drawdiscard.glm import LARGEST_LOG_RATE, LINKS, LOGISTIC, MULTINOMIAL, POISSON, Glm, Link
from incrowd.drawdiscard.simulation import GlmGradients, with_intercept


def problem(link: Link, *, examples: int = 7, seed: int = 1) -> tuple[Glm, Floats, Floats, Floats]:
    """A model, weights, features and responses that have nothing special about them."""
    outputs = 3 if link is MULTINOMIAL else 1
    model = Glm(features=4, link=link, outputs=outputs)
    stream = SeededRandomness(seed=seed).stream("problem")
    features = (stream.bits(examples * 4) % 1000).reshape(examples, 4) / 1000
    labels = (stream.bits(examples) % outputs).astype(int)
    responses = np.eye(3)[labels] if link is MULTINOMIAL else (stream.bits(examples) % 2).reshape(-1, 1) / 1.0
    return model, stream.normals(model.size), features, responses.astype(np.float64)


def slope(function: Callable[[Floats], float], point: Floats) -> Floats:
    """The gradient by central differences: slow and obvious."""
    steps = 1e-5 * np.eye(len(point))
    return np.array([(function(point + step) - function(point - step)) / 2e-5 for step in steps])


@pytest.mark.parametrize("link", LINKS.values(), ids=lambda link: link.name)
def test_the_gradient_is_the_slope_of_the_loss(link: Link) -> None:
    model, weights, features, responses = problem(link)
    expected = slope(lambda at: model.loss(at, features, responses), weights)
    np.testing.assert_allclose(model.gradient(weights, features, responses), expected, atol=1e-8)


@pytest.mark.parametrize("link", LINKS.values(), ids=lambda link: link.name)
@pytest.mark.parametrize("intercept", [True, False])
def test_sparse_features_and_a_column_of_ones_give_the_same_gradient(link: Link, intercept: bool) -> None:
    model, weights, features, responses = problem(link)
    model = replace(model, intercept=intercept)
    weights = weights[: model.size]
    expected = model.gradient(weights, features, responses)
    np.testing.assert_allclose(model.gradient(weights, csr_array(features), responses), expected, atol=1e-12)
    for inputs in (features, csr_array(features)):
        rows = with_intercept(inputs, intercept=intercept)
        simulated = GlmGradients(model, [rows], responses[None])
        np.testing.assert_allclose(simulated.gradient(weights.astype(np.float32), 0), expected, atol=1e-6)


@given(scale=st.floats(1, 1e300), seed=st.integers(0, 99))
def test_a_poisson_gradient_is_finite_for_all_finite_weights(scale: float, seed: int) -> None:
    model, weights, features, responses = problem(POISSON, seed=seed)
    with np.errstate(over="ignore"):
        weights = np.clip(weights * scale, -1e307, 1e307)
        gradient = model.gradient(weights, features, responses)
    assert np.isfinite(gradient).all()
    assert model.predict(weights, features).max() <= np.exp(LARGEST_LOG_RATE)


@pytest.mark.parametrize("link", [LOGISTIC, MULTINOMIAL], ids=lambda link: link.name)
@given(scale=st.floats(1, 1e300))
def test_classes_have_gradients_within_one_for_features_within_one(link: Link, scale: float) -> None:
    model, weights, features, responses = problem(link)
    gradient = model.gradient(weights * min(scale, 1e300), features, responses)
    assert np.abs(gradient).max() <= 1 + 1e-12
