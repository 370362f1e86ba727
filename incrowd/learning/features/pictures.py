"""Features of pictures: energies and patches, along the directions in which made-up pictures differ."""

import logging
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from incrowd import _validate
from incrowd._random import SeededRandomness
from incrowd.errors import DataError
from incrowd.learning.features.energies import SecondOrderEnergies
from incrowd.learning.features.feature_map import Named, Values, as_tensor, less_mean, unit
from incrowd.learning.features.patches import MadeUpPictures, PatchResponses
from incrowd.learning.features.transform import evaluate, learnt
from incrowd.types import FeatureMap

_log = logging.getLogger(__name__)

_LARGE = 48  # pixels; larger pictures are reduced by means of whole pixels, as far as both sides allow
_SMALL, _LONG = 6, 192  # pixels a side, after that: the shorter at least, the longer at most
A_PICTURE = (
    f"pictures of {_SMALL} x {_SMALL} pixels or more, [h, w] or three colours, with at most {_LONG} pixels along one "
    f"side for every {_SMALL} along the other"
)
_PATCHED = 16  # pixels a side, from which on grey pictures have patches; smaller ones have too few places for them
_STRETCHED = 0.25  # pixels may leave 0 to 1 by so much: resized pictures do
_PIXELS = 1024  # features at most that a picture's own pixels become
_CUT = 1500  # made-up pictures that patches are cut from
_EXTRA, _PASSES = 64, 2  # directions beyond those that are wanted, and power iterations, of the range finder

PictureShape = tuple[int, ...]


def is_picture(shape: PictureShape) -> bool:
    """Whether examples of this shape are pictures: [h, w], [1, h, w], [3, h, w] or [h, w, 3]."""
    sides = _sides(shape)
    return sides is not None and min(sides) >= _SMALL and max(sides) // _by(sides) <= _LONG


def in_colour(shape: PictureShape) -> bool:
    """Whether they have three colours."""
    return len(shape) == 3 and (shape[0] == 3 or (shape[0] != 1 and shape[2] == 3))


def reduced(shape: PictureShape) -> tuple[int, int]:
    """The sides of pictures of this shape after they were reduced."""
    sides = _sides(shape)
    if sides is None or not is_picture(shape):
        remedy = f"give {A_PICTURE}; or take the recipe general, which takes any numbers"
        raise DataError(f"examples of the shape {shape} are no pictures: {remedy}")
    by = _by(sides)
    return sides[0] // by, sides[1] // by


def as_pictures(values: Values) -> Tensor:
    """Pictures [n, 1 or 3, h, w] with pixels from about 0 to 1, of `reduced` sides.

    A picture whose pixels are far from 0 to 1 (bytes, standardised pixels) is stretched onto that, by itself.
    """
    pictures = as_tensor(values)
    pictures = pictures[:, None] if pictures.ndim == 3 else pictures
    pictures = pictures if pictures.shape[1] in (1, 3) else pictures.permute(0, 3, 1, 2)
    height, width = reduced(tuple(pictures.shape[1:]))
    by = _by((pictures.shape[2], pictures.shape[3]))
    half = pictures.flatten(1) / 2  # so that the range of the largest numbers is finite
    least, most = half.amin(1), half.amax(1)
    far = ((2 * least < -_STRETCHED) | (2 * most > 1 + _STRETCHED)) & least.isfinite() & most.isfinite()
    span = (most - least).clamp_min(torch.finfo(torch.float32).tiny)
    stretched = torch.where(far[:, None], (half - least[:, None]) / span[:, None], pictures.flatten(1))
    return avg_pool2d(stretched.view(pictures.shape), by)[:, :, :height, :width]


@dataclass(frozen=True, kw_only=True)
class GreyPictures(Named):
    """Second-order energies and, from 16 pixels a side on, patches: 6017 features for 28 x 28 pixels."""

    cache: Path | None = field(default=None, repr=False)

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        pictures = as_pictures(values)
        grey: Values = pictures[:, 0].numpy()
        stride = 4 if max(grey.shape[1:]) > 16 else 2
        groups = [SecondOrderEnergies(stride=stride)(grey)]
        if min(grey.shape[1:]) >= _PATCHED:
            groups.append(0.5 * self._patches(pictures.numpy()))
        return np.concatenate(groups, axis=1)

    @cached_property
    def _patches(self) -> PatchResponses:
        return PatchResponses(pictures=MadeUpPictures(count=_CUT), directions=64, cache=self.cache)


@dataclass(frozen=True, kw_only=True)
class ColourPictures(Named):
    """The mean of a picture's and its mirror image's patches, bit for bit: 6400 features for 32 x 32 pixels."""

    cache: Path | None = field(default=None, repr=False)

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        pictures = as_pictures(values).contiguous()
        found: Values = (self._patches(pictures.numpy()) + self._patches(pictures.flip(3).numpy())) * np.float32(0.5)
        return found

    @cached_property
    def _patches(self) -> PatchResponses:
        return PatchResponses(pictures=MadeUpPictures(count=_CUT, colour=True, blank=0.1), cache=self.cache)


