"""Drawings by hand as features: straightened by their moments, along directions that tell random drawings apart.

Pseudo-glyphs are random strokes and arcs, nobody's handwriting, each drawn many times with a shaky hand. How the
renderings of one differ stands for how people's hands differ. `GlyphMetric` is a feature map as anyone can write one.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import scipy.linalg
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample

from harness.arrays import Floats
from incrowd import ConfigError, SeededRandomness
from incrowd._random import Stream
from incrowd.learning.features import FeatureMap
from incrowd.learning.features.feature_map import Shape, Values, as_images, as_tensor, unit
from incrowd.learning.features.transform import evaluate, learnt

_SIDE = 28  # the canvas: strokes have coordinates (row, column) between 0 and 27
_CENTRE = np.array([14.0, 14.0])
_LOW, _HIGH = np.array([4.0, 6.0]), np.array([24.0, 22.0])
_JOINTS = 6  # of a stroke, which the hand moves
_DOTS = 28  # of the pen, for each stroke


@dataclass(frozen=True, kw_only=True)
class Glyphs:
    """An endless, public alphabet: `count` shapes, each in `variants` renderings.

    A glyph has one to three strokes, a third of them arcs. A rendering moves the joints of every stroke, transforms the
    whole glyph (affine, about 13 %) and takes a pen of another thickness.

    Guarantee: the images follow from `seed` alone, which is public; fewer glyphs are the first of more.
    """

    count: int = 600
    variants: int = 50
    seed: int = 0

    def render(self, number: int, *, shape: Shape) -> Values:
        """Images [variants, height, width] of one glyph, white (1) on black (0), as large as the image allows."""
        stream = SeededRandomness(self.seed).stream("glyphs", number)
        strokes = draw_strokes(stream)
        dots, radius = _renderings(stream, strokes, self.variants)
        images: Values = inked(dots, radius, shape).numpy()
        return images


def draw_strokes(stream: Stream) -> list[Floats]:
    """The joints [6, 2] of each stroke."""
    strokes: list[Floats] = []
    for _ in range(1 + math.floor(3 * _uniform(stream))):
        points = _arc(stream) if _uniform(stream) < 0.35 else _walk(stream, strokes)
        strokes.append(_resampled(np.clip(points, _LOW, _HIGH), _JOINTS))
    return strokes


def _arc(stream: Stream) -> Floats:
    """Part of an ellipse, from a fifth of it to all."""
    centre = _CENTRE + stream.normals(2) * [4.5, 2.5]
    radii = np.array([2.5 + 5 * _uniform(stream), 2 + 4 * _uniform(stream)])
    start, span = 2 * math.pi * _uniform(stream), 1.2 + 5.1 * _uniform(stream)
    angles = start + span * np.linspace(0, 1, _JOINTS)
    points: Floats = centre + radii * np.stack([np.sin(angles), np.cos(angles)], axis=1)
    return points


def _walk(stream: Stream, strokes: list[Floats]) -> Floats:
    """Two to five points that keep roughly to one direction; often from where the last stroke ended."""
    joined = strokes and _uniform(stream) < 0.6
    points = [strokes[-1][-1] if joined else _CENTRE + stream.normals(2) * [6.0, 4.0]]
    direction = 2 * math.pi * _uniform(stream)
    for _ in range(1 + math.floor(4 * _uniform(stream))):
        direction += 0.9 * stream.normals(1)[0]
        step = 3 + 5 * _uniform(stream)
        points.append(points[-1] + step * np.array([math.cos(direction), math.sin(direction)]))
    return np.stack(points)


def _renderings(stream: Stream, strokes: list[Floats], variants: int) -> tuple[Floats, Floats]:
    """Dots of the pen [variants, dots, 2] and its radius [variants]."""
    radius = 0.7 + 0.9 * np.array([_uniform(stream) for _ in range(variants)])
    linear = np.eye(2) + 0.13 * stream.normals(4 * variants).reshape(variants, 2, 2)
    shift = _CENTRE + 0.5 * stream.normals(2 * variants).reshape(variants, 1, 2)
    dots = []
    for stroke in strokes:
        joints = stroke + 0.96 * stream.normals(2 * _JOINTS * variants).reshape(variants, _JOINTS, 2)
        joints = joints + 0.8 * stream.normals(2 * variants).reshape(variants, 1, 2)
        dots.append(_smooth((joints - _CENTRE) @ linear.transpose(0, 2, 1) + shift))
    return np.concatenate(dots, axis=1), radius


def _resampled(points: Floats, count: int) -> Floats:
    """Points at equal steps of the index along a line of straight pieces."""
    places = np.linspace(0, len(points) - 1, count)
    return np.stack([np.interp(places, np.arange(len(points)), axis) for axis in points.T], axis=1)


def _smooth(joints: Floats) -> Floats:
    """Dots [variants, 28, 2] of a Catmull-Rom curve through the joints [variants, 6, 2]."""
    places = np.linspace(0, _JOINTS - 1, _DOTS)
    start = np.minimum(places.astype(int), _JOINTS - 2)
    u = (places - start)[:, None]
    before, left, right, after = (joints[:, np.clip(start + k, 0, _JOINTS - 1)] for k in (-1, 0, 1, 2))
    curve: Floats = left + 0.5 * u * (
        (right - before)
        + u * ((2 * before - 5 * left + 4 * right - after) + u * (3 * left - before - 3 * right + after))
    )
    return curve


def inked(dots: Floats, radius: Floats, shape: Shape) -> Tensor:
    """Images of the pen's path, 1 within its radius and 0 from 1.2 pixels of the canvas further on."""
    finer = tuple(max(1, math.ceil(_SIDE / side)) for side in shape)  # small images are means of finer ones
    pens = torch.from_numpy(dots.astype(np.float32))
    rows, columns = (
        (torch.arange(side * fine) + 0.5) * (_SIDE / (side * fine)) - 0.5
        for side, fine in zip(shape, finer, strict=True)
    )
    by_row, by_column = (rows - pens[..., :1]).square(), (columns - pens[..., 1:]).square()
    squares = torch.full((len(pens), len(rows), len(columns)), math.inf)
    for dot in range(pens.shape[1]):  # a loop keeps the memory small, and it is faster than one large minimum
        torch.minimum(squares, by_row[:, dot, :, None] + by_column[:, dot, None, :], out=squares)
    distance = squares.sqrt_() - torch.from_numpy(radius.astype(np.float32))[:, None, None]
    return avg_pool2d((1.2 - distance.clamp_min(0)).clamp(0, 1), finer)


