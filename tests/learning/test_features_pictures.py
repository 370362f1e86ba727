"""Features of pictures, and the made-up pictures that they were learnt from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd.errors import ConfigError, DataError
from incrowd.learning.features import (
    GreyPictures,
    MadeUpPictures,
    Mirrored,
    PatchResponses,
    Whitened,
    from_callable,
    is_picture,
)
from incrowd.learning.features.feature_map import Values
from incrowd.learning.features.pictures import in_colour, reduced
from incrowd.runs.build import feature_map_of
from incrowd.runs.config import PictureFeatures

FEW = MadeUpPictures(count=12, variants=3)


def some(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random((3, *shape)).astype(np.float32)


def small_map(**changed: Any) -> Whitened:
    usual: dict[str, Any] = {"base": GreyPictures(), "shape": (8, 8), "pictures": FEW, "dimensions": 7}
    return Whitened(**usual | changed)


@pytest.mark.parametrize("colour", [False, True])
def test_made_up_pictures_follow_from_their_seed_and_number(colour: bool) -> None:
    made = MadeUpPictures(count=5, variants=4, colour=colour)
    one = made.render(3, shape=(10, 14))
    assert one.shape == ((4, 3, 10, 14) if colour else (4, 10, 14))
    assert one.min() >= 0
    assert one.max() <= 1
    assert one.std() > 0.01
    again = MadeUpPictures(count=50, variants=4, colour=colour)
    assert np.array_equal(again.render(3, shape=(10, 14)), one)
    assert not np.array_equal(made.render(4, shape=(10, 14)), one)
    assert not np.array_equal(MadeUpPictures(count=5, variants=4, colour=colour, seed=1).render(3, shape=(10, 14)), one)


@pytest.mark.parametrize(
    ("shape", "colour", "small"),
    [
        ((8, 8), False, (8, 8)),
        ((1, 28, 28), False, (28, 28)),
        ((28, 20), False, (28, 20)),
        ((3, 16, 12), True, (16, 12)),
        ((40, 30, 3), True, (40, 30)),
        ((96, 64), False, (48, 32)),
        ((3, 100, 100), True, (33, 33)),
    ],
)
def test_pictures_of_any_form_are_looked_at(shape: tuple[int, ...], colour: bool, small: tuple[int, int]) -> None:
    assert is_picture(shape)
    assert in_colour(shape) == colour
    assert reduced(shape) == small


@pytest.mark.parametrize("shape", [(5,), (5, 40), (2, 9, 9), (9, 9, 4), (3, 2, 30, 30), ()])
def test_what_is_no_picture_is_refused(shape: tuple[int, ...]) -> None:
    assert not is_picture(shape)
    with pytest.raises(DataError, match="are no pictures"):
        reduced(shape)
    with pytest.raises(ConfigError, match=r"name = 'pictures': it needs pictures"):
        feature_map_of(PictureFeatures(), shape)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(8, 8), (28, 28), (6, 10), (64, 50), (1, 12, 12)])
def test_features_of_grey_pictures_are_finite_and_of_one_example_alone(shape: tuple[int, ...]) -> None:
    pictures = some(*shape)
    found = GreyPictures()(pictures)
    assert np.isfinite(found).all()
    assert found.shape[1] < 20_000
    assert np.allclose(GreyPictures()(pictures[1:2])[0], found[1], atol=1e-6)
    assert np.isfinite(GreyPictures()(np.zeros_like(pictures))).all()
    assert found.shape[1] == GreyPictures().count(shape)


def small_patches(**changed: Any) -> PatchResponses:
    made = MadeUpPictures(count=6, variants=1, colour=True)
    return PatchResponses(**{"pictures": made, "directions": 9, **changed})


def test_patch_responses_do_not_see_brightness_and_are_of_one_example_alone() -> None:
    patches, pictures = small_patches(), 0.4 * some(3, 14, 12)
    found = patches(pictures)
    assert found.shape == (3, patches.count) == (3, 16 * 18)
    assert np.allclose(patches(pictures + 0.3), found, atol=1e-4)
    assert np.allclose(patches(pictures[2:])[0], found[2], atol=1e-5)
    assert not np.allclose(patches(pictures[:, ::-1].copy()), found, atol=1e-2)  # colours count
    places = found.reshape(3, 16, 18)
    assert (np.linalg.norm(places, axis=2) <= 1).all()


def test_what_was_learnt_is_kept_and_known_by_all_that_it_depends_on(tmp_path: Path) -> None:
    pictures = some(8, 8)
    one = small_map(cache=tmp_path)(pictures)
    (kept,) = tmp_path.iterdir()
    assert np.array_equal(small_map(cache=tmp_path)(pictures), one)
    assert np.array_equal(small_map()(pictures), one)
    kept.write_bytes(kept.read_bytes()[:-3])
    assert np.array_equal(small_map(cache=tmp_path)(pictures), one)
    small_map(cache=tmp_path, whitening=0.3)(pictures)
    assert len(list(tmp_path.iterdir())) == 1
    small_map(cache=tmp_path, dimensions=6)(pictures)
    small_map(cache=tmp_path, pictures=MadeUpPictures(count=12, variants=3, seed=2))(pictures)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("shape", [(7, 8), (1, 7, 8), (3, 7, 8), (7, 8, 3)])
def test_a_picture_and_its_mirror_image_have_the_same_features(shape: tuple[int, ...]) -> None:
    pictures = some(*shape)
    flipped = np.ascontiguousarray(np.flip(pictures, 2 if shape[-1] == 3 else -1))

    def seen(values: Values) -> Values:
        assert values.flags.c_contiguous
        flat: Values = values.reshape(len(values), -1)
        return flat

    mirrored = Mirrored(base=from_callable(seen, name="seen"))
    assert np.array_equal(mirrored(pictures), mirrored(flipped))
    assert not np.array_equal(seen(pictures), seen(flipped))
    upright = np.moveaxis(pictures, -1, 1) if shape[-1] == 3 else pictures
    ordered = np.moveaxis(flipped, -1, 1) if shape[-1] == 3 else flipped
    assert np.allclose(mirrored(pictures), (seen(upright.copy()) + seen(ordered.copy())) / 2)
    assert mirrored.name == "Mirrored(seen)"
