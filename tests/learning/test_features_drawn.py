"""Pictures looked at as drawings, beside all else that is known of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd.errors import ConfigError
from incrowd.learning.features import AsDrawings, Beside, GlyphMetric, Glyphs, from_callable, stroke_map
from incrowd.learning.features.drawn import BrightOnDark, Thin
from incrowd.learning.features.feature_map import Composed, Values
from incrowd.learning.features.strokes import UsualStrokes
from incrowd.runs.build import feature_map_of
from incrowd.runs.config import PictureFeatures

SHAPE = (8, 8)
FIRST = from_callable(lambda one: one.reshape(len(one), -1)[:, :3], name="first")
SECOND = from_callable(lambda one: one.reshape(len(one), -1)[:, 3:5], name="second")
SUITS = from_callable(lambda one: one.reshape(len(one), -1)[:, 5:6], name="suits")


def drawings(count: int = 1, *, shape: tuple[int, int] = SHAPE) -> Values:
    made = Glyphs(count=count, variants=3)
    return np.concatenate([made.render(number, shape=shape) for number in range(count)])


def test_the_second_way_has_its_share_of_the_square_of_the_length() -> None:
    rows = np.zeros((3, 6), np.float32)
    rows[:, [0, 4]] = 1
    rows[:, 5] = [1, 0.5, 0]
    found = Beside(first=FIRST, second=SECOND, share=0.2, suits=SUITS)(rows)
    expected = [[np.sqrt(1 - one), 0, 0, 0, np.sqrt(one)] for one in (0.2, 0.1, 0.0)]
    assert np.allclose(found, expected)
    assert found.dtype == np.float32


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_is_more_than_nothing_and_less_than_all(share: float) -> None:
    with pytest.raises(ConfigError, match="share"):
        Beside(first=FIRST, second=SECOND, share=share, suits=SUITS)
    with pytest.raises(ConfigError, match="drawn"):
        AsDrawings(share=share)


def test_the_name_says_what_both_depend_on() -> None:
    one = Beside(first=FIRST, second=SECOND, share=0.2, suits=SUITS)
    changed: list[dict[str, Any]] = [{"first": SECOND}, {"second": FIRST}, {"share": 0.3}, {"suits": FIRST}]
    assert len({made.name for made in (one, *(replace(one, **each) for each in changed))}) == 5


@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8)])
def test_strokes_of_a_drawing_are_those_of_handwriting(shape: tuple[int, ...]) -> None:
    pictures = drawings()
    pictures -= pictures.min(axis=(1, 2), keepdims=True)
    found = AsDrawings(share=0.25, dimensions=5).beside(FIRST, shape)(pictures.reshape(3, *shape))
    alone = stroke_map(SHAPE, stroke_width=2, stride=2, deskew=True, dimensions=5)(pictures)
    suits = Thin()(pictures)
    assert suits.min() > 0.2
    assert np.allclose(found[:, -5:], 0.5 * np.sqrt(suits) * alone, atol=1e-6)
    assert np.allclose(np.square(found[:, -5:]).sum(1), 0.25 * suits[:, 0])


def test_a_negative_is_the_same_drawing() -> None:
    pictures = np.round(drawings(3) * 255) / np.float32(256)
    assert np.array_equal(BrightOnDark()(1 - pictures), BrightOnDark()(pictures))
    assert np.array_equal(Thin()(1 - pictures), Thin()(pictures))
    assert BrightOnDark()(pictures).min() == 0


@pytest.mark.parametrize(("columns", "suits"), [(0, 1.0), (2, 1.0), (3, 1 / 6), (4, 0.0), (6, 0.0)])
def test_who_has_much_beside_the_ground_is_no_drawing(columns: int, suits: float) -> None:
    pictures = np.full((2, 8, 8), 0.4, np.float32)
    pictures[:, :, 1 : 1 + columns] = [[[0.9]], [[0.1]]]
    pictures[:, 0, 1 : 1 + columns] += 0.01  # hardly visible
    assert Thin()(pictures) == pytest.approx(np.full((2, 1), suits), abs=1e-6)


def test_each_picture_decides_for_itself_whether_it_is_a_drawing() -> None:
    noise = np.random.default_rng(0).random((3, *SHAPE)).astype(np.float32)
    pictures = np.concatenate([drawings(2), 9 * noise, 0.1 * drawings(2)])
    together = Thin()(pictures)
    assert np.array_equal(together, [Thin()(one[None])[0] for one in pictures])
    assert together[:6].min() > together[6:9].max() == 0


def test_each_picture_decides_for_itself_whether_its_ground_is_dark() -> None:
    dim = np.float32(0.2) * (1 - drawings(2))
    pictures = np.concatenate([drawings(2), 1 - drawings(2), dim, np.full((1, *SHAPE), 0.3, np.float32)])
    together, alone = BrightOnDark()(pictures), [BrightOnDark()(one[None])[0] for one in pictures]
    assert np.array_equal(together, alone)
    assert not together[-1].any()


@pytest.mark.parametrize("scale", [1.0, 255.0, 3e38])
def test_a_drawing_is_the_same_on_any_scale_that_goes_beyond_one(scale: float) -> None:
    stroke = np.zeros((1, 8, 8), np.float32)
    stroke[0, 2:6, 3] = 1
    larger = np.float32(scale) * (2 * stroke - 1)  # of endless range, where float32 ends
    beside = AsDrawings(dimensions=3).beside(FIRST, SHAPE)
    assert Thin()(larger) == pytest.approx(Thin()(stroke))
    assert np.allclose(beside(larger)[:, 3:], beside(stroke)[:, 3:], atol=1e-6)


def test_large_pictures_are_looked_at_as_their_means() -> None:
    pictures = np.random.default_rng(0).random((2, 60, 60)).astype(np.float32)
    assert BrightOnDark()(pictures).shape == (2, 30, 30)
    found = AsDrawings(dimensions=3).beside(FIRST, (60, 60))
    assert isinstance(found, Beside)
    assert isinstance(found.second, Composed)
    along = found.second.stages[-1]
    assert isinstance(along, GlyphMetric)
    assert along.shape == (30, 30)


@pytest.mark.parametrize("shape", [(8, 8), (6, 11), (17, 20), (28, 28)])
def test_strokes_are_counted_without_looking_for_them(shape: tuple[int, int]) -> None:
    usual = UsualStrokes(shape=shape)
    found = stroke_map(shape, **usual.settings)(np.random.default_rng(0).random((1, *shape)).astype(np.float32))
    assert found.shape[1] == usual.count


def test_more_directions_than_strokes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"drawn_dimensions = 129: give at most 128, the number of strokes"):
        AsDrawings(dimensions=129).beside(FIRST, SHAPE)
    with pytest.raises(ConfigError, match="drawn_dimensions"):
        AsDrawings(dimensions=0)


@pytest.mark.parametrize("shape", [(3, 8, 8), (8, 8, 3)])
def test_what_is_in_colours_is_no_drawing(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"drawn = 0\.5: drawings are grey"):
        AsDrawings().beside(FIRST, shape)


@pytest.mark.slow
def test_settings_say_how_much_of_a_picture_is_a_drawing(tmp_path: Path) -> None:
    def seen(**changed: Any) -> Values:
        wanted = PictureFeatures(dimensions=6, pixels=0, cache=str(tmp_path), **changed)
        found: Values = feature_map_of(wanted, SHAPE, None)(drawings())
        return found

    plain, both = seen(), seen(drawn=0.36, drawn_dimensions=4)
    assert (
        both.shape[1] == plain.shape[1] + 4 == PictureFeatures(dimensions=6, drawn=0.36, drawn_dimensions=4).known + 1
    )
    share = 0.36 * Thin()(drawings())
    assert np.allclose(both[:, :6], np.sqrt(1 - share) * plain[:, :6], atol=1e-6)
    assert np.allclose(np.square(both[:, 6:10]).sum(1), share[:, 0] * np.square(both[:, :10]).sum(1), atol=1e-5)
    assert PictureFeatures(dimensions=6).known == 6
