import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from numpy.typing import NDArray

from incrowd._random import SeededRandomness
from incrowd.data import load_digits
from incrowd.errors import ConfigError
from incrowd.learning.features import GlyphMetric, Glyphs, MomentNormalisation, OrientedEnergies, UnitNorm, compose
from incrowd.learning.features.feature_map import Values
from incrowd.learning.features.glyphs import draw_strokes, inked
from incrowd.learning.features.metric import discriminants, glyph_statistics

SHAPE = (8, 8)
ENERGIES = OrientedEnergies(octave=0, stride=2)
GLYPHS = Glyphs(count=45, variants=12)  # more than one block


def drawn(dots: NDArray[np.float64], radius: float, row: float, column: float) -> float:
    """The ink at one place of the canvas."""
    nearest = min(math.hypot(row - y, column - x) for y, x in dots)
    return min(max(1.2 - max(nearest - radius, 0.0), 0.0), 1.0)


def test_ink_is_drawn_dot_by_dot() -> None:
    dots = np.array([[[3.0, 20.0], [14.2, 13.7], [22.0, 25.5]], [[9.9, 9.1], [10.0, 11.0], [10.4, 12.0]]])
    radius = np.array([0.8, 1.5])
    found = inked(dots, radius, (28, 28)).numpy()
    for image, path, thickness in zip(found, dots, radius, strict=True):
        expected = [[drawn(path, thickness, row, column) for column in range(28)] for row in range(28)]
        np.testing.assert_allclose(image, expected, atol=1e-4)


def test_small_images_are_means_of_finer_ones() -> None:
    dots, radius = np.array([[[6.0, 8.0], [14.2, 13.7]]]), np.array([1.1])
    found = inked(dots, radius, (7, 10)).numpy()[0]  # four and three places on each side of a pixel
    for row in range(7):
        for column in range(10):
            places = [
                ((row * 4 + a + 0.5) * 28 / 28 - 0.5, (column * 3 + b + 0.5) * 28 / 30 - 0.5)
                for a in range(4)
                for b in range(3)
            ]
            expected = np.mean([drawn(dots[0], 1.1, *place) for place in places])
            assert found[row, column] == pytest.approx(expected, abs=1e-4)


def test_glyphs_follow_from_the_seed() -> None:
    first, again = (Glyphs(seed=3, variants=5).render(7, shape=(28, 28)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(Glyphs(seed=3, variants=5, count=9000).render(7, shape=(28, 28)), first)
    assert np.abs(Glyphs(seed=4, variants=5).render(7, shape=(28, 28)) - first).max() > 0.9
    assert np.abs(Glyphs(seed=3, variants=5).render(8, shape=(28, 28)) - first).max() > 0.9


def test_glyphs_are_ink_on_paper() -> None:
    images = np.stack([Glyphs(variants=8).render(number, shape=(28, 28)) for number in range(60)])
    assert images.shape == (60, 8, 28, 28)
    assert images.dtype == np.float32
    assert (images.min(), images.max()) == (0, 1)
    ink = images.mean(axis=(2, 3))
    assert 0.04 < ink.mean() < 0.25  # handwriting has about an eighth
    assert ink.min() > 0.002


def test_renderings_of_a_glyph_differ_less_than_glyphs() -> None:
    images = np.stack([Glyphs(variants=8).render(number, shape=(7, 7)) for number in range(60)])
    means = images.mean(axis=1)
    within, between = images.var(axis=1).mean(), means.var(axis=0).mean()
    assert 0 < within < between


def test_strokes_are_of_both_kinds_and_one_to_three() -> None:
    counts = [len(draw_strokes(SeededRandomness(seed=0).stream("glyphs", number))) for number in range(300)]
    # Each of the three counts has probability 1 / 3: five standard errors are 0.136.
    for number in (1, 2, 3):
        assert abs(counts.count(number) / 300 - 1 / 3) < 0.136
    assert set(counts) == {1, 2, 3}


@pytest.mark.parametrize("settings", [{"count": 0}, {"variants": 0}, {"seed": -1}])
def test_unusable_glyphs_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(settings))} = "):
        Glyphs(**settings)


