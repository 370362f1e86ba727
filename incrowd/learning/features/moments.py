"""Moment normalisation: every drawing centred, upright and of similar size."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from incrowd import _validate
from incrowd.errors import ConfigError
from incrowd.learning.features.feature_map import Values
from incrowd.learning.features.images import Shape, as_images, check_shape

_TINY = 1e-6

Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class MomentNormalisation:
    """Moves, shears and scales each image [h, w] by its own moments; bright pixels on a dark ground are the drawing.

    Lengths are fractions of the image's side, so one setting serves all sizes. The centre of mass moves to the centre;
    a shear, at most `shear`, makes rows and columns uncorrelated; then the standard deviations over rows and columns
    move half of the way to `height` and `width` (by the square root of the ratio). A ratio beyond its range counts as
    the end of the range. Pixels are interpolated linearly; those from outside the image are 0.

    Guarantee: an image moved by whole pixels, with nothing cut off, gives the same.

    Edge cases: negative pixels weigh nothing; a blank image stays blank.
    """

    shape: Shape | None = None
    height: float = 5 / 28
    width: float = 4.5 / 28
    shear: float = 1.2
    height_ratio: Range = (0.6, 1.6)
    width_ratio: Range = (0.3, 1.6)

    def __post_init__(self) -> None:
        check_shape(self.shape)
        _validate.positive(height=self.height, width=self.width)
        _validate.non_negative(shear=self.shear)
        for field, (low, high) in (("height_ratio", self.height_ratio), ("width_ratio", self.width_ratio)):
            if not 0 < low <= high:
                raise ConfigError(
                    field=field, value=(low, high), remedy="give the smallest ratio, above 0, and the largest"
                )

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return repr(self)

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        images = as_images(values, self.shape)
        rows, columns = (_places(side) for side in images.shape[1:])
        weights = images.clamp_min(0)
        mass = weights.sum(dim=(1, 2)) + _TINY
        by_row, by_column = weights.sum(dim=2), weights.sum(dim=1)
        y, x = by_row @ rows / mass, by_column @ columns / mass
        dy, dx = rows - y[:, None], columns - x[:, None]
        yy = (by_row * dy.square()).sum(dim=1) / mass
        xx = (by_column * dx.square()).sum(dim=1) / mass
        yx = (torch.bmm(weights, dx[:, :, None])[:, :, 0] * dy).sum(dim=1) / mass
        shear = (yx / (yy + _TINY)).clamp(-self.shear, self.shear)
        sheared_xx = (xx - 2 * shear * yx + shear.square() * yy).clamp_min(0)
        stretch_y = (yy.sqrt() / self.height).clamp(*self.height_ratio).sqrt()
        stretch_x = (sheared_xx.sqrt() / self.width).clamp(*self.width_ratio).sqrt()
        # Where each pixel of the result lies in the image.
        source_y = y[:, None] + stretch_y[:, None] * rows
        source_x = (x[:, None, None] + (shear * stretch_y)[:, None, None] * rows[:, None]) + (
            stretch_x[:, None, None] * columns
        )
        normalised: Values = _sampled(images, source_y, source_x).numpy()
        return normalised


def _places(side: int) -> Tensor:
    """The middles of the pixels, as fractions of the side from the centre."""
    return (torch.arange(side, dtype=torch.float32) + 0.5) / side - 0.5


def _sampled(images: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Images at the places y [n, h] and x [n, h, w], interpolated linearly."""
    places = torch.stack([x, y[:, :, None].expand_as(x)], dim=-1) * 2
    return grid_sample(images[:, None], places, align_corners=False)[:, 0]
