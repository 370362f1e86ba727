"""What is no picture is seen as its pixels."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from incrowd.errors import ConfigError
from incrowd.learning.features import (
    FeatureMap,
    MadeUpPictures,
    PicturesOrPixels,
    UnitNorm,
    from_callable,
)
from incrowd.runs.build import feature_map_of
from incrowd.runs.config import PictureFeatures

KNOWN = from_callable(lambda values: np.full((len(values), 2), 0.5**0.5), name="the same for all")
Values = NDArray[np.float32]


def smooth(*shape: int) -> Values:
    """Made-up pictures of this form."""
    sides, colour = (shape, False) if len(shape) == 2 else ((shape[1], shape[2]), True)
    made = MadeUpPictures(count=20, variants=2, colour=colour)
    return np.concatenate([made.render(k, shape=(sides[0], sides[1])) for k in range(20)])


def shuffled(pictures: Values, seed: int = 0) -> Values:
    """Their pixels in another order, the same for all."""
    flat = pictures.reshape(len(pictures), -1)
    return flat[:, np.random.default_rng(seed).permutation(flat.shape[1])].reshape(pictures.shape)


def of(shape: tuple[int, ...], base: FeatureMap = KNOWN, **changed: Any) -> PicturesOrPixels:
    return PicturesOrPixels(base=base, shape=shape, **changed)


@pytest.mark.parametrize("shape", [(28, 28), (3, 32, 32)])
def test_a_picture_is_seen_by_the_base_and_what_is_none_by_its_pixels(shape: tuple[int, ...]) -> None:
    pictures, size = smooth(*shape), int(np.prod(shape))
    looked = of(shape, pixels=size, moved=0.0)
    seen = looked(pictures)
    assert seen.shape == (len(pictures), 2 + size)
    assert (np.abs(seen[:, 2:]).max(axis=1) == 0).mean() > 0.9
    assert np.allclose(seen[np.abs(seen[:, 2:]).max(axis=1) == 0, :2], 0.5**0.5)
    disordered = shuffled(pictures)
    certain = np.abs(looked(disordered)[:, :2]).max(axis=1) == 0
    assert certain.mean() > 0.5
    as_pixels = UnitNorm(centred=True)(disordered)
    assert np.allclose(looked(disordered)[certain, 2:], as_pixels[certain], atol=1e-5)


def spot(row: int, column: int, side: int = 28) -> Values:
    """A spot on a blank ground."""
    y, x = np.mgrid[:side, :side]
    found: Values = np.exp(-((y - row) ** 2 + (x - column) ** 2) / 4)[None].astype(np.float32)
    return found


def test_each_example_decides_for_itself() -> None:
    pictures = smooth(10, 10)
    spots = [spot(row, column, side=20)[:, ::2, ::2] for row, column in ((5, 5), (10, 10), (14, 6))]
    mixed = np.concatenate([pictures[:3], shuffled(pictures[:3]), *spots])
    looked = of((10, 10), pixels=30)
    together = looked(mixed)
    for k in range(9):
        assert np.array_equal(looked(mixed[k : k + 1])[0], together[k])


def test_settings_say_how_many_pixels() -> None:
    for stated, said in (({"raw": 0.02}, "; (8, 8), 20, 0.3, 0.02)"), ({"moved": 0.1}, "; (8, 8), 20, 0.1, 0.01)")):
        made = feature_map_of(PictureFeatures(pixels=20).replaced(**stated), (8, 8))
        assert made is not None
        assert said in made.name
    assert "PicturesOrPixels" not in str(feature_map_of(PictureFeatures(pixels=0), (8, 8)))
    for name, wrong in (("raw", -1.0), ("raw", 1.5), ("moved", 2.0), ("moved", -0.1)):
        with pytest.raises(ConfigError, match=name):
            feature_map_of(PictureFeatures(pixels=0).replaced(**{name: wrong}), (8, 8))
