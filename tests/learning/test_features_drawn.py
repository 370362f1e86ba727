"""Pictures looked at as drawings, beside all else that is known of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd.learning.features import Beside, Glyphs, from_callable
from incrowd.learning.features.drawn import BrightOnDark, Thin
from incrowd.learning.features.feature_map import Values
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
