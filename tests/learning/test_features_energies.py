import math

import numpy as np
import pytest
from numpy.typing import NDArray

from incrowd._random import SeededRandomness
from incrowd.learning.features import OrientedEnergies, SecondOrderEnergies, UnitNorm


def noise(*shape: int) -> NDArray[np.float32]:
    values = SeededRandomness(seed=5).stream("images").normals(math.prod(shape))
    return values.reshape(shape).astype(np.float32)


@pytest.mark.parametrize("feature_map", [OrientedEnergies(), SecondOrderEnergies()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (5, 2), (8, 8), (29, 31)])
def test_images_of_any_size_give_finite_features(
    feature_map: OrientedEnergies | SecondOrderEnergies, shape: tuple[int, int]
) -> None:
    for value in (0.0, 1.0, -1.0):
        features = feature_map(np.full((2, *shape), value, np.float32))
        assert np.isfinite(features).all()
        assert np.linalg.norm(features, axis=1) == pytest.approx(0 if value == 0 else 1, abs=1e-3)
        places = math.ceil(shape[0] / 4) * math.ceil(shape[1] / 4)
        assert features.shape == (2, places * (8 if isinstance(feature_map, OrientedEnergies) else 81))


def test_features_have_norm_one() -> None:
    for feature_map in (OrientedEnergies(), SecondOrderEnergies(), UnitNorm(), UnitNorm(centred=True)):
        norms = np.linalg.norm(feature_map(noise(4, 28, 28)), axis=1)
        np.testing.assert_allclose(norms, 1, atol=1e-5)


def test_each_example_loses_its_own_mean() -> None:
    values = np.array([[1.0, 2.0, 6.0], [5.0, 5.0, 5.0]], np.float32)
    expected = np.array([-2, -1, 3]) / math.sqrt(14)
    np.testing.assert_allclose(UnitNorm(centred=True)(values), np.stack([expected, np.zeros(3)]), atol=1e-6)
    np.testing.assert_allclose(UnitNorm()(values[:1]), values[:1] / math.sqrt(41), atol=1e-6)
    assert UnitNorm()(np.zeros((2, 3, 4), np.float32)).shape == (2, 12)
