"""Pictures whose pixels are not between 0 and 1 are stretched onto that."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from incrowd.learning.features.stretched import stretched

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
