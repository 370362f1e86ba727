"""Drawings by hand as features: what the recipe of table 1 sees."""

import numpy as np
import pytest
import scipy.linalg
from numpy.typing import NDArray

from incrowd.data import load_digits
from incrowd.learning.features import OrientedEnergies
from papers.geyer.handwriting import GlyphMetric, Glyphs, MomentNormalisation, glyph_statistics

SHAPE = (8, 8)
ENERGIES = OrientedEnergies(octave=0, stride=2)
GLYPHS = Glyphs(count=45, variants=12)  # more than one block
METRIC = GlyphMetric(base=ENERGIES, shape=SHAPE, glyphs=GLYPHS, dimensions=10)


def test_directions_solve_the_generalised_eigenproblem() -> None:
    within, means = glyph_statistics(ENERGIES, GLYPHS, SHAPE)
    np.testing.assert_allclose(METRIC.centre, means.mean(axis=0), atol=1e-6)
    between = np.cov(means.T, bias=True)
    spread = within + np.trace(within) / len(within) * np.eye(len(within))
    worth, vectors = scipy.linalg.eigh(between, spread)
    np.testing.assert_allclose(METRIC.directions.T @ spread @ METRIC.directions, np.eye(10), atol=1e-4)
    quotients = np.diag(METRIC.directions.T @ between @ METRIC.directions)
    np.testing.assert_allclose(quotients, worth[::-1][:10], rtol=1e-4)
    overlaps = np.abs(vectors[:, ::-1][:, :10].T @ spread @ METRIC.directions)
    np.testing.assert_allclose(overlaps, np.eye(10), atol=1e-2)
    assert (METRIC.directions.max(axis=0) == np.abs(METRIC.directions).max(axis=0)).all()


def test_features_are_centred_projected_and_of_norm_one() -> None:
    values = load_digits().train.values(slice(0, 20))
    expected = (ENERGIES(values) - METRIC.centre) @ METRIC.directions
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(METRIC(values), expected, atol=1e-5)


def moments(image: NDArray[np.float64]) -> tuple[float, float, float, float, float]:
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
