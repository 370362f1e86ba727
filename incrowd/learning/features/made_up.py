"""Made-up pictures: superellipses with gradients and waves on a ground. No real picture is in them.

They stand for pictures in general: edges, corners, gradients and textures of all sizes, things in the middle and leaves
that cover each other, on grounds that are black or smooth.
"""

from dataclasses import dataclass

import numpy as np

from incrowd import _validate
from incrowd._random import Floats, SeededRandomness, Stream
from incrowd.learning.features.feature_map import Shape, Values

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
        dice = _Dice(SeededRandomness(self.seed).stream("pictures", number))
        rows, columns = ((np.arange(side) + 0.5 - side / 2) / max(shape) for side in shape)
        y, x = rows[:, None], columns[None]
        black, leaves = dice.uniform() < self.blank, dice.uniform() < _LEAVES
        slope = dice.normals(2, scale=0.3)
        ground = np.zeros((*shape, 3)) if black else dice.colour(0.0) + (slope[0] * y + slope[1] * x)[..., None]
        if leaves:
            things = [_Thing.drawn(dice, sizes=(0.03, 0.5), tail=2.0) for _ in range(int(15 + 45 * dice.uniform()))]
        else:
            count, behind = int(1 + 8 * dice.uniform()), int(12 * dice.uniform()) * (not black)
            things = [_Thing.drawn(dice, sizes=(0.05, 0.4), tail=1.5) for _ in range(behind)]
            low = 0.25 if black else 0.0  # things on black are bright
            things += [_Thing.drawn(dice, sizes=(0.06, 0.38), tail=0.7, middle=True, darkest=low) for _ in range(count)]
        for thing in things:
            thing.paint(ground, y, x)
        return np.clip(ground, 0, 1)


@dataclass(frozen=True)
class _Dice:
    stream: Stream

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * float(self.stream.bits(1)[0] >> np.uint64(11)) * 2.0**-53

    def normals(self, count: int, *, scale: float = 1.0) -> Floats:
        return scale * self.stream.normals(count)

    def colour(self, darkest: float) -> Floats:
        """A colour [3], more different in red and blue than in green."""
        warm, green = self.normals(2) * [0.12, 0.06]
        found: Floats = self.uniform(darkest) + warm * np.array([1, 0, -1]) + green * np.array([-0.5, 1, -0.5])
        return found


@dataclass(frozen=True, kw_only=True)
class _Thing:
    """A superellipse; places and sizes are in widths of the picture, from its middle."""

    centre: Floats
    radii: Floats
    angle: float
    power: float
    colour: Floats
    slope: Floats
    wave: tuple[float, float, float, float]  # frequency, direction, phase and strength

    @classmethod
    def drawn(
        cls, dice: _Dice, *, sizes: tuple[float, float], tail: float, middle: bool = False, darkest: float = 0.0
    ) -> "_Thing":
        """One at random; the smaller the more frequent, by a power law of sizes."""
        smallest, largest = (size**-tail for size in sizes)
        size = (smallest + dice.uniform() * (largest - smallest)) ** (-1 / tail)
        aspect, tilt, strength = dice.normals(3) * [0.5, 0.15, 0.12]
        upright = np.pi / 2 * (dice.uniform() < 0.5) + tilt
        return cls(
            centre=dice.normals(2, scale=0.14) if middle else np.array([dice.uniform(-0.6, 0.6) for _ in range(2)]),
            radii=size * np.exp([aspect, -aspect]),
            angle=upright if dice.uniform() < 0.5 else dice.uniform(high=np.pi),
            power=_POWERS[int(len(_POWERS) * dice.uniform())],
            colour=dice.colour(darkest),
            slope=dice.normals(2, scale=0.5),
            wave=(
                np.exp(dice.uniform(np.log(10), np.log(100))),
                dice.uniform(high=np.pi),
                dice.uniform(high=2 * np.pi),
                abs(strength) * (dice.uniform() < 0.6),
            ),
        )

    def paint(self, picture: Floats, y: Floats, x: Floats) -> None:
        """Paint over a picture [h, w, 3] whose pixels have these places."""
        cos, sin = np.cos(self.angle), np.sin(self.angle)
        along, across = cos * (y - self.centre[0]), sin * (y - self.centre[0])
        across, along = across + cos * (x - self.centre[1]), along - sin * (x - self.centre[1])
        wide, high = self.radii
        out = np.minimum(np.abs(across / wide), 3) ** self.power + np.minimum(np.abs(along / high), 3) ** self.power
        edge = (1 - out ** (1 / self.power)) * self.radii.min() * max(picture.shape[:2]) / 1.2
        frequency, direction, phase, strength = self.wave
        wave = strength * np.sin(frequency * (np.cos(direction) * across + np.sin(direction) * along) + phase)
        shade = self.slope[0] * along + self.slope[1] * across + wave
        picture += np.clip(edge + 0.5, 0, 1)[..., None] * (self.colour + shade[..., None] - picture)
