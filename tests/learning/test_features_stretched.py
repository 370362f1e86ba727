"""Pictures whose pixels are not between 0 and 1 are stretched onto that."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from incrowd.learning.features import ColourPictures, GreyPictures, stroke_map
from incrowd.learning.features.stretched import Stretched, stretched

SCALES = {"bytes": (255.0, 0.0), "of mean 0": (2.0, -1.0), "standardised": (3.25, -0.42), "far off": (0.001, 5.0)}


def some(*shape: int) -> Tensor:
    """Pictures between 0 and 1, with both in them."""
    values = torch.from_numpy(np.random.default_rng(3).random((4, *shape), np.float32))
    values.flatten(1)[:, 0], values.flatten(1)[:, -1] = 0.0, 1.0
    return values


@pytest.mark.parametrize(("scale", "offset"), SCALES.values(), ids=SCALES)
def test_however_pixels_are_scaled_a_picture_is_the_same(scale: float, offset: float) -> None:
    pictures = some(3, 8, 9)
    assert torch.allclose(stretched(pictures * scale + offset), pictures, atol=1e-3)


@pytest.mark.parametrize(("scale", "offset"), SCALES.values(), ids=SCALES)
def test_so_it_is_for_the_maps_that_know_pictures(scale: float, offset: float) -> None:
    for seen, pictures in ((GreyPictures(), some(8, 8)), (stroke_map((28, 28)), some(28, 28))):
        found, same = seen((pictures * scale + offset).numpy()), seen(pictures.numpy())
        assert np.allclose(found, same, atol=2e-2 * np.abs(same).max())


@pytest.mark.slow
def test_and_in_colours() -> None:
    pictures = some(3, 16, 16)
    found, same = ColourPictures()((pictures * 255).numpy()), ColourPictures()(pictures.numpy())
    assert np.allclose(found, same, atol=1e-2 * np.abs(same).max())


@pytest.mark.parametrize(("least", "largest"), [(0.0, 1.0), (0.4, 0.45), (-0.25, 1.25), (0.0, 0.0)])
def test_what_is_between_0_and_1_or_nearly_so_stays(least: float, largest: float) -> None:
    pictures = least + (largest - least) * some(6, 7)
    assert torch.equal(stretched(pictures), pictures)


@given(st.permutations(range(4)))
def test_each_picture_decides_for_itself(order: list[int]) -> None:
    pictures = torch.cat([some(6, 6)[:2], some(6, 6)[2:3] * 255, some(6, 6)[3:] - 3])
    beside = stretched(pictures[order])
    assert all(torch.equal(beside[place], stretched(pictures[one : one + 1])[0]) for place, one in enumerate(order))
    assert not torch.equal(beside, pictures[order])


def test_pixels_that_are_all_the_same_become_0() -> None:
    assert torch.equal(stretched(torch.full((1, 6, 6), 255.0)), torch.zeros(1, 6, 6))


def test_the_largest_numbers_that_there_are_have_a_range() -> None:
    most = torch.finfo(torch.float32).max
    found = stretched(torch.tensor([[-most, 0.0, most]]))
    assert torch.allclose(found, torch.tensor([[0.0, 0.5, 1.0]]))


@pytest.mark.parametrize("one", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_stays(one: float) -> None:
    pictures = torch.tensor([[9.0, one, 3.0]])
    assert torch.equal(stretched(pictures).nan_to_num(7.0), pictures.nan_to_num(7.0))


def test_what_is_given_is_not_changed() -> None:
    pictures = (some(6, 6) * 255).numpy()
    before = pictures.copy()
    assert not np.array_equal(Stretched()(pictures), before)
    assert np.array_equal(pictures, before)
