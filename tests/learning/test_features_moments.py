import math

import numpy as np
import pytest
from numpy.typing import NDArray

from incrowd._random import SeededRandomness
from incrowd.errors import DataError
from incrowd.learning.features import MomentNormalisation

Image = NDArray[np.float64]


def strokes(count: int, height: int, width: int) -> NDArray[np.float32]:
    """Slanted bars of random places, widths and slants, well inside the image."""
    uniform = (SeededRandomness(seed=3).stream("strokes").bits(5 * count) / 2.0**64).reshape(5, count, 1, 1)
    y, x = np.arange(height)[:, None], np.arange(width)
    middle_y, middle_x = (0.4 + 0.2 * uniform[0]) * height, (0.4 + 0.2 * uniform[1]) * width
    inside = np.abs(y - middle_y) < (0.1 + 0.2 * uniform[2]) * height
    distance = np.abs(x - middle_x - (uniform[3] - 0.5) * (y - middle_y))
    bars: NDArray[np.float32] = np.clip(1 + (0.03 + 0.04 * uniform[4]) * width - distance, 0, 1) * inside
    return bars.astype(np.float32)


def at(image: Image, row: float, column: float) -> float:
    """The image between its pixels, one place at a time."""
    total = 0.0
    for y in (math.floor(row), math.floor(row) + 1):
        for x in (math.floor(column), math.floor(column) + 1):
            if 0 <= y < image.shape[0] and 0 <= x < image.shape[1]:
                total += (1 - abs(row - y)) * (1 - abs(column - x)) * image[y, x]
    return total


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


def normalised(image: Image) -> Image:
    """The recipe for 28 x 28 pixels in pixels, one at a time."""
    y, x, yy, yx, xx = moments(image)
    shear = min(max(yx / yy, -1.2), 1.2)
    after = xx - 2 * shear * yx + shear**2 * yy
    stretch_y = math.sqrt(min(max(math.sqrt(yy) / 5.0, 0.6), 1.6))
    stretch_x = math.sqrt(min(max(math.sqrt(after) / 4.5, 0.3), 1.6))
    result = np.zeros_like(image)
    for row in range(28):
        for column in range(28):
            down, right = stretch_y * (row - 13.5), stretch_x * (column - 13.5)
            result[row, column] = at(image, y + down, x + right + shear * down)
    return result


def test_every_pixel_is_where_the_recipe_puts_it() -> None:
    images = strokes(4, 28, 28)
    images[3] -= 0.1  # negative pixels weigh nothing, and are moved like others
    expected = np.stack([normalised(image.astype(np.float64)) for image in images])
    np.testing.assert_allclose(MomentNormalisation()(images), expected, atol=2e-4)


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