@dataclass(frozen=True, kw_only=True)
class Whitened:
    """The features of `base`, seen along the `dimensions` leading principal directions of made-up pictures of this
    `shape`, each divided by its standard deviation to the power of 2 `whitening`; L2 norm 1.

    A few directions have most of the variance, and classes differ along the others as well: under noise of equal
    strength in all directions each then counts. Learning the directions costs no privacy and takes seconds; with
    `cache`, a folder, they are kept. On machines with other linear algebra the last digits can differ.
    """

    base: FeatureMap
    shape: tuple[int, int]
    pictures: MadeUpPictures
    dimensions: int = 256
    whitening: float = 0.4
    cache: Path | None = None

    def __post_init__(self) -> None:
        _validate.count(dimensions=self.dimensions)
        _validate.non_negative(whitening=self.whitening)

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        settings = (self.shape, self.pictures, self.dimensions, self.whitening)
        return f"Whitened({self.base.name}; {', '.join(map(str, settings))})"

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        centre, directions = self._learnt
        projected: Values = unit((as_tensor(self.base(values)) - centre) @ directions).numpy()
        return projected

    @cached_property
    def _learnt(self) -> tuple[Tensor, Tensor]:
        """The mean features [d], and the directions [d, dimensions] over what they are divided by."""
        key = f"spectrum {self.base.name} {self.shape} {self.pictures} {self.dimensions}"
        found = learnt(self.cache, key, self._spectrum)
        variances = torch.from_numpy(found[1:]).norm(dim=1)
        directions = torch.from_numpy(found[1:]) / variances[:, None]
        return torch.from_numpy(found[0]), (directions.T * (variances / variances[0]) ** -self.whitening).contiguous()

    def _spectrum(self) -> Values:
        """One array: the mean features, and below each direction times its variance, at most as many as features."""
        kept = "" if self.cache is None else ", once on this machine"
        _log.info("learning the features of pictures from made-up ones%s: up to a minute", kept)

        def source(rows: slice) -> Values:
            return self.pictures.render(range(rows.start, rows.stop), shape=self.shape)

        features = evaluate(self.base, source, self.pictures.count, chunk=8)
        centre = features.mean(axis=0, dtype=np.float64).astype(np.float32)
        directions, variances = _principal(as_tensor(features - centre), self.dimensions, seed=self.pictures.seed)
        found: Values = torch.cat([torch.from_numpy(centre)[None], directions * variances[:, None]]).numpy()
        return found


@dataclass(frozen=True, kw_only=True)
class WithPixels:
    """The features of `base` and, with the share `raw`, the pixels less their mean, or 1,024 random sums of them."""

    base: FeatureMap
    raw: float

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return f"WithPixels({self.base.name}; {self.raw})"

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        flat = less_mean(as_tensor(values).flatten(1))
        if flat.shape[1] > _PIXELS:
            stream = SeededRandomness(0).stream("pixels")
            order = torch.from_numpy(stream.bits(flat.shape[1]).argsort(kind="stable"))
            signs = torch.from_numpy(stream.normals(flat.shape[1])).sign().float()
            flat = flat.new_zeros(len(flat), _PIXELS).index_add_(1, order % _PIXELS, flat * signs)
        seen = as_tensor(self.base(values)) * math.sqrt(1 - self.raw)
        both: Values = torch.cat([seen, unit(flat) * math.sqrt(self.raw)], dim=1).numpy()
        return both


def picture_map(shape: PictureShape, *, dimensions: int = 256, cache: Path | None = None) -> FeatureMap:
    """The features of pictures of this shape, grey or in colours, along so many directions."""
    colour = in_colour(shape)
    base: FeatureMap = ColourPictures(cache=cache) if colour else GreyPictures(cache=cache)
    made_up = MadeUpPictures(count=4500, colour=colour, blank=0.1 if colour else 0.5)
    power, raw = (0.3, 0.03) if colour else (0.4, 0.01)
    known = Whitened(
        base=base, shape=reduced(shape), pictures=made_up, dimensions=dimensions, whitening=power, cache=cache
    )
    return WithPixels(base=known, raw=raw)


def _principal(rows: Tensor, count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """The leading principal directions [count, d] of centred rows [n, d] and the variances along them.

    By a randomised range finder with power iterations (Halko, Martinsson, Tropp 2011, algorithm 4.4); the largest
    number of each direction is positive.
    """
    width = min(count + _EXTRA, *rows.shape)
    normals = SeededRandomness(seed).stream("directions").normals(rows.shape[1] * width)
    basis = torch.from_numpy(normals.reshape(rows.shape[1], width).astype(np.float32))
    for _ in range(_PASSES + 1):
        basis, _ = torch.linalg.qr(rows.T @ torch.linalg.qr(rows @ basis)[0])
    _, sizes, axes = torch.linalg.svd(rows @ basis, full_matrices=False)
    directions = (axes[:count] @ basis.T).contiguous()
    largest = directions.abs().argmax(1, keepdim=True)
    return directions * directions.gather(1, largest).sign(), sizes[:count].square() / len(rows)


def _sides(shape: PictureShape) -> tuple[int, int] | None:
    """Height and width, or None."""
    if len(shape) == 2:
        return shape[0], shape[1]
    if len(shape) == 3 and shape[0] in (1, 3):
        return shape[1], shape[2]
    return (shape[0], shape[1]) if len(shape) == 3 and shape[2] in (1, 3) else None


def _by(sides: tuple[int, int]) -> int:
    """The side of the squares whose means make pictures small enough, and leave long ones two sides."""
    return max(1, min(math.ceil(max(sides) / _LARGE), min(sides) // _SMALL))
