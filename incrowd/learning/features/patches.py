"""Responses of small patches to directions that were learnt from made-up pictures."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import unfold

from incrowd import _validate
from incrowd._random import SeededRandomness, Stream
from incrowd.learning.features import cache as disk
from incrowd.learning.features.feature_map import Values, as_tensor
from incrowd.learning.features.made_up import MadeUpPictures

_FLOOR = 10 / 255  # the least that a patch's contrast is divided by
_LEAST_CONTRAST = 0.02  # patches with less teach nothing
_OF_EACH = 60  # patches of a picture, of which directions are learnt
_RIDGE = 0.1  # relative to the mean variance
_PASSES = 12  # of k-means; more change nothing
_SHAPE = (32, 32)  # pictures that patches are cut from


@dataclass(frozen=True, kw_only=True)
class PatchResponses:
    """How strongly patches around each place point along so many directions, or against them.

    A patch is taken less its mean and over its contrast, whitened, and seen along directions that spherical k-means
    found in made-up pictures (Coates and Ng 2012). The excess over a threshold is averaged around `grid` x `grid`
    places, and divided by its norm there. For pictures [channels, h, w]. The directions are learnt at the first use, in
    seconds; with `cache`, a folder, they are kept.
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

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return repr(self)

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
        found = disk.learnt(self.cache, self.name, lambda: self._learn().numpy())
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
