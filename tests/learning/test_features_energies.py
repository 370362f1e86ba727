import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from incrowd._random import SeededRandomness
from incrowd.data import load_digits
from incrowd.errors import ConfigError
from incrowd.learning.features import OrientedEnergies, SecondOrderEnergies, UnitNorm
from incrowd.learning.features.wavelets import blur_matrix, morlet_bank

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


@pytest.mark.parametrize("octave", [0, 1])
def test_waves_are_what_they_are_in_space(octave: int) -> None:
    bank = morlet_bank(14, 12, octave, 8)
    for number in (0, 1, 4, 7):
        expected = np.fft.fft2(wave((14, 12), octave, number, 8))
        np.testing.assert_allclose(bank[number], expected.real, atol=2e-6)
        assert np.abs(expected.imag).max() < 1e-6
        assert bank[number, 0, 0] == 0


def test_energies_are_those_of_a_direct_convolution() -> None:
    image = np.abs(noise(11, 8))
    padded, orientations = with_margin(image), 6
    kernels = [wave(padded.shape, 1, number, orientations) for number in range(orientations)]
    energies = [blurred(convolved(padded, kernel), middle_of(image), 4, (3, 2)) for kernel in kernels]
    expected = over_norm(np.stack(energies), 0.05).ravel()
    expected /= np.linalg.norm(expected)
    found = OrientedEnergies(orientations=orientations, floor=0.05)(image[None])
    np.testing.assert_allclose(found[0], expected, atol=1e-5)


def test_second_order_energies_are_those_of_direct_convolutions() -> None:
    image = np.abs(noise(7, 6))
    padded, orientations = with_margin(image), 4
    middle, places = middle_of(image), (4, 3)
    banks = [[wave(padded.shape, octave, number, orientations) for number in range(orientations)] for octave in (0, 1)]
    fine, coarse = ([convolved(padded, kernel) for kernel in bank] for bank in banks)
    halves = [energy.reshape(energy.shape[0] // 2, 2, -1, 2).mean(axis=(1, 3)) for energy in fine]
    kernels = [wave(halves[0].shape, 0, number, orientations) for number in range(orientations)]
    second = [convolved(half, kernel) for half in halves for kernel in kernels]
    half_middle = (middle[0] - 0.5) / 2, (middle[1] - 0.5) / 2
    groups = [
        0.3 * blurred(padded, middle, 2, places)[None],
        over_norm(np.stack([blurred(energy, middle, 2, places) for energy in fine]), 0.02),
        over_norm(np.stack([blurred(energy, middle, 2, places) for energy in coarse]), 0.02),
        over_norm(np.stack([blurred(energy, half_middle, 1, places) for energy in second]), 0.01),
    ]
    expected = np.concatenate(groups).ravel()
    expected /= np.linalg.norm(expected)
    found = SecondOrderEnergies(stride=2, orientations=orientations)(image[None])
    np.testing.assert_allclose(found[0], expected, atol=1e-5)


def test_blurs_are_means() -> None:
    matrix = blur_matrix(36, first=5.5, step=4.0, places=7)
    np.testing.assert_allclose(matrix.sum(dim=1), 1, atol=1e-6)
    assert matrix[0].argmax() in (5, 6)


def test_nothing_in_the_constants_is_subnormal() -> None:
    tiny = np.finfo(np.float32).tiny
    for constants in (morlet_bank(36, 36, 1, 8), blur_matrix(36, first=5.5, step=4.0, places=7)):
        assert ((constants == 0) | (constants.abs() > 1e3 * tiny)).all()


def test_the_recipe_has_392_and_3969_features() -> None:
    images = noise(2, 28, 28)
    assert OrientedEnergies()(images).shape == (2, 392)
    assert SecondOrderEnergies()(images).shape == (2, 3969)


def test_an_image_and_its_negative_give_the_same() -> None:
    images = noise(5, 28, 28)
    np.testing.assert_array_equal(OrientedEnergies()(-images), OrientedEnergies()(images))
    assert np.abs(OrientedEnergies()(images[:1]) - OrientedEnergies()(images[1:2])).max() > 0.01


def test_contrast_hardly_matters() -> None:
    images = noise(5, 28, 28)
    np.testing.assert_allclose(OrientedEnergies()(3 * images), OrientedEnergies()(images), atol=0.005)


def test_the_strongest_orientation_is_that_of_the_stroke() -> None:
    y, x = np.arange(28)[:, None] - 13.5, np.arange(28) - 13.5
    for number in range(8):  # a stroke across the wave's direction
        angle = number * math.pi / 8
        stroke = np.clip(2 - np.abs(y * math.cos(angle) + x * math.sin(angle)), 0, 1).astype(np.float32)
        assert OrientedEnergies()(stroke[None]).reshape(8, 7, 7)[:, 3, 3].argmax() == number


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


def test_flat_images_need_their_shape() -> None:
    images = noise(2, 10, 12)
    for kind in (OrientedEnergies, SecondOrderEnergies):
        np.testing.assert_array_equal(kind(shape=(10, 12))(images.reshape(2, -1)), kind()(images))


def test_each_example_loses_its_own_mean() -> None:
    values = np.array([[1.0, 2.0, 6.0], [5.0, 5.0, 5.0]], np.float32)
    expected = np.array([-2, -1, 3]) / math.sqrt(14)
    np.testing.assert_allclose(UnitNorm(centred=True)(values), np.stack([expected, np.zeros(3)]), atol=1e-6)
    np.testing.assert_allclose(UnitNorm()(values[:1]), values[:1] / math.sqrt(41), atol=1e-6)
    assert UnitNorm()(np.zeros((2, 3, 4), np.float32)).shape == (2, 12)


def test_energies_tell_embedded_digits_apart_better_than_pixels() -> None:
    digits = load_digits()
    assert digits.test is not None
    accuracies = []
    for feature_map in (UnitNorm(centred=True), OrientedEnergies(octave=0, stride=2)):
        train = UnitNorm(centred=True)(feature_map(digits.train.values(slice(None))))
        test = UnitNorm(centred=True)(feature_map(digits.test.values(slice(None))))
        means = np.stack([train[digits.train.labels == label].mean(axis=0) for label in range(10)])
        nearest = ((test[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
        accuracies.append((nearest == digits.test.labels).mean())
    assert accuracies[1] > accuracies[0] + 0.02
    assert accuracies[1] > 0.93


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"octave": -1}, "octave"),
        ({"stride": 0}, "stride"),
        ({"orientations": 0}, "orientations"),
        ({"floor": 0}, "floor"),
        ({"shape": (3, 0)}, "width"),
    ],
)
def test_unusable_settings_are_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field} = "):
        OrientedEnergies(**settings)
    if field != "octave":
        with pytest.raises(ConfigError, match=f"^{field} = "):
            SecondOrderEnergies(**settings)


def test_the_second_order_needs_an_even_stride() -> None:
    with pytest.raises(ConfigError, match=r"^stride = 3: give an even number"):
        SecondOrderEnergies(stride=3)
