"""What is no picture is seen as its pixels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from incrowd.data import load_digits
from incrowd.errors import ConfigError, DataError
from incrowd.learning.features import (
    FeatureMap,
    MadeUpPictures,
    OwnPixels,
    PicturesOrPixels,
    UnitNorm,
    Whitened,
    from_callable,
    picture_map,
)
from incrowd.learning.features.norms import unit
from incrowd.learning.features.order import order
from incrowd.learning.features.pictures import ColourPictures, GreyPictures, as_pictures, is_picture, reduced
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


def geary(picture: Values) -> float:
    """Geary's statistic over neighbours, pair by pair."""
    height, width = picture.shape
    pairs = [(picture[i, j], picture[i + 1, j]) for i in range(height - 1) for j in range(width)]
    pairs += [(picture[i, j], picture[i, j + 1]) for i in range(height) for j in range(width - 1)]
    return float(np.mean([(a - b) ** 2 for a, b in pairs]) / (2 * picture.var()))


def test_order_is_how_far_geary_s_statistic_is_below_one() -> None:
    picture = smooth(9, 7)[3]
    expected = (1 - geary(picture.astype(float))) * (8 * 7 + 9 * 6) ** 0.5
    assert float(order(torch.from_numpy(picture)[None, None])[0]) == pytest.approx(expected, rel=1e-4)


def test_pixels_in_random_order_have_order_zero_give_or_take_one() -> None:
    noise = torch.from_numpy(np.random.default_rng(0).random((2000, 1, 28, 28), np.float32))
    found = order(noise)
    # Of 2,000 values of variance about 1 the mean has a standard error of .022.
    assert abs(float(found.mean())) < 0.15
    assert 0.8 < float(found.std()) < 1.2


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


@pytest.mark.parametrize(("beside", "pixels"), [(0, 0.0), (1, 0.0), (2, 0.032), (4, 0.139), (8, 0.3), (11, 0.3)])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_farther_a_thing_lay_from_the_middle_the_more_its_pixels_are_seen(
    beside: int, pixels: float, axis: int
) -> None:
    places = [13, 13]
    places[axis] += beside
    found = of((28, 28))(spot(*places))[0]
    assert np.square(found[2:]).sum() == pytest.approx(pixels, abs=1e-3)
    assert np.square(found).sum() == pytest.approx(1, abs=1e-3)
    quarter = of((28, 28), moved=0.15)(spot(*places))[0]
    assert np.square(quarter[2:]).sum() == pytest.approx(pixels / 2, abs=1e-3)


def test_where_a_thing_lay_is_told_apart() -> None:
    middle = from_callable(lambda values: unit(as_pictures(values).flatten(1)).numpy(), name="in the middle")
    above, below = (middle(spot(row, 13))[0] for row in (6, 20))
    assert above @ below > 0.999
    above, below = (of((28, 28), middle)(spot(row, 13))[0] for row in (6, 20))
    assert above @ below < 0.8


def test_of_every_picture_pixels_have_a_share() -> None:
    pictures = smooth(28, 28)
    known = of((28, 28), moved=0.0)(pictures)
    certain = np.abs(known[:, 2:]).max(axis=1) == 0
    seen = of((28, 28), moved=0.0, raw=0.04)(pictures)[certain]
    assert np.allclose(seen[:, :2], known[certain, :2] * 0.96**0.5)
    assert np.allclose(seen[:, 2:], 0.2 * UnitNorm(centred=True)(pictures[certain]), atol=1e-5)
    more = of((28, 28), raw=0.04)(spot(13, 13 + 11))[0]  # what was moved has the larger of both
    assert np.square(more[2:]).sum() == pytest.approx(0.3, abs=1e-3)


@pytest.mark.parametrize("share", ["moved", "raw"])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_shares_are_between_nothing_and_all(share: str, value: float) -> None:
    with pytest.raises(ConfigError, match=share):
        of((8, 8), KNOWN, **{share: value})


def test_real_digits_are_pictures_and_shuffled_ones_are_not() -> None:
    digits = load_digits().train.values(slice(0, 500))
    base = np.abs(of((8, 8))(digits)[:, :2]).max(axis=1)
    assert (base > 0.7).mean() > 0.9
    base = np.abs(of((8, 8))(shuffled(digits))[:, :2]).max(axis=1)
    assert (base > 0.7).mean() < 0.2


@pytest.mark.parametrize("blur", [0.0, 0.3, 0.6, 0.8, 1.0])
def test_the_length_is_one_in_between_as_well(blur: float) -> None:
    pictures = smooth(12, 12)
    mixed = blur * pictures + (1 - blur) * shuffled(pictures)
    assert np.allclose(np.linalg.norm(of((12, 12))(mixed), axis=1), 1, atol=1e-3)


def test_the_channels_may_come_last() -> None:
    pictures = smooth(3, 12, 14)
    last = of((12, 14, 3))(pictures.transpose(0, 2, 3, 1).copy())
    assert np.array_equal(of((3, 12, 14))(pictures), last)


