import numpy as np
import pytest
from numpy.typing import NDArray

from incrowd.errors import DataError
from incrowd.learning.features import MomentNormalisation

Image = NDArray[np.float64]


def moments(image: Image) -> tuple[float, float, float, float, float]:
    """Mean row and column, and the variances yy, yx, xx in pixels, pixel by pixel."""
    mass = y = x = yy = yx = xx = 0.0
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            weight = max(image[row, column], 0.0)
            mass, y, x = mass + weight, y + weight * row, x + weight * column
    y, x = y / mass, x / mass
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            weight = max(image[row, column], 0.0) / mass
            yy += weight * (row - y) ** 2
            yx += weight * (row - y) * (column - x)
            xx += weight * (column - x) ** 2
    return y, x, yy, yx, xx


def test_a_sheared_drawing_comes_back_centred_and_upright() -> None:
    y, x = np.arange(28)[:, None] - 13.5, np.arange(28) - 13.5
    for slant in (-1.0, -0.4, 0.4, 1.0):
        bar = (np.clip(2.5 - np.abs(x - slant * y), 0, 1) * (np.abs(y) < 8)).astype(np.float32)
        found_y, found_x, yy, yx, _ = moments(MomentNormalisation()(bar[None])[0].astype(np.float64))
        assert abs(moments(bar.astype(np.float64))[3]) / yy > 0.3
        assert abs(yx) / yy < 0.02
        assert (found_y, found_x) == pytest.approx((13.5, 13.5), abs=0.05)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (2, 2), (8, 8), (9, 14), (40, 23)])
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 255.0])
def test_constant_images_of_any_size_stay_finite(shape: tuple[int, int], value: float) -> None:
    result = MomentNormalisation()(np.full((3, *shape), value, np.float32))
    assert result.shape == (3, *shape)
    assert np.isfinite(result).all()
    if value == 0:
        assert not result.any()


@pytest.mark.parametrize("shape", [(784,), (3, 28, 28)])
def test_examples_that_are_no_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"state shape=\(height, width\)"):
        MomentNormalisation()(np.zeros((2, *shape), np.float32))