def _uniform(stream: Stream) -> float:
    return float(stream.bits(1)[0] >> np.uint64(11)) * 2.0**-53


_BLOCK = 40  # glyphs whose features are held at a time


@dataclass(frozen=True, kw_only=True)
class GlyphMetric:
    """The features of `base`, seen along the `dimensions` directions that tell pseudo-glyphs apart best; L2 norm 1.

    How the renderings of one glyph differ stands for how people's hands differ (covariance W); how glyphs differ stands
    for what there is to tell apart (covariance B). The directions v maximise v'Bv / v'Sv, where
    S = W + ridge * mean variance in W * identity, and v'Sv = 1; features are centred at the mean glyph. This is linear
    discriminant analysis of data that nobody owns: no example of any client is used, so it costs no privacy. It
    is knowledge about handwriting all the same: say so in comparisons.

    The first use learns the directions, which takes seconds (for 3969 features, a minute); with `cache`, a folder, they
    are kept.

    Guarantee: the same settings give the same features on one machine.

    Edge cases: on machines with other linear algebra the last digits can differ, and two directions of almost the same
    worth can be mixed differently. Where clients compute the map themselves, send them `centre` and `directions`.
    """

    base: FeatureMap
    shape: Shape = (28, 28)
    dimensions: int = 64
    glyphs: Glyphs = field(default_factory=Glyphs)
    ridge: float = 1.0
    cache: Path | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.dimensions < self.glyphs.count:
            remedy = f"give from 1 to {self.glyphs.count - 1}, the number of glyphs less one"
            raise ConfigError(field="dimensions", value=self.dimensions, remedy=remedy)

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        settings = (self.shape, self.dimensions, self.glyphs, self.ridge)
        return f"GlyphMetric({self.base.name}; {', '.join(map(str, settings))})"

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        features = as_tensor(self.base(values))
        projected: Values = unit((features - as_tensor(self.centre)) @ as_tensor(self.directions)).numpy()
        return projected

    @property
    def centre(self) -> Values:
        """The mean features of all glyphs [d]."""
        return self._learnt[0]

    @property
    def directions(self) -> Values:
        """The directions as columns [d, dimensions], the best first."""
        return self._learnt[1]

    @cached_property
    def _learnt(self) -> tuple[Values, Values]:
        found = learnt(self.cache, self.name, self._learn)
        return found[0], np.ascontiguousarray(found[1:].T)

    def _learn(self) -> Values:
        """One array: the mean features, and below it each direction."""
        within, means = glyph_statistics(self.base, self.glyphs, self.shape)
        centre = means.mean(axis=0)
        between = means - centre  # a factor would not change the directions
        if self.dimensions > len(centre):
            remedy = f"give at most the number of features, which is {len(centre)}"
            raise ConfigError(field="dimensions", value=self.dimensions, remedy=remedy)
        directions = discriminants(within, between, ridge=self.ridge)[:, : self.dimensions]
        found: Values = np.vstack([centre, directions.T]).astype(np.float32)
        return found