def test_a_blank_example_is_a_picture() -> None:
    seen = of((8, 8))(np.full((1, 8, 8), 0.4, np.float32))
    assert np.allclose(seen[0, :2], 0.5**0.5)
    assert (seen[0, 2:] == 0).all()


def test_each_example_decides_for_itself() -> None:
    pictures = smooth(10, 10)
    spots = [spot(row, column, side=20)[:, ::2, ::2] for row, column in ((5, 5), (10, 10), (14, 6))]
    mixed = np.concatenate([pictures[:3], shuffled(pictures[:3]), *spots])
    looked = of((10, 10), pixels=30)
    together = looked(mixed)
    for k in range(9):
        assert np.array_equal(looked(mixed[k : k + 1])[0], together[k])


def test_many_pixels_become_random_sums_that_keep_angles() -> None:
    noise = np.random.default_rng(0).random((40, 40, 40), np.float32)
    noise[1::2] = 0.9 * noise[::2] + 0.1 * noise[1::2]
    looked = of((40, 40), pixels=400)
    sums = looked(noise)[:, 2:]
    assert sums.shape == (40, 400)
    lengths = np.linalg.norm(sums, axis=1)
    pixels = UnitNorm(centred=True)(noise)
    gram, true = (sums / lengths[:, None]) @ (sums / lengths[:, None]).T, pixels @ pixels.T
    # A sum of 1,600 products with random signs over 400 places has a standard deviation of .05.
    assert np.abs(gram - true).max() < 0.3
    assert gram[0, 1] > 0.9
    assert np.array_equal(of((40, 40), pixels=400)(noise)[:, 2:], sums)


def test_the_name_says_what_it_depends_on() -> None:
    names = {of(shape, pixels=pixels).name for shape in ((8, 8), (8, 9)) for pixels in (5, 6)}
    names |= {
        of((8, 8), pixels=5, moved=0.2).name,
        of((8, 8), pixels=5, raw=0.2).name,
    }
    assert len(names) == 6
    assert KNOWN.name in of((8, 8)).name


def test_pixels_are_counted_and_may_be_left_out() -> None:
    with pytest.raises(ConfigError, match="pixels"):
        of((8, 8), pixels=0)
    with pytest.raises(ConfigError, match="pixels"):
        feature_map_of(PictureFeatures(pixels=-1), (8, 8))
    assert isinstance(picture_map((8, 8)), PicturesOrPixels)
    assert isinstance(picture_map((8, 8), own=OwnPixels(most=0)), Whitened)


def test_settings_say_how_many_pixels() -> None:
    alone = feature_map_of(PictureFeatures(pixels=0), (8, 8))
    both = feature_map_of(PictureFeatures(pixels=20, raw=0.02), (8, 8))
    assert "PicturesOrPixels" not in alone.name
    assert "; (8, 8), 20, 0.3, 0.02)" in both.name
    assert "; (8, 8), 20, 0.1, 0.01)" in feature_map_of(PictureFeatures(pixels=20, moved=0.1), (8, 8)).name
    for name, wrong in (("raw", -1.0), ("raw", 1.5), ("moved", 2.0), ("moved", -0.1)):
        with pytest.raises(ConfigError, match=name):
            feature_map_of(PictureFeatures(pixels=0).replaced(**{name: wrong}), (8, 8))


def test_what_is_too_narrow_beside_its_length_is_no_picture() -> None:
    assert not is_picture((6, 200))
    with pytest.raises(DataError, match="no pictures"):
        reduced((6, 200))
    assert is_picture((6, 190))
    for shape, small in (((6, 190), (6, 190)), ((20, 200), (6, 66)), ((400, 24), (100, 6))):
        assert reduced(shape) == small
        assert reduced(small) == small  # what is looked at is a picture, too


@pytest.mark.parametrize("shape", [(7, 130), pytest.param((3, 130, 7), marks=pytest.mark.slow), (180, 13)])
def test_long_pictures_have_two_sides_when_they_are_looked_at(shape: tuple[int, ...], tmp_path: Path) -> None:
    pictures = np.random.default_rng(3).random((3, *shape)).astype(np.float32)
    base = ColourPictures(cache=tmp_path) if len(shape) == 3 else GreyPictures(cache=tmp_path)
    assert np.isfinite(base(pictures)).all()
    assert min(as_pictures(pictures).shape[2:]) >= 6


def test_a_picture_without_anything_in_it_has_no_pixels_of_its_own() -> None:
    """What rounding leaves of a mean is not stretched to length one."""
    for value in (0.7, 1 / 3, 123.4):
        flat = np.full((2, 20, 30), value, np.float32)
        assert not UnitNorm(centred=True)(flat).any()
        one = flat.copy()
        one[0, 3, 4] += value / 255  # the control: the least that a byte can show
        assert np.linalg.norm(UnitNorm(centred=True)(one), axis=1) == pytest.approx([1, 0], abs=1e-3)
