from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd._random import Floats, SeededRandomness
from incrowd.drawdiscard.glm import (
    LARGEST_LOG_RATE,
    LINKS,
    LOGISTIC,
    MULTINOMIAL,
    POISSON,
    Glm,
    Link,
    Perceptron,
    one_hot,
)


def problem(link: Link, *, examples: int = 7, seed: int = 1) -> tuple[Glm, Floats, Floats, Floats]:
    """A model, weights, features and responses that have nothing special about them."""
    outputs = 3 if link is MULTINOMIAL else 1
    model = Glm(features=4, link=link, outputs=outputs)
    stream = SeededRandomness(seed=seed).stream("problem")
    features = (stream.bits(examples * 4) % 1000).reshape(examples, 4) / 1000
    labels = (stream.bits(examples) % outputs).astype(int)
    responses = one_hot(labels, 3) if link is MULTINOMIAL else (stream.bits(examples) % 2).reshape(-1, 1) / 1.0
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


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("link", LINKS.values(), ids=lambda link: link.name)
def test_a_perceptron_s_gradient_is_the_slope_of_its_loss(link: Link, bias: bool) -> None:
    glm, _, features, responses = problem(link)
    model = Perceptron(widths=(4, 6, 5, glm.outputs), link=link, bias=bias)
    weights = SeededRandomness(seed=5).stream("weights").normals(model.size)
    steps = 1e-2 * np.eye(model.size)
    rises = [model.loss(weights + step, features, responses) for step in steps]
    falls = [model.loss(weights - step, features, responses) for step in steps]
    expected = (np.array(rises) - np.array(falls)) / 2e-2
    np.testing.assert_allclose(model.gradient(weights, features, responses), expected, atol=0.03)
    assert not model.gradient(weights, features[:0], responses[:0]).any()


@pytest.mark.parametrize("link", LINKS.values(), ids=lambda link: link.name)
def test_without_hidden_layers_a_perceptron_is_a_generalised_linear_model(link: Link) -> None:
    glm, weights, features, responses = problem(link)
    rows = weights.reshape(5, glm.outputs)  # the intercept first; a perceptron has it last, and the outputs as rows
    theirs, ours = Perceptron(widths=(4, glm.outputs), link=link), glm.gradient(weights, features, responses)
    given, its = np.concatenate([rows[1:].T.ravel(), rows[0]]), ours.reshape(5, glm.outputs)
    expected = np.concatenate([its[1:].T.ravel(), its[0]])
    np.testing.assert_allclose(theirs.gradient(given, features, responses), expected, atol=1e-5)
    np.testing.assert_allclose(theirs.predict(given, features), glm.predict(weights, features), rtol=1e-4)


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
