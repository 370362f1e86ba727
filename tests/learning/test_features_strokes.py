"""The features of drawings by hand, as settings name them."""

import numpy as np
import pytest

from incrowd.learning.features import (
    FeatureMap,
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
