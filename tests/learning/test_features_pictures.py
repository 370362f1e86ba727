"""Features of pictures, and the made-up pictures that they were learnt from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from incrowd.errors import ConfigError, DataError
from incrowd.learning.features import (
    ColourPictures,
    GreyPictures,
    MadeUpPictures,
    Mirrored,
    OwnPixels,
    PatchResponses,
    Whitened,
    from_callable,
    is_picture,
    picture_map,
)
from incrowd.learning.features.feature_map import Values
from incrowd.learning.features.patches import around, spherical_means
from incrowd.learning.features.pictures import in_colour, reduced
from incrowd.learning.features.whitened import principal
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


def test_variants_of_a_thing_are_more_alike_than_things() -> None:
    made = MadeUpPictures(count=60, variants=2)
    pairs = np.stack([made.render(number, shape=(12, 12)).reshape(2, -1) for number in range(60)])
    own = np.linalg.norm(pairs[:, 0] - pairs[:, 1], axis=1)
    others = np.linalg.norm(pairs[:, 0] - np.roll(pairs[:, 1], 1, axis=0), axis=1)
    assert (own < others).mean() > 0.8
    assert own.min() > 0


def test_the_share_of_black_grounds_is_what_is_asked_for() -> None:
    def black(blank: float) -> float:
        made = MadeUpPictures(count=60, variants=1, blank=blank)
        return float(np.mean([np.mean(made.render(k, shape=(16, 16)) == 0) > 0.1 for k in range(60)]))

    assert black(0.0) < 0.3 < 0.6 < black(1.0)


@pytest.mark.parametrize("wrong", [{"count": 0}, {"variants": 0}, {"blank": 1.5}, {"blank": -0.1}, {"seed": -1}])
def test_made_up_pictures_refuse_what_makes_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        MadeUpPictures(**wrong)


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


def test_grey_pictures_have_patches_from_16_pixels_a_side_on() -> None:
    patches = 16 * 2 * 64
    assert GreyPictures().count((28, 28)) == 6605
    assert GreyPictures().count((16, 16)) - GreyPictures().count((15, 15)) > patches
    fine = GreyPictures()(some(28, 28))[:, -patches:].reshape(-1, 16, 2 * 64)
    assert (np.linalg.norm(fine, axis=2) <= 0.5).all()
    assert fine.any(axis=(1, 2)).all()


@pytest.mark.slow
def test_the_patches_of_grey_pictures_are_kept(tmp_path: Path) -> None:
    found = GreyPictures(cache=tmp_path)(some(20, 20))
    assert len(list(tmp_path.iterdir())) == 1
    assert np.array_equal(GreyPictures()(some(20, 20)), found)
    assert GreyPictures(cache=tmp_path).name == GreyPictures().name


def test_the_channel_of_a_grey_picture_changes_nothing() -> None:
    pictures = some(12, 12)
    assert np.array_equal(GreyPictures()(pictures), GreyPictures()(pictures[:, None]))


def test_larger_pictures_are_seen_as_their_means() -> None:
    fine = np.repeat(np.repeat(some(25, 25), 2, axis=1), 2, axis=2)
    assert np.allclose(GreyPictures()(fine), GreyPictures()(fine[:, ::2, ::2]), atol=1e-6)


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


def test_patches_are_kept_and_known_by_all_that_they_depend_on(tmp_path: Path) -> None:
    one = small_patches(cache=tmp_path)(some(3, 12, 12))
    kept = list(tmp_path.iterdir())
    assert len(kept) == 1
    assert np.array_equal(small_patches(cache=tmp_path)(some(3, 12, 12)), one)
    assert small_patches(cache=tmp_path).name == small_patches().name
    small_patches(cache=tmp_path, directions=8)(some(3, 12, 12))
    assert len(list(tmp_path.iterdir())) == 2


def test_every_point_is_near_a_line_that_was_found() -> None:
    from incrowd import SeededRandomness

    generator = torch.Generator().manual_seed(0)
    lines = torch.linalg.qr(torch.randn(6, 4, generator=generator))[0].T
    points = lines[torch.arange(400) % 4] * torch.randn(400, 1, generator=generator)
    found = spherical_means(points, 12, SeededRandomness(seed=0).stream("test"))
    assert found.norm(dim=1).allclose(torch.ones(12), atol=1e-5)
    nearest = (points @ found.T).abs().amax(1)
    assert torch.allclose(nearest, points.norm(dim=1), atol=1e-3)


def test_means_around_places_are_means() -> None:
    weights = around(10, 4)
    assert weights.shape == (4, 10)
    assert weights.sum(1).allclose(torch.ones(4))
    assert torch.allclose(weights, weights.flip(0, 1), atol=1e-6)


@pytest.mark.parametrize("side", [6, 7, 9])
def test_places_of_tiny_pictures_have_a_point_each(side: int) -> None:
    assert np.isfinite(small_patches()(np.random.default_rng(0).random((2, 3, side, side)).astype(np.float32))).all()


def test_the_principal_directions_are_those_of_the_whole_decomposition() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(300, 40, generator=generator) * torch.linspace(5, 0.1, 40)
    rows = rows - rows.mean(0)
    directions, variances = principal(rows, 6, seed=0)
    _, sizes, axes = torch.linalg.svd(rows, full_matrices=False)
    assert torch.allclose(variances, sizes[:6].square() / 300, rtol=1e-3)
    assert torch.allclose((directions @ axes[:6].T).abs(), torch.eye(6), atol=0.02)
    assert (directions.gather(1, directions.abs().argmax(1, keepdim=True)) > 0).all()


def test_where_nothing_can_be_written_it_is_learnt_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures, no_folder = some(8, 8), tmp_path / "file" / "folder"
    no_folder.parent.write_text("not a folder")
    expected = small_map()(pictures)
    assert np.array_equal(small_map(cache=no_folder)(pictures), expected)
    monkeypatch.setenv("INCROWD_STATE", str(no_folder))
    assert np.array_equal(small_map(cache=tmp_path)(pictures), expected)
    assert list(tmp_path.iterdir()) == [no_folder.parent]


def test_what_takes_long_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "incrowd")
    said = "learning the features of pictures from made-up ones"
    for _ in range(2):
        small_map(cache=tmp_path)(some(8, 8))
    assert caplog.messages == [f"{said}, once on this machine: up to a minute"]
    small_map()(some(8, 8))
    assert caplog.messages[1:] == [f"{said}: up to a minute"]


def test_whitening_divides_by_the_spectrum_of_made_up_pictures() -> None:
    plain, white = (small_map(whitening=power) for power in (0.0, 0.5))
    features = np.concatenate([GreyPictures()(FEW.render(k, shape=(8, 8))) for k in range(12)])
    centred = features - features.mean(0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    for found, power in ((plain, 0.0), (white, 0.5)):
        expected = centred @ axes[:7].T * (sizes[:7] / sizes[0]) ** (-2 * power)
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        got = np.concatenate([found(FEW.render(k, shape=(8, 8))) for k in range(12)])
        assert np.allclose(np.abs(got), np.abs(expected), atol=2e-2)
        assert np.allclose(np.linalg.norm(got, axis=1), 1, atol=1e-4)


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


def test_the_name_tells_maps_apart() -> None:
    names = {small_map(**changed).name for changed in ({}, {"whitening": 0.1}, {"dimensions": 3}, {"shape": (9, 9)})}
    assert len(names) == 4
    assert small_map(cache=Path("somewhere")).name == small_map().name


def test_more_directions_than_made_up_pictures_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"dimensions = 37: give at most 36"):
        small_map(dimensions=37)(some(8, 8))


def test_grey_pictures_and_colours_have_maps_of_their_own() -> None:
    none = OwnPixels(most=0)
    grey, colour = picture_map((28, 28), own=none), picture_map((3, 32, 32), dimensions=9, whitening=0.2, own=none)
    assert isinstance(grey, Whitened)
    assert isinstance(colour, Whitened)
    assert isinstance(grey.base, GreyPictures)
    assert isinstance(colour.base, Mirrored)
    assert isinstance(colour.base.base, ColourPictures)
    assert (grey.whitening, colour.whitening) == (0.5, 0.2)
    for shape, mirrored in (((28, 28), True), ((3, 32, 32), False)):
        told = picture_map(shape, mirrored=mirrored, own=OwnPixels(most=0))
        assert isinstance(told, Whitened)
        assert isinstance(told.base, Mirrored) is mirrored
    assert not grey.pictures.colour
    assert colour.pictures.colour
    assert colour.dimensions == 9


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


@pytest.mark.slow
def test_colours_are_looked_at_by_patches_and_energies(tmp_path: Path) -> None:
    pictures = some(3, 16, 16)
    seen = ColourPictures(cache=tmp_path)
    found = seen(pictures)
    assert np.isfinite(found).all()
    assert np.allclose(seen(pictures[:1])[0], found[0], atol=1e-5)
    assert np.array_equal(seen(pictures.transpose(0, 2, 3, 1).copy()), found)
    assert np.array_equal(ColourPictures(cache=tmp_path)(pictures), found)
