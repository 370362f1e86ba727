"""Things on a blank ground are moved to the middle."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from incrowd.learning.features import GreyPictures
from incrowd.learning.features.centred import centred
from incrowd.learning.features.pictures import as_pictures


def thing(height: int, width: int, channels: int = 1, seed: int = 0) -> Tensor:
    values = 0.3 + 0.7 * np.random.default_rng(seed).random((1, channels, height, width), np.float32)
    return torch.from_numpy(values)


def on_ground(one: Tensor, sides: tuple[int, int], place: tuple[int, int], ground: float = 0.0) -> Tensor:
    height, width = one.shape[2:]
    picture = torch.full((1, one.shape[1], *sides), ground)
    picture[:, :, place[0] : place[0] + height, place[1] : place[1] + width] = one
    return picture


@given(st.integers(1, 11), st.integers(1, 7), st.sampled_from([1, 3]))
def test_where_a_thing_lies_changes_nothing(top: int, left: int, channels: int) -> None:
    one = thing(4, 6, channels)
    found = centred(on_ground(one, (16, 14), (top, left)))
    assert torch.equal(found, centred(on_ground(one, (16, 14), (6, 4))))


def test_what_has_room_is_moved_by_its_mass() -> None:
    one = torch.full((1, 1, 3, 6), 0.25)
    one[..., 0] = 1.0  # of each row's mass 1 + 5 / 4, so it is at 5 / 3 where the middle of the box is at 5 / 2
    found = centred(on_ground(one, (15, 15), (1, 8)))
    assert torch.equal(found, on_ground(one, (15, 15), (6, 5)))


@pytest.mark.parametrize(("place", "expected"), [((1, 1), (1, 3)), ((1, 5), (1, 4)), ((1, 4), (1, 4))])
def test_what_has_little_room_is_moved_by_its_box(place: tuple[int, int], expected: tuple[int, int]) -> None:
    one = thing(10, 5)
    one[..., 0] = 8.0
    one[..., 1:] += 2.0
    assert torch.equal(centred(on_ground(one, (12, 12), place)), on_ground(one, (12, 12), expected))


@pytest.mark.parametrize("ground", [0.0, 0.55, 1.0])
def test_the_ground_may_be_of_any_brightness(ground: float) -> None:
    one = torch.full((1, 1, 3, 3), 0.3)
    found = centred(on_ground(one, (11, 11), (1, 7), ground))
    assert torch.equal(found, on_ground(one, (11, 11), (4, 4), ground))


def test_what_fills_its_frame_stays() -> None:
    picture = thing(12, 9, 3)
    assert torch.equal(centred(picture), picture)


def test_a_blank_picture_stays() -> None:
    picture = torch.full((2, 1, 8, 8), 0.3)
    assert torch.equal(centred(picture), picture)


@pytest.mark.parametrize(("width", "moves"), [(3, True), (6, False)])
def test_what_touches_much_of_the_edge_stays(width: int, moves: bool) -> None:
    picture = on_ground(thing(4, width), (12, 12), (8, 2))  # its last row is part of the 48 pixels of the edge
    assert torch.equal(centred(picture), picture) == (not moves)


def test_what_comes_in_at_the_edge_is_like_the_edge() -> None:
    picture = on_ground(torch.ones(1, 1, 4, 4), (12, 12), (8, 4))
    found = centred(picture)
    assert torch.equal(found[0, 0, :8], picture[0, 0, 4:])
    assert torch.equal(found[0, 0, 8:], picture[0, 0, [11] * 4])


def test_each_picture_is_moved_by_itself() -> None:
    several = torch.cat([on_ground(thing(3, 4, seed=k), (12, 12), (k, 7 - k)) / 6**k for k in range(6)])
    assert torch.equal(centred(several), torch.cat([centred(one[None]) for one in several]))


def test_features_do_not_see_where_a_thing_lies() -> None:
    one = thing(6, 6, 3)
    here, there = (on_ground(one, (12, 12), place).numpy() for place in ((1, 4), (5, 2)))
    assert np.array_equal(GreyPictures()(here[:, 0]), GreyPictures()(there[:, 0]))
    assert torch.equal(as_pictures(here), as_pictures(there))
    assert not np.allclose(GreyPictures()(here[:, 0]), GreyPictures()(here[:, 0, ::-1].copy()))
