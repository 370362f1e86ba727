from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.linalg

from incrowd.data import load_digits
from incrowd.learning.features import GlyphMetric, Glyphs, OrientedEnergies
from incrowd.learning.features.metric import glyph_statistics

SHAPE = (8, 8)
ENERGIES = OrientedEnergies(octave=0, stride=2)
GLYPHS = Glyphs(count=45, variants=12)  # more than one block


def test_directions_solve_the_generalised_eigenproblem() -> None:
    within, means = glyph_statistics(ENERGIES, GLYPHS, SHAPE)
    metric = GlyphMetric(base=ENERGIES, shape=SHAPE, glyphs=GLYPHS, dimensions=10)
    np.testing.assert_allclose(metric.centre, means.mean(axis=0), atol=1e-6)
    between = np.cov(means.T, bias=True)
    spread = within + np.trace(within) / len(within) * np.eye(len(within))
    worth, vectors = scipy.linalg.eigh(between, spread)
    np.testing.assert_allclose(metric.directions.T @ spread @ metric.directions, np.eye(10), atol=1e-4)
    quotients = np.diag(metric.directions.T @ between @ metric.directions)
    np.testing.assert_allclose(quotients, worth[::-1][:10], rtol=1e-4)
    overlaps = np.abs(vectors[:, ::-1][:, :10].T @ spread @ metric.directions)
    np.testing.assert_allclose(overlaps, np.eye(10), atol=1e-2)
    assert (metric.directions.max(axis=0) == np.abs(metric.directions).max(axis=0)).all()


def test_features_are_centred_projected_and_of_norm_one() -> None:
    metric = GlyphMetric(base=ENERGIES, shape=SHAPE, glyphs=GLYPHS, dimensions=10)
    values = load_digits().train.values(slice(0, 20))
    expected = (ENERGIES(values) - metric.centre) @ metric.directions
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(metric(values), expected, atol=1e-5)


def test_directions_are_kept_and_known_by_all_that_they_depend_on(tmp_path: Path) -> None:
    values = GLYPHS.render(3, shape=SHAPE)
    metric = GlyphMetric(base=ENERGIES, shape=SHAPE, glyphs=GLYPHS, dimensions=10)
    found = replace(metric, cache=tmp_path)
    assert np.array_equal(found(values), metric(values))
    assert found.name == metric.name
    (kept,) = tmp_path.iterdir()
    again = replace(metric, cache=tmp_path)
    written = kept.stat().st_mtime_ns
    assert np.array_equal(again.directions, metric.directions)
    assert np.array_equal(again.centre, metric.centre)
    assert kept.stat().st_mtime_ns == written
    replace(again, dimensions=9)(values)
    assert len(list(tmp_path.iterdir())) == 2
