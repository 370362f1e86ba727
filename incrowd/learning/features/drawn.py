"""Pictures looked at as drawings, beside all else that is known of pictures."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from incrowd import _validate
from incrowd.errors import ConfigError
from incrowd.learning.features.beside import Beside
from incrowd.learning.features.feature_map import FeatureMap, Values, compose
from incrowd.learning.features.images import as_tensor
from incrowd.learning.features.pictures import PictureShape, channels_first, in_colour, reduced, smaller
from incrowd.learning.features.stretched import stretched
from incrowd.learning.features.strokes import UsualStrokes, stroke_map

_VISIBLE = 0.2  # of the largest difference from the ground


@dataclass(frozen=True, kw_only=True)
class AsDrawings:
    """How much of a grey picture is what it would be as a drawing by hand: straightened strokes and corners, along so
    many `dimensions` that tell random drawings apart, have a `share` of the square of its length if it is `Thin`.
    """

    share: float = 0.5
    dimensions: int = 128

    def __post_init__(self) -> None:
        _validate.positive(drawn=self.share)
        _validate.below_one(drawn=self.share)
        _validate.count(drawn_dimensions=self.dimensions)

    def beside(self, base: FeatureMap, shape: PictureShape, *, cache: Path | None = None) -> FeatureMap:
        """The map of both, for pictures of this shape.

        Edge cases: pictures in colours, and more directions than strokes: refused.
        """
        if in_colour(shape):
            remedy = f"drawings are grey, these pictures are {shape}: leave it out"
            raise ConfigError(field="drawn", value=self.share, remedy=remedy)
        strokes = UsualStrokes(shape=reduced(shape))
        if self.dimensions > strokes.count:
            remedy = f"give at most {strokes.count}, the number of strokes in a picture of this size"
            raise ConfigError(field="drawn_dimensions", value=self.dimensions, remedy=remedy)
        along = stroke_map(strokes.shape, dimensions=self.dimensions, cache=cache, **strokes.settings)
        return Beside(first=base, second=compose(BrightOnDark(), along), share=self.share, suits=Thin())


@dataclass(frozen=True, kw_only=True)
class Thin:
    """How much a grey picture looks like a drawing [n, 1]: 1 if at most `little` of it is something else than its
    ground, the median of its edge, 0 from `much` on. Strokes of a pen are in a fifth of the pixels, clothes in half.

    Guarantee: each picture decides for itself, bit for bit.
    """

    little: float = 0.25
    much: float = 0.4

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return repr(self)

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        pictures = _small(values)
        apart = (pictures - _edges(pictures).median(1).values[:, None, None]).abs()
        there = (apart > _VISIBLE * apart.amax((1, 2), keepdim=True)).float().mean((1, 2))
        found: Values = ((self.much - there) / (self.much - self.little)).clamp(0, 1)[:, None].numpy()
        return found


@dataclass(frozen=True, kw_only=True)
class BrightOnDark:
    """Grey pictures of any form as [n, h, w], small enough to look at, from the darkest pixel on; of those that are
    brighter along their edges than on the whole, what is dark is bright, from the brightest pixel on.

    Where strokes begin and end is found by how bright they are, so a dark ground has to be told from a bright one.

    Guarantee: each picture decides for itself.
    """

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return repr(self)

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        pictures = _small(values)
        flat = pictures.flatten(1)
        on_the_whole = flat.mean(1, dtype=torch.float64)  # in which a sum in any order is the same
        bright = _edges(pictures).median(1).values > on_the_whole
        found = torch.where(bright[:, None], flat.amax(1, keepdim=True) - flat, flat - flat.amin(1, keepdim=True))
        seen: Values = found.view(pictures.shape).numpy()
        return seen


def _small(values: Values) -> Tensor:
    """Grey pictures of any form as [n, h, w] with pixels around 0 to 1, small enough to look at."""
    return smaller(stretched(channels_first(as_tensor(values))))[:, 0]


def _edges(pictures: Tensor) -> Tensor:
    return torch.cat([pictures[:, 0], pictures[:, -1], pictures[:, :, 0], pictures[:, :, -1]], dim=1)
