"""What to do about pictures that are none: their pixels, where neighbours are no more alike than any others."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from incrowd import _validate
from incrowd._random import SeededRandomness
from incrowd.learning.features.centred import how_far
from incrowd.learning.features.feature_map import FeatureMap, Values
from incrowd.learning.features.images import as_tensor
from incrowd.learning.features.norms import less_mean, unit
from incrowd.learning.features.pictures import PictureShape, channels_first, in_colour, sides_of, smaller

MOVED = 0.3
"""Of the square of its length, what the pixels have at most of an example whose thing was moved."""

_FAR = 0.05, 0.25  # of a side: what people put in the middle lies a pixel beside it
_NONE, _CERTAIN = 1.0, 3.0  # standard errors of the alikeness of pixels in random order


@dataclass(frozen=True, kw_only=True)
class PicturesOrPixels:
    """The features of `base` for a picture of this `shape`; for what is none, its pixels less their mean; L2 norm 1.

    Numbers in the form of a picture need not be one: pixels in a secret order, columns of a table. What is known of
    pictures misleads then. Each example shows it by itself: its neighbouring pixels are no more alike than any two
    (Geary 1954). Such an example has zeros in place of the base's features, and its pixels in more features, which
    are zero for all others: as many as there are pixels, or `pixels` random sums of them. In between, both fade.

    A thing on a blank ground is looked at in the middle, so where it lay would be lost. Of an example whose thing lay
    far from there, pixels have `moved` of the square of its length, of one that lay nearer less, and of every picture
    at least `raw`: what nobody knew of pictures can be learnt from them, if slowly.

    Guarantee: each example decides for itself, so one cannot change how others are seen. Where no example is in
    disorder or moved and `raw` is 0, a linear model of both is that of the base's features alone.

    Edge cases: an example whose pixels are all the same, or too large for float32 to hold their squares, has the base's
    features alone, for so much of its length as a picture has.
    """

    base: FeatureMap
    shape: PictureShape
    pixels: int = 1024
    moved: float = MOVED
    raw: float = 0.0

    def __post_init__(self) -> None:
        _validate.count(pixels=self.pixels)
        _validate.non_negative(moved=self.moved, raw=self.raw)
        _validate.at_most(1, "all of it", moved=self.moved, raw=self.raw)

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return f"PicturesOrPixels({self.base.name}; {tuple(self.shape)}, {self.pixels}, {self.moved}, {self.raw})"

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        pictures = channels_first(as_tensor(values))
        share = self._share(pictures)[:, None]
        seen = as_tensor(self.base(values))
        flat = pictures.flatten(1)
        pixels = unit(self._summed(less_mean(flat)))
        both: Values = torch.cat([seen * share, pixels * (1 - share.square()).sqrt()], dim=1).numpy()
        return both

    def _share(self, pictures: Tensor) -> Tensor:
        """What of its length each example has in the base's features."""
        plainly = (self.moved * _risen(how_far(smaller(pictures)), *_FAR)).clamp_min(self.raw)
        return _risen(order(pictures), _NONE, _CERTAIN) * (1 - plainly).sqrt()

    def _summed(self, flat: Tensor) -> Tensor:
        """As they are, or in `pixels` sums with random signs."""
        if flat.shape[1] <= self.pixels:
            return flat
        places, signs = self._sums
        return flat.new_zeros(len(flat), self.pixels).index_add_(1, places, flat * signs)

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor]:
        """For each pixel the sum that it belongs to, and its sign in it."""
        height, width = sides_of(self.shape) or (0, 0)
        count = height * width * (3 if in_colour(self.shape) else 1)
        stream = SeededRandomness(0).stream("pixels")
        order = torch.from_numpy(stream.bits(count).argsort(kind="stable"))
        return order % self.pixels, torch.from_numpy(stream.normals(count)).sign().float()


@dataclass(frozen=True, kw_only=True)
class OwnPixels:
    """What there is of an example's own pixels beside the features of pictures.

    What is no picture has at most `most` features of its own (`PicturesOrPixels`); if that is 0, there are none: all is
    taken for pictures. A picture has `raw` of the square of its length there, 0.01, in colours 0.03, and up to `moved`,
    0.3, where its thing was moved.
    """

    most: int = 1024
    raw: float | None = None
    moved: float = MOVED

    def __post_init__(self) -> None:
        _validate.natural(pixels=self.most)
        for name, share in (("raw", self.raw or 0.0), ("moved", self.moved)):
            _validate.non_negative(**{name: share})
            _validate.at_most(1, "all of it", **{name: share})

    def beside(self, base: FeatureMap, shape: PictureShape) -> FeatureMap:
        """The map of both."""
        if not self.most:
            return base
        usual = 0.03 if in_colour(shape) else 0.01
        return PicturesOrPixels(
            base=base,
            shape=shape,
            pixels=self.most,
            raw=usual if self.raw is None else self.raw,
            moved=self.moved,
        )


def order(pictures: Tensor) -> Tensor:
    """How much more alike neighbours are than any two pixels of a picture [n, c, h, w]: 0 on average if they are in
    random order, and in units of the standard error of that.
    """
    down, right = (_squares(pictures.diff(dim=axis)) for axis in (2, 3))
    centred = pictures - pictures.mean(dim=(2, 3), keepdim=True)
    height, width = pictures.shape[2:]
    pairs = (height - 1) * width + height * (width - 1)
    expected = _squares(centred) / (height * width) * 2 * pairs
    found = torch.where(expected > 0, (1 - (down + right) / expected) * math.sqrt(pairs), math.inf)
    return found.nan_to_num_(nan=math.inf, posinf=math.inf)


def _squares(numbers: Tensor) -> Tensor:
    return numbers.square().sum(dim=(1, 2, 3))


def _risen(found: Tensor, first: float, last: float) -> Tensor:
    """0 up to the first number, 1 from the last."""
    return ((found - first) / (last - first)).clamp(0, 1)
