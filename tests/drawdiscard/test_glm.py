from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd._random import Floats, SeededRandomness
from incrowd.drawdiscard.glm import (
    LARGEST_LOG_RATE,
    LINEAR,
    LINKS,
    LOGISTIC,
    MULTINOMIAL,
    POISSON,
    AnyFloats,
    Glm,
    Link,
    one_hot,
)
from incrowd.errors import ConfigError, DataError


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


def by_hand(model: Glm, weights: Floats, features: Floats, responses: Floats) -> AnyFloats:
    """The mean of (prediction - response) * feature, one example after the other."""
    total = np.zeros((model.features + 1, model.outputs))
    for feature, response in zip(features, responses, strict=True):
        outputs = np.array([1.0, *feature]) @ weights.reshape(-1, model.outputs)
        total += np.outer([1.0, *feature], model.link.mean(outputs[None])[0] - response)
    return total.ravel() / len(features)


@pytest.mark.parametrize("link", LINKS.values(), ids=lambda link: link.name)
def test_the_gradient_is_the_slope_of_the_loss(link: Link) -> None:
    model, weights, features, responses = problem(link)
    expected = slope(lambda at: model.loss(at, features, responses), weights)
    np.testing.assert_allclose(model.gradient(weights, features, responses), expected, atol=1e-8)


@pytest.mark.parametrize("link", LINKS.values(), ids=lambda link: link.name)
def test_the_gradient_is_the_mean_residual_times_the_feature(link: Link) -> None:
    model, weights, features, responses = problem(link)
    expected = by_hand(model, weights, features, responses)
    np.testing.assert_allclose(model.gradient(weights, features, responses), expected, rtol=1e-12)


@pytest.mark.parametrize("link", LINKS.values(), ids=lambda link: link.name)
def test_leading_axes_are_many_models_and_devices_in_one_call(link: Link) -> None:
    model, _, features, responses = problem(link, examples=6)
    weights = SeededRandomness(seed=3).stream("models").normals(2 * model.size).reshape(2, model.size)
    devices, answers = features.reshape(2, 3, 4), responses.reshape(2, 3, -1)
    together = model.gradient(weights, devices, answers)
    apart = [model.gradient(weights[i], devices[i], answers[i]) for i in range(2)]
    np.testing.assert_allclose(together, apart, rtol=1e-12)
    np.testing.assert_allclose(model.gradient(weights[0], devices, answers)[0], apart[0], rtol=1e-12)


@pytest.mark.parametrize("precision", [np.float32, np.float64])
@pytest.mark.parametrize("link", LINKS.values(), ids=lambda link: link.name)
def test_the_precision_is_that_of_weights_and_features(link: Link, precision: type) -> None:
    model, weights, features, responses = problem(link)
    weights, features, responses = (array.astype(precision) for array in (weights, features, responses))
    assert model.gradient(weights, features, responses).dtype == precision
    assert model.predict(weights, features).dtype == precision


@pytest.mark.parametrize("link", LINKS.values(), ids=lambda link: link.name)
def test_no_examples_give_a_zero_gradient(link: Link) -> None:
    model, weights, features, responses = problem(link)
    np.testing.assert_array_equal(model.gradient(weights, features[:0], responses[:0]), np.zeros(model.size))


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


def test_probabilities_add_up_to_one_however_large_the_outputs() -> None:
    model, weights, features, _ = problem(MULTINOMIAL)
    np.testing.assert_allclose(model.predict(1e4 * weights, features).sum(axis=1), 1.0)


def test_a_model_without_intercept_has_one_row_less() -> None:
    model = Glm(features=2, link=LINEAR, intercept=False)
    features, responses = np.array([[1.0, 0.5]]), np.array([[2.0]])
    np.testing.assert_allclose(model.gradient(np.zeros(2), features, responses), [-2.0, -1.0])


def test_sizes_are_counted() -> None:
    assert Glm(features=32, link=LOGISTIC).size == 33
    assert Glm(features=784, link=MULTINOMIAL, outputs=10).size == 7850
    assert Glm(features=0, link=LOGISTIC).size == 1


def test_impossible_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="an output a class"):
        Glm(features=3, link=MULTINOMIAL)
    with pytest.raises(ConfigError, match="there must be a feature"):
        Glm(features=0, link=LINEAR, intercept=False)
    with pytest.raises(ConfigError, match="features"):
        Glm(features=-1, link=LINEAR)


def test_shapes_that_do_not_fit_are_refused() -> None:
    model, weights, features, responses = problem(LOGISTIC)
    with pytest.raises(DataError, match="do not fit a model of 5 weights"):
        model.predict(weights[1:], features)
    with pytest.raises(DataError, match="do not fit a model of 5 weights"):
        model.predict(weights, features[:, 1:])
    with pytest.raises(DataError, match=r"give \[examples, outputs\]"):
        model.gradient(weights, features, responses[:, 0])
    with pytest.raises(DataError, match=r"give \[examples, outputs\]"):
        model.loss(weights, features, responses[1:])


def test_labels_become_rows() -> None:
    np.testing.assert_array_equal(one_hot(np.array([2, 0]), 3), [[0, 0, 1], [1, 0, 0]])
    assert one_hot(np.array([], dtype=int), 3).shape == (0, 3)
    with pytest.raises(DataError, match="are not 3 classes"):
        one_hot(np.array([0, 3]), 3)
    with pytest.raises(DataError, match="are not 3 classes"):
        one_hot(np.array([-1]), 3)
