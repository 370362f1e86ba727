"""The features of drawings by hand, as settings name them."""

import numpy as np
import pytest

from incrowd.errors import ConfigError
from incrowd.learning.features import (
    FeatureMap,
    GlyphMetric,
    Glyphs,
    MomentNormalisation,
    OrientedEnergies,
    SecondOrderEnergies,
    UnitNorm,
    compose,
    stroke_map,
)

SHAPE = (28, 28)


@pytest.mark.parametrize(
    ("made", "same"),
    [
        (stroke_map(SHAPE), compose(OrientedEnergies(), UnitNorm(centred=True))),
        (
            stroke_map((8, 8), stroke_width=2, stride=2),
            compose(OrientedEnergies(octave=0, stride=2), UnitNorm(centred=True)),
        ),
        (stroke_map(SHAPE, corners=True), compose(SecondOrderEnergies(), UnitNorm(centred=True))),
        (
            stroke_map(SHAPE, deskew=True, corners=True),
            compose(MomentNormalisation(), SecondOrderEnergies(), UnitNorm(centred=True)),
        ),
    ],
    ids=["strokes", "small", "corners", "deskewed corners"],
)
def test_strokes_and_corners_are_energies_less_their_mean(made: FeatureMap, same: FeatureMap) -> None:
    images = Glyphs(count=1, variants=3).render(0, shape=(8, 8) if "octave=0" in made.name else SHAPE)
    assert np.array_equal(made(images), same(images))


def test_directions_beyond_the_glyphs_need_more_glyphs() -> None:
    few, many = (stroke_map(SHAPE, corners=True, dimensions=count) for count in (599, 600))
    assert isinstance(few, GlyphMetric)
    assert isinstance(many, GlyphMetric)
    assert (few.glyphs.count, many.glyphs.count) == (600, 1200)
    assert few.glyphs.count * few.glyphs.variants == many.glyphs.count * many.glyphs.variants


@pytest.mark.parametrize("width", [0, 1, 3, 10**9])
def test_a_width_that_is_no_power_of_two_is_refused(width: int) -> None:
    with pytest.raises(ConfigError, match=rf"stroke_width = {width}: give its pixels, a power of two"):
        stroke_map(SHAPE, stroke_width=width)


def test_corners_are_those_of_strokes_of_four_pixels() -> None:
    with pytest.raises(ConfigError, match=r"stroke_width = 2: corners are those of strokes of 4 pixels"):
        stroke_map(SHAPE, stroke_width=2, corners=True)