def glyph_statistics(base: FeatureMap, glyphs: Glyphs, shape: Shape) -> tuple[Floats, Floats]:
    """The covariance [d, d] within glyphs and the mean features [glyphs, d] of each."""
    within, means = np.zeros(()), []
    for first in range(0, glyphs.count, _BLOCK):
        features = _features(base, glyphs, range(first, min(first + _BLOCK, glyphs.count)), shape)
        means.append(features.mean(axis=1, dtype=np.float64))
        residuals = torch.from_numpy(features - means[-1][:, None].astype(np.float32)).flatten(0, 1)
        within = within + (residuals.T @ residuals).numpy()  # products in float32, their sum in float64
    return within / (glyphs.count * glyphs.variants), np.concatenate(means)


def _features(base: FeatureMap, glyphs: Glyphs, block: range, shape: Shape) -> Values:
    """Features [glyphs, variants, d] of some glyphs."""

    def source(rows: slice) -> Values:  # one glyph a chunk
        return glyphs.render(block[rows.start // glyphs.variants], shape=shape)

    features = evaluate(base, source, len(block) * glyphs.variants, chunk=glyphs.variants)
    return features.reshape(len(block), glyphs.variants, -1)


def discriminants(within: Floats, between: Floats, *, ridge: float) -> Floats:
    """Directions v as columns, best first, that maximise v'Bv / v'Sv, with v'Sv = 1.

    B = between' between, of rank n for n rows, so a decomposition [d, n] replaces the generalised eigenproblem [d, d].
    The largest number of each direction is positive, which makes its sign unique.
    """
    spread = within + ridge * np.trace(within) / len(within) * np.eye(len(within))
    root = scipy.linalg.cholesky(spread, lower=True)
    whitened = scipy.linalg.solve_triangular(root, between.T, lower=True)
    axes, _, _ = scipy.linalg.svd(whitened, full_matrices=False)
    directions: Floats = scipy.linalg.solve_triangular(root, axes, lower=True, trans="T")
    largest = np.abs(directions).argmax(axis=0)
    directions *= np.sign(directions[largest, np.arange(directions.shape[1])])
    return directions


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

    height: float = 5 / 28
    width: float = 4.5 / 28
    shear: float = 1.2
    height_ratio: Range = (0.6, 1.6)
    width_ratio: Range = (0.3, 1.6)

    @property
    def name(self) -> str:
        """See `FeatureMap.name`."""
        return repr(self)

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        images = as_images(values, None)
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
