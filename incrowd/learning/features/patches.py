"""Responses of small patches to directions that were learnt from made-up pictures."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import unfold

from incrowd import _validate
from incrowd._random import Floats, SeededRandomness, Stream
from incrowd.learning.features.feature_map import Named, Shape, Values, as_tensor
from incrowd.learning.features.transform import learnt

_GREY = np.array([0.3, 0.59, 0.11])
_POWERS = (1.2, 2.0, 2.0, 4.0, 8.0)  # a superellipse is a star, an ellipse, or nearly a rectangle
_LEAVES = 0.25  # of all pictures


@dataclass(frozen=True, kw_only=True)
class MadeUpPictures:
    """A public collection of `count` pictures, in colours or in grey; `blank` is the share whose ground is black.

    Guarantee: the pictures follow from `seed` alone, which is public; fewer pictures are the first of more.
    """

    count: int = 9000
    colour: bool = False
    blank: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.count(count=self.count)
        _validate.natural(seed=self.seed)
        _validate.non_negative(blank=self.blank)
        _validate.at_most(1, "all", blank=self.blank)

    def render(self, numbers: range, *, shape: Shape) -> Values:
        """Some pictures between 0 and 1: [n, height, width], or [n, 3, height, width]."""
        pictures = np.stack([self._one(number, shape) for number in numbers])
        found = pictures.transpose(0, 3, 1, 2) if self.colour else pictures @ _GREY
        return np.ascontiguousarray(found, np.float32)

    def _one(self, number: int, shape: Shape) -> Floats:
        stream = SeededRandomness(self.seed).stream("pictures", number)
        rows, columns = ((np.arange(side) + 0.5 - side / 2) / max(shape) for side in shape)
        y, x = rows[:, None], columns[None]
        black, leaves = _uniform(stream) < self.blank, _uniform(stream) < _LEAVES
        slope = 0.3 * stream.normals(2)
        ground = np.zeros((*shape, 3)) if black else _colour(stream, 0.0) + (slope[0] * y + slope[1] * x)[..., None]
        if leaves:
            things: list[dict[str, Any]] = [{"sizes": (0.03, 0.5), "tail": 2.0}] * int(15 + 45 * _uniform(stream))
        else:
            count, behind = int(1 + 8 * _uniform(stream)), int(12 * _uniform(stream)) * (not black)
            low = 0.25 if black else 0.0  # things on black are bright
            things = [{"sizes": (0.05, 0.4), "tail": 1.5}] * behind
            things += [{"sizes": (0.06, 0.38), "tail": 0.7, "middle": True, "darkest": low}] * count
        for thing in things:
            _paint(ground, y, x, stream, **thing)
        return np.clip(ground, 0, 1)


def _uniform(stream: Stream, low: float = 0.0, high: float = 1.0) -> float:
    return low + (high - low) * float(stream.bits(1)[0] >> np.uint64(11)) * 2.0**-53


def _colour(stream: Stream, darkest: float) -> Floats:
    """A colour [3], more different in red and blue than in green."""
    warm, green = stream.normals(2) * [0.12, 0.06]
    grey = _uniform(stream, darkest)
    found: Floats = grey + warm * np.array([1, 0, -1]) + green * np.array([-0.5, 1, -0.5])
    return found


def _paint(
    picture: Floats,
    y: Floats,
    x: Floats,
    stream: Stream,
    *,
    sizes: tuple[float, float],
    tail: float,
    middle: bool = False,
    darkest: float = 0.0,
) -> None:
    """Paint a random superellipse on [h, w, 3]; y and x are in widths from its middle, sizes follow a power law."""
    smallest, largest = (size**-tail for size in sizes)
    size = (smallest + _uniform(stream) * (largest - smallest)) ** (-1 / tail)
    aspect, tilt, strength = stream.normals(3) * [0.5, 0.15, 0.12]
    upright = np.pi / 2 * (_uniform(stream) < 0.5) + tilt
    centre = 0.14 * stream.normals(2) if middle else [_uniform(stream, -0.6, 0.6) for _ in range(2)]
    wide, high = size * np.exp([aspect, -aspect])
    angle = upright if _uniform(stream) < 0.5 else _uniform(stream, high=np.pi)
    power = _POWERS[int(len(_POWERS) * _uniform(stream))]
    colour, slope = _colour(stream, darkest), 0.5 * stream.normals(2)
    frequency = np.exp(_uniform(stream, np.log(10), np.log(100)))
    direction, phase = _uniform(stream, high=np.pi), _uniform(stream, high=2 * np.pi)
    strength = abs(strength) * (_uniform(stream) < 0.6)

    cos, sin = np.cos(angle), np.sin(angle)
    across = sin * (y - centre[0]) + cos * (x - centre[1])
    along = cos * (y - centre[0]) - sin * (x - centre[1])
    out = np.minimum(np.abs(across / wide), 3) ** power + np.minimum(np.abs(along / high), 3) ** power
    edge = (1 - out ** (1 / power)) * min(wide, high) * max(picture.shape[:2]) / 1.2
    wave = strength * np.sin(frequency * (np.cos(direction) * across + np.sin(direction) * along) + phase)
    shade = slope[0] * along + slope[1] * across + wave
    picture += np.clip(edge + 0.5, 0, 1)[..., None] * (colour + shade[..., None] - picture)


_FLOOR = 10 / 255  # the least that a patch's contrast is divided by
_LEAST_CONTRAST = 0.02  # patches with less teach nothing
_OF_EACH = 60  # patches of a picture, of which directions are learnt
_RIDGE = 0.1  # relative to the mean variance
_PASSES = 12  # of k-means; more change nothing
_SHAPE = (32, 32)  # pictures that patches are cut from


@dataclass(frozen=True, kw_only=True)
class PatchResponses(Named):
    """How strongly patches around each place of pictures [channels, h, w] point along directions, or against them.

    A patch, less its mean and over its contrast, is whitened and seen along directions that spherical k-means found in
    made-up pictures (Coates and Ng 2012). The excess over a threshold is averaged around `grid` x `grid` places, and
    divided by its norm there. The directions are learnt at the first use, and kept in `cache`, a folder.
    """

    pictures: MadeUpPictures
    directions: int = 200
    side: int = 6
    grid: int = 4
    threshold: float = 0.5
    cache: Path | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _validate.count(directions=self.directions, side=self.side, grid=self.grid)
        _validate.non_negative(threshold=self.threshold)

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        pictures = as_tensor(values)
        filters, offset = self._learnt
        rows, columns = (side - self.side + 1 for side in pictures.shape[2:])
        responses = _contrasted(unfold(pictures, self.side).transpose(1, 2)) @ filters - offset
        both = torch.cat([(responses - self.threshold).relu_(), (-responses - self.threshold).relu_()], dim=2)
        by_row, by_column = _around(rows, self.grid), _around(columns, self.grid)
        maps = both.view(len(pictures), rows, -1)
        pooled = (by_row @ maps).view(len(pictures) * self.grid, columns, -1)
        found = (by_column @ pooled).view(len(pictures), self.grid * self.grid, -1).sqrt_()
        found /= found.norm(dim=2, keepdim=True) + 0.03 * found.shape[2] ** 0.5
        flat: Values = found.flatten(1).nan_to_num_(nan=0.0).numpy()  # patches without a finite contrast
        return flat

    @cached_property
    def _learnt(self) -> tuple[Tensor, Tensor]:
        """Filters [numbers, directions] and the offset that is subtracted; responses have variance 1."""
        found = learnt(self.cache, self.name, lambda: self._learn().numpy())
        return torch.from_numpy(found[:-1]), torch.from_numpy(found[-1])

    def _learn(self) -> Tensor:
        """Both, one below the other."""
        stream = SeededRandomness(self.pictures.seed).stream("patches")
        patches = torch.cat([self._cut(number, stream) for number in range(self.pictures.count)]).double()
        mean = patches.mean(0)
        centred = patches - mean
        variances, axes = torch.linalg.eigh(centred.T @ centred / len(patches))
        whitening = (axes * (variances.clamp_min(0) + _RIDGE * variances.mean()) ** -0.5) @ axes.T
        white = (centred @ whitening).float()
        directions = _spherical_means(white, self.directions, stream)
        filters = (whitening.float() @ directions.T) / float((white @ directions.T).std())
        return torch.cat([filters, (mean.float() @ filters)[None]])

    def _cut(self, number: int, stream: Stream) -> Tensor:
        """Patches of a made-up picture that have something in them, at random places."""
        picture = as_tensor(self.pictures.render(range(number, number + 1), shape=_SHAPE))
        cut = unfold(picture.view(1, -1, *_SHAPE), self.side)[0].T
        order = np.argsort(stream.bits(len(cut)), kind="stable")[:_OF_EACH]
        chosen = cut[torch.from_numpy(order)]
        return _contrasted(chosen[chosen.std(1, correction=0) > _LEAST_CONTRAST])


def _around(points: int, places: int) -> Tensor:
    """Gaussian means [places, points] around evenly spaced places, half a step wide, of the nearest point at least."""
    step = points / places
    centres = (np.arange(places) + 0.5) * step
    distance = np.abs(np.arange(points) + 0.5 - centres[:, None]) / step
    near = distance <= np.maximum(1.25, distance.min(1, keepdims=True))
    weights = np.where(near, np.exp(-2 * distance**2), 0.0)
    return torch.from_numpy((weights / weights.sum(1, keepdims=True)).astype(np.float32))


def _spherical_means(points: Tensor, count: int, stream: Stream) -> Tensor:
    """Directions [count, numbers] of length 1 such that every point is near the line of one of them."""
    start = np.argsort(stream.bits(len(points)), kind="stable")[:count]
    directions = points[torch.from_numpy(start)]
    for _ in range(_PASSES):
        directions = directions / (directions.norm(dim=1, keepdim=True) + 1e-9)
        along = points @ directions.T
        nearest = along.abs().argmax(1)
        moved = torch.zeros_like(directions).index_add_(0, nearest, points * along.gather(1, nearest[:, None]))
        directions = torch.where(moved.norm(dim=1, keepdim=True) > 1e-6, moved, directions)
    found: Tensor = directions / (directions.norm(dim=1, keepdim=True) + 1e-9)
    return found


def _contrasted(patches: Tensor) -> Tensor:
    """Patches [..., numbers] less their means, over their contrasts."""
    centred = patches - patches.mean(-1, keepdim=True)
    found: Tensor = centred / (centred.square().mean(-1, keepdim=True).sqrt() + _FLOOR)
    return found