def all_features() -> list[list[Values]]:
    return [
        [ENERGIES(image[None])[0] for image in GLYPHS.render(number, shape=SHAPE)] for number in range(GLYPHS.count)
    ]


def test_statistics_are_those_of_brute_force() -> None:
    within, means = glyph_statistics(ENERGIES, GLYPHS, SHAPE)
    expected = np.zeros_like(within)
    for glyph, mean in zip(all_features(), means, strict=True):
        np.testing.assert_allclose(mean, np.mean(glyph, axis=0, dtype=np.float64), atol=1e-6)
        for features in glyph:
            expected += np.outer(features - mean, features - mean) / (GLYPHS.count * GLYPHS.variants)
    np.testing.assert_allclose(within, expected, atol=1e-7)
    assert within.trace() > 0.01


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


def test_a_ridge_is_relative_to_the_variance_within() -> None:
    within, between = np.diag([1.0, 3.0]), np.array([[1.0, 1.0]])
    direction = discriminants(within, between, ridge=0.5)[:, 0]
    # S = diag(1 + 1, 3 + 1), and the best direction is proportional to S^-1 (1, 1).
    assert direction[0] / direction[1] == pytest.approx(4 / 2)
    assert 2 * direction[0] ** 2 + 4 * direction[1] ** 2 == pytest.approx(1)


def test_features_are_centred_projected_and_of_norm_one() -> None:
    metric = GlyphMetric(base=ENERGIES, shape=SHAPE, glyphs=GLYPHS, dimensions=10)
    values = load_digits().train.values(slice(0, 20))
    expected = (ENERGIES(values) - metric.centre) @ metric.directions
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(metric(values), expected, atol=1e-5)


def test_the_same_settings_give_the_same_features() -> None:
    values = load_digits().train.values(slice(0, 20))
    first, again = (GlyphMetric(base=ENERGIES, shape=SHAPE, glyphs=GLYPHS, dimensions=10)(values) for _ in range(2))
    np.testing.assert_allclose(first, again, atol=1e-5)


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


@pytest.mark.slow
def test_random_drawings_say_what_matters_in_real_digits() -> None:
    digits = load_digits()
    assert digits.test is not None
    base = compose(MomentNormalisation(), ENERGIES)
    accuracies = []
    for feature_map in (UnitNorm(centred=True), GlyphMetric(base=base, shape=SHAPE, glyphs=Glyphs(count=200))):
        train, test = (feature_map(part.values(slice(None))) for part in (digits.train, digits.test))
        means = np.stack([train[digits.train.labels == label].mean(axis=0) for label in range(10)])
        nearest = ((test[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
        accuracies.append((nearest == digits.test.labels).mean())
    assert accuracies[0] < 0.93
    assert accuracies[1] > 0.96


def test_the_name_says_all_settings() -> None:
    defaults: dict[str, Any] = {"base": ENERGIES}
    settings: list[dict[str, Any]] = [
        {},
        {"base": UnitNorm()},
        {"shape": (9, 9)},
        {"dimensions": 5},
        {"ridge": 2.0},
        {"glyphs": Glyphs(seed=1)},
    ]
    names = {GlyphMetric(**(defaults | setting)).name for setting in settings}
    assert len(names) == len(settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dimensions": 45}, "dimensions = 45: give at most the number of glyphs less one, which is 44"),
        ({"dimensions": 0}, "dimensions = 0"),
        ({"ridge": 0}, "ridge = 0"),
        ({"shape": (0, 1)}, "height = 0"),
    ],
)
def test_an_unusable_metric_is_refused(settings: dict[str, Any], message: str) -> None:
    defaults: dict[str, Any] = {"base": ENERGIES, "glyphs": GLYPHS}
    with pytest.raises(ConfigError, match=message):
        GlyphMetric(**(defaults | settings))


def test_more_directions_than_features_are_refused() -> None:
    metric = GlyphMetric(base=UnitNorm(), shape=(3, 3), glyphs=GLYPHS, dimensions=10)
    with pytest.raises(ConfigError, match="dimensions = 10: give at most the number of features, which is 9"):
        metric(np.zeros((1, 3, 3), np.float32))
