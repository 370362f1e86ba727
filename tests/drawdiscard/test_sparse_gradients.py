"""Sparse gradients against those of the dense model."""

import numpy as np
import pytest

from incrowd.drawdiscard.glm import LINKS, MULTINOMIAL, Glm
from incrowd.drawdiscard.simulation import SparseGradients
from incrowd.drawdiscard.sparse import SparseRows

GENERATOR = np.random.Generator(np.random.SFC64(1))
DENSE = np.where(GENERATOR.random((12, 30)) < 0.2, GENERATOR.random((12, 30)), 0.0)
DENSE[3] = 0  # an example without features
DEVICES = np.array([[0, 3, 5], [11, 2, 1], [3, 3, 4]])


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("intercept", [True, False])
def test_sparse_gradients_are_those_of_the_dense_model(link: object, intercept: bool) -> None:
    outputs = 3 if link is MULTINOMIAL else 1
    model = Glm(features=30, link=link, outputs=outputs, intercept=intercept)  # type: ignore[arg-type]  # one of the links
    responses = np.eye(3)[GENERATOR.integers(3, size=12)] if outputs == 3 else GENERATOR.random((12, 1))
    sparse = SparseGradients(model, SparseRows.from_dense(DENSE), responses, DEVICES)
    weights = GENERATOR.standard_normal(model.size)
    for device, own in enumerate(DEVICES):
        expected = model.gradient(weights, DENSE[own], responses[own])
        np.testing.assert_allclose(sparse.gradient(sparse.inner(weights), device), expected, atol=1e-6)
