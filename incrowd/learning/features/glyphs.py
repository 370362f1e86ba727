"""Pseudo-glyphs: random strokes and arcs, nobody's handwriting, each drawn many times with a shaky hand."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from incrowd import _validate
from incrowd._random import Floats, SeededRandomness, Stream
from incrowd.learning.features.feature_map import Values
from incrowd.learning.features.images import Shape

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

    def __post_init__(self) -> None:
        _validate.count(count=self.count, variants=self.variants)
        _validate.natural(seed=self.seed)

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
