"""Things on a blank ground are moved to the middle."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from incrowd.learning.features.centred import centred


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


def test_each_picture_is_moved_by_itself() -> None:
    several = torch.cat([on_ground(thing(3, 4, seed=k), (12, 12), (k, 7 - k)) / 6**k for k in range(6)])
    assert torch.equal(centred(several), torch.cat([centred(one[None]) for one in several]))
