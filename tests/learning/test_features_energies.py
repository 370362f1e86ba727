import math

import numpy as np
import pytest
from numpy.typing import NDArray

from incrowd._random import SeededRandomness
from incrowd.learning.features import OrientedEnergies, SecondOrderEnergies, UnitNorm

Reals = NDArray[np.float64]


def noise(*shape: int) -> NDArray[np.float32]:
    values = SeededRandomness(seed=5).stream("images").normals(math.prod(shape))
    return values.reshape(shape).astype(np.float32)


def wave(shape: tuple[int, ...], octave: int, number: int, orientations: int) -> NDArray[np.complex128]:
    """A Morlet wave in space, pixel by pixel, repeated with the period of the grid."""
    height, width = shape
    sigma, frequency, angle = 0.8 * 2**octave, 0.75 * math.pi / 2**octave, number * math.pi / orientations
    across = sigma * orientations / 4
    result = np.zeros((height, width), np.complex128)
    envelope = np.zeros((height, width))
    for y in range(-3 * height, 4 * height):
        for x in range(-3 * width, 4 * width):
            along = y * math.cos(angle) + x * math.sin(angle)
            aside = -y * math.sin(angle) + x * math.cos(angle)
            bump = math.exp(-0.5 * ((along / sigma) ** 2 + (aside / across) ** 2)) / (2 * math.pi * sigma * across)
            result[y % height, x % width] += bump * np.exp(1j * frequency * along)
            envelope[y % height, x % width] += bump
    result -= result.sum() / envelope.sum() * envelope
    return result


def convolved(image: Reals, kernel: NDArray[np.complex128]) -> Reals:
    """The magnitude of a circular convolution, summed term by term."""
    total = np.zeros(image.shape, np.complex128)
    for y in range(image.shape[0]):
        for x in range(image.shape[1]):
            total += image[y, x] * np.roll(kernel, (y, x), axis=(0, 1))
    return np.abs(total)


def blurred(energy: Reals, middle: tuple[float, float], step: float, places: tuple[int, int]) -> Reals:
    """Gaussian means, one place at a time."""
    result = np.zeros(places)
    for a in range(places[0]):
        for b in range(places[1]):
            row = middle[0] + (a - (places[0] - 1) / 2) * step
            column = middle[1] + (b - (places[1] - 1) / 2) * step
            rows = np.exp(-0.5 * ((np.arange(energy.shape[0]) - row) / (0.4 * step)) ** 2)
            columns = np.exp(-0.5 * ((np.arange(energy.shape[1]) - column) / (0.4 * step)) ** 2)
            result[a, b] = (energy * np.outer(rows, columns)).sum() / (rows.sum() * columns.sum())
    return result


def over_norm(group: Reals, floor: float) -> Reals:
    local: Reals = group / (np.sqrt((group**2).sum(axis=0)) + floor)
    return local


def with_margin(image: NDArray[np.float32]) -> Reals:
    height, width = image.shape
    return np.pad(image.astype(np.float64), ((4, 4 + height % 2), (4, 4 + width % 2)))


def middle_of(image: NDArray[np.float32]) -> tuple[float, float]:
    return 4 + (image.shape[0] - 1) / 2, 4 + (image.shape[1] - 1) / 2


def test_energies_are_those_of_a_direct_convolution() -> None:
    image = np.abs(noise(11, 8))
    padded, orientations = with_margin(image), 6
    kernels = [wave(padded.shape, 1, number, orientations) for number in range(orientations)]
    energies = [blurred(convolved(padded, kernel), middle_of(image), 4, (3, 2)) for kernel in kernels]
    expected = over_norm(np.stack(energies), 0.05).ravel()
    expected /= np.linalg.norm(expected)
    found = OrientedEnergies(orientations=orientations, floor=0.05)(image[None])
    np.testing.assert_allclose(found[0], expected, atol=1e-5)


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
