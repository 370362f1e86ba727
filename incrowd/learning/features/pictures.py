"""What is in a picture, grey or in colours, in numbers that know no data set: energies, patches, coarse brightness."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache as once
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from incrowd.errors import DataError
from incrowd.learning.features.centred import centred
from incrowd.learning.features.energies import OrientedEnergies, SecondOrderEnergies
from incrowd.learning.features.feature_map import FeatureMap, Values
from incrowd.learning.features.images import as_tensor
from incrowd.learning.features.made_up import MadeUpPictures
from incrowd.learning.features.patches import PatchResponses, around
from incrowd.learning.features.stretched import stretched

_LARGE = 48  # pixels; larger pictures are reduced by means of whole pixels, as far as both sides allow
_SMALL, _LONG = 6, 192  # pixels a side, as they are looked at: the shorter at least, the longer at most
A_PICTURE = (
    f"pictures of {_SMALL} x {_SMALL} pixels or more, [h, w] or three colours, with at most {_LONG} pixels along one "
    f"side for every {_SMALL} along the other"
)
_PATCHED = 16  # pixels a side, from which on grey pictures have patches; smaller ones have too few places for them
_OPPONENTS = torch.tensor([[0.3, 0.59, 0.11], [0.5, 0.0, -0.5], [-0.25, 0.5, -0.25]])
"""Brightness, red against blue, green against magenta."""

PictureShape = tuple[int, ...]


def is_picture(shape: PictureShape) -> bool:
    """Whether examples of this shape are pictures: [h, w], [1, h, w], [3, h, w] or [h, w, 3]."""
    sides = sides_of(shape)
    return sides is not None and min(sides) >= _SMALL and max(sides) // _by(sides) <= _LONG


def sides_of(shape: PictureShape) -> tuple[int, int] | None:
    """Height and width, or None."""
    if len(shape) == 2:
        return shape[0], shape[1]
    if len(shape) == 3 and shape[0] in (1, 3):
        return shape[1], shape[2]
    if len(shape) == 3 and shape[2] in (1, 3):
        return shape[0], shape[1]
    return None


def in_colour(shape: PictureShape) -> bool:
    """Whether they have three colours."""
    return len(shape) == 3 and (shape[0] == 3 or (shape[0] != 1 and shape[2] == 3))


def reduced(shape: PictureShape) -> tuple[int, int]:
    """The sides of pictures of this shape when they are looked at."""
    sides = sides_of(shape)
    if sides is None or not is_picture(shape):
        raise DataError(
            f"examples of the shape {shape} are no pictures: give {A_PICTURE}; or take the recipe general, which "
            "takes any numbers"
        )
    by = _by(sides)
    return sides[0] // by, sides[1] // by


def _by(sides: Sequence[int]) -> int:
    """Of how many pixels a side a mean is taken, so that pictures are small enough, and long ones have two sides."""
    return max(1, min(math.ceil(max(sides) / _LARGE), min(sides) // _SMALL))


def channels_first(pictures: Tensor) -> Tensor:
    """Pictures [n, 1 or 3, h, w] of any form that `is_picture` knows."""
    if pictures.ndim == 3:
        return pictures[:, None]
    return pictures if pictures.shape[1] in (1, 3) else pictures.permute(0, 3, 1, 2)


def as_pictures(values: Values) -> Tensor:
    """Pictures [n, 1 or 3, h, w] with pixels around 0 to 1, small enough to look at, with what is on a blank ground
    in the middle.
    """
    return centred(smaller(stretched(channels_first(as_tensor(values)))))


def smaller(pictures: Tensor) -> Tensor:
    """Pictures [n, c, h, w] of `reduced` sides: means of whole pixels."""
    height, width = reduced(pictures.shape[1:])
    by = _by(pictures.shape[2:])
    pictures = pictures if by == 1 else avg_pool2d(pictures, by)
    return pictures[:, :, :height, :width]


@dataclass(frozen=True, kw_only=True)
class GreyPictures:
    """Second-order energies, oriented energies, patches, coarse brightness: 6605 features for 28 x 28 pixels.

    Pixels far from 0 to 1 are stretched onto that, and what is on a blank ground is moved to the middle, by whole
    pixels. Pictures of less than 16 pixels a side have
    no patches. What patches are compared with is learnt from made-up pictures, and with `cache`, a folder, kept there.
    """

    cache: Path | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return repr(self)

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        pictures = as_pictures(values)
        groups = _strokes_and_brightness(pictures)
        if _patched(pictures.shape[2:]):
            groups.append(0.5 * _grey_patches(self.cache)(pictures[:, 0].numpy()))
        return np.concatenate(groups, axis=1)

    def count(self, shape: PictureShape) -> int:
        """How many features a picture of this shape has; nothing is learnt for it."""
        blank = as_pictures(np.zeros((1, *shape), np.float32))
        patches = _grey_patches(self.cache).count if _patched(blank.shape[2:]) else 0
        return patches + sum(int(group.shape[1]) for group in _strokes_and_brightness(blank))


def _strokes_and_brightness(pictures: Tensor) -> list[Values]:
    grey: Values = pictures[:, 0].numpy()
    stride = 4 if max(grey.shape[1:]) > 16 else 2
    second = SecondOrderEnergies(stride=stride)(grey)
    first = OrientedEnergies(stride=stride, octave=1 if stride == 4 else 0)(grey)
    return [second, 0.5 * first, 0.1 * _coarse(pictures, 14)]


def _patched(sides: Sequence[int]) -> bool:
    return min(sides) >= _PATCHED


@dataclass(frozen=True, kw_only=True)
class ColourPictures:
    """Patches, energies of brightness and of the two opponent colours, coarse colours: 9664 features for 32 x 32.

    Pixels far from 0 to 1 are stretched onto that, and what is on a blank ground is moved to the middle. What patches
    are compared with is learnt from made-up pictures, and with `cache`, a folder, kept there.
    """

    cache: Path | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return repr(self)

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        pictures = as_pictures(values)
        opponents = torch.einsum("kc,nchw->nkhw", _OPPONENTS, pictures)
        stride = 4 if max(pictures.shape[2:]) > 16 else 2
        fine, coarse = (OrientedEnergies(octave=octave, stride=stride, floor=0.04) for octave in (0, 1))
        weighted: tuple[tuple[float, FeatureMap], ...] = ((0.15, fine), (0.3, coarse))
        groups = [0.25 * _colour_patches(self.cache)(pictures.numpy()), 0.1 * _coarse(opponents * _AS_BRIGHT, 8)]
        for channel in range(3):
            one: Values = opponents[:, channel].contiguous().numpy()
            groups += [weight * energies(one) for weight, energies in weighted]
        return np.concatenate(groups, axis=1)


@once
def _grey_patches(folder: Path | None) -> PatchResponses:
    """Learnt once in a process."""
    pictures = MadeUpPictures(blank=0.5, variants=2)
    return PatchResponses(pictures=pictures, directions=64, of_each=240, cache=folder)


@once
def _colour_patches(folder: Path | None) -> PatchResponses:
    return PatchResponses(cache=folder)


_AS_BRIGHT = torch.tensor([1.0, 2.0, 2.0])[:, None, None]  # colours differ less than brightness


def _coarse(pictures: Tensor, places: int) -> Values:
    """Means around so many places a side, at most half of the pixels."""
    height, width = pictures.shape[2:]
    by_row, by_column = (around(side, min(places, side // 2)) for side in (height, width))
    flat: Values = (by_row @ pictures @ by_column.T).flatten(1).numpy()
    return flat
