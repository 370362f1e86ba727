"""Made-up pictures: things of a few parts on a ground, and leaves that cover each other. No real picture is in them.

They stand for pictures in general: edges, corners, gradients and textures of all sizes, things in the middle, grounds
that are blank, smooth or busy. Of each thing there are variants: moved, turned, stretched, in another light.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from incrowd import _validate
from incrowd._random import Floats, SeededRandomness, Stream
from incrowd.learning.features.feature_map import Values
from incrowd.learning.features.images import Shape

_GREY = np.array([0.3, 0.59, 0.11])
_POWERS = np.array([1.2, 2.0, 2.0, 4.0, 8.0])  # of a superellipse: from a star over an ellipse to a rectangle
_LEAVES = 0.25  # of all pictures
_SYMMETRIC = 0.4  # of all things


@dataclass(frozen=True, kw_only=True)
class MadeUpPictures:
    """An endless, public collection: `count` things, each in `variants` pictures, in colours or in grey.

    `blank` is the share of pictures whose ground is black.

    Guarantee: the pictures follow from `seed` alone, which is public; fewer things are the first of more.
    """

    count: int = 1500
    variants: int = 6
    colour: bool = False
    blank: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.count(count=self.count, variants=self.variants)
        _validate.natural(seed=self.seed)
        _validate.at_most(1, "all", blank=self.blank)
        _validate.non_negative(blank=self.blank)

    def render(self, number: int, *, shape: Shape) -> Values:
        """Pictures of one thing between 0 and 1: [variants, height, width], or [variants, 3, height, width]."""
        dice = _Dice(SeededRandomness(self.seed).stream("pictures", number))
        pictures = _Scene.drawn(dice, self.variants, shape, self.blank).pictures()
        found = pictures.transpose(0, 3, 1, 2) if self.colour else pictures @ _GREY
        return np.ascontiguousarray(found, np.float32)


@dataclass(frozen=True)
class _Dice:
    """Random numbers in the shapes that are asked for."""

    stream: Stream

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Floats:
        found = (self.stream.bits(int(np.prod(shape))) >> np.uint64(11)) * 2.0**-53
        return np.asarray(low + (high - low) * found.reshape(shape), np.float64)

    def normal(self, *shape: int, scale: float = 1.0) -> Floats:
        return scale * self.stream.normals(int(np.prod(shape))).reshape(shape)

    def below(self, share: float) -> bool:
        return float(self.uniform(1)[0]) < share

    def whole(self, low: int, high: int) -> int:
        """From low to high - 1."""
        return low + int((high - low) * float(self.uniform(1)[0]))


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """Superellipses, each with a colour, a gradient and a wave; arrays [variants, parts], or [.., 2] and [.., 3].

    Places and sizes are in widths of the picture, from its middle.
    """

    centre: Floats
    radii: Floats
    angle: Floats
    power: Floats
    taper: Floats
    colour: Floats
    slope: Floats
    wave: Floats  # frequency, direction, phase and strength

    @classmethod
    def random(cls, dice: _Dice, count: int, *, spread: float, sizes: tuple[float, float], tail: float) -> "_Parts":
        """Parts of one picture; the smaller the more frequent, by a power law of sizes."""
        smallest, largest = (size**-tail for size in sizes)
        size = (smallest + dice.uniform(count) * (largest - smallest)) ** (-1 / tail)
        aspect = np.exp(dice.normal(count, scale=0.5))
        upright = dice.uniform(count) < 0.5
        turned = np.pi / 2 * np.floor(2 * dice.uniform(count)) + dice.normal(count, scale=0.15)
        middle = dice.normal(count, 2, scale=spread) if spread < 0.4 else dice.uniform(count, 2, low=-0.6, high=0.6)
        wave = [
            np.exp(dice.uniform(count, low=np.log(10), high=np.log(100))),
            dice.uniform(count, high=np.pi),
            dice.uniform(count, high=2 * np.pi),
            np.abs(dice.normal(count, scale=0.12)) * (dice.uniform(count) < 0.6),
        ]
        return cls(
            centre=middle[None],
            radii=np.stack([size * aspect, size / aspect], -1)[None],
            angle=np.where(upright, turned, dice.uniform(count, high=np.pi))[None],
            power=_POWERS[np.floor(len(_POWERS) * dice.uniform(count)).astype(int)][None],
            taper=dice.normal(count, scale=0.3)[None],
            colour=_colours(dice, dice.uniform(count))[None],
            slope=dice.normal(count, 2, scale=0.5)[None],
            wave=np.stack(wave, -1)[None],
        )

    def varied(self, dice: _Dice, variants: int) -> "_Parts":
        """The same parts, a little different in each variant."""
        shape = (variants, self.angle.shape[1])
        light = dice.normal(*shape, 1, scale=0.1) + dice.normal(*shape, 3, scale=0.03)
        changed = np.stack(
            [np.exp(dice.normal(*shape, scale=0.1)), np.ones(shape), np.zeros(shape), np.ones(shape)], axis=-1
        )
        wave = self.wave * changed
        wave[..., 2] = dice.uniform(*shape, high=2 * np.pi)
        return _Parts(
            centre=self.centre + dice.normal(*shape, 2, scale=0.025),
            radii=self.radii * np.exp(dice.normal(*shape, 2, scale=0.12)),
            angle=self.angle + dice.normal(*shape, scale=0.1),
            power=np.broadcast_to(self.power, shape),
            taper=self.taper + dice.normal(*shape, scale=0.08),
            colour=self.colour + light,
            slope=self.slope + dice.normal(*shape, 2, scale=0.2),
            wave=wave,
        )

    def mirrored(self) -> "_Parts":
        """As in a mirror that stands upright."""
        return replace(
            self,
            centre=self.centre * [1, -1],
            angle=-self.angle,
            slope=self.slope * [1, -1],
            wave=self.wave * [1, -1, 1, 1],
        )

    def beside(self, other: "_Parts") -> "_Parts":
        """Both, the others on top."""
        names = self.__dataclass_fields__
        return _Parts(**{name: np.concatenate([getattr(self, name), getattr(other, name)], axis=1) for name in names})

    def of(self, variant: int) -> "_Parts":
        """Those of one variant."""
        return _Parts(**{name: getattr(self, name)[variant : variant + 1] for name in self.__dataclass_fields__})

    def painted(self, pictures: Floats, y: Floats, x: Floats) -> None:
        """Paint over pictures [variants, h, w, 3]; y and x are the places of their pixels."""
        pixels = max(pictures.shape[1:3])
        for k in range(self.angle.shape[1]):
            cos, sin = (f(self.angle[:, k])[:, None, None] for f in (np.cos, np.sin))
            dy, dx = (place - self.centre[:, k, i][:, None, None] for i, place in enumerate((y, x)))
            across, along = cos * dx + sin * dy, cos * dy - sin * dx
            wide, high = (self.radii[:, k, i][:, None, None] for i in (0, 1))
            narrow = np.maximum(1 + self.taper[:, k, None, None] * np.clip(along / high, -1, 1), 0.05)
            power = float(self.power[0, k])
            out = (
                np.minimum(np.abs(across / (wide * narrow)), 3) ** power + np.minimum(np.abs(along / high), 3) ** power
            )
            cover = np.clip((1 - out ** (1 / power)) * np.minimum(wide, high) * pixels / 1.2 + 0.5, 0, 1)
            frequency, direction, phase, strength = (self.wave[:, k, i][:, None, None] for i in range(4))
            wave = strength * np.sin(frequency * (np.cos(direction) * across + np.sin(direction) * along) + phase)
            shade = self.slope[:, k, 0, None, None] * along + self.slope[:, k, 1, None, None] * across + wave
            colour = self.colour[:, k, None, None] + shade[..., None]
            pictures += cover[..., None] * (colour - pictures)


@dataclass(frozen=True, kw_only=True)
class _Scene:
    """Everything about the pictures of one thing."""

    dice: _Dice
    shape: Shape
    black: bool
    parts: _Parts
    light: float
    roughness: float

    @classmethod
    def drawn(cls, dice: _Dice, variants: int, shape: Shape, blank: float) -> "_Scene":
        leaves, black = dice.below(_LEAVES), dice.below(blank)
        if leaves:
            parts = _Parts.random(dice, dice.whole(15, 60), spread=1.0, sizes=(0.03, 0.5), tail=2.0)
        else:
            parts = _Parts.random(dice, dice.whole(1, 7), spread=0.14, sizes=(0.06, 0.38), tail=0.7)
            if dice.below(_SYMMETRIC):
                parts = parts.beside(parts.mirrored())
            if black:  # things on black are bright
                count = parts.angle.shape[1]
                bright = np.clip(_colours(dice, dice.uniform(count, low=0.25)), 0, 1)
                parts = replace(parts, colour=bright[None])
        varied = parts.varied(dice, variants)
        return cls(
            dice=dice,
            shape=shape,
            black=black,
            parts=varied,
            light=float(dice.uniform(1)[0]),
            roughness=float(dice.uniform(1, low=0.8, high=2.0)[0]),
        )

    @property
    def variants(self) -> int:
        return len(self.parts.angle)

    @cached_property
    def places(self) -> tuple[Floats, Floats]:
        """Of each pixel, from the middle, in the longer side's length."""
        longest = max(self.shape)
        rows, columns = ((np.arange(side) + 0.5 - side / 2) / longest for side in self.shape)
        return np.broadcast_to(rows[:, None], self.shape)[None], np.broadcast_to(columns, self.shape)[None]

    def pictures(self) -> Floats:
        """[variants, h, w, 3] between 0 and 1."""
        dice, n = self.dice, self.variants
        pictures = np.zeros((n, *self.shape, 3)) if self.black else self._ground()
        parts = self.parts
        if not self.black and dice.below(0.5):
            parts = parts.mirrored()
        parts.painted(pictures, *self._seen())
        strength = dice.uniform(n, 1, 1, 1, high=0.3 if self.black else 0.06)
        noise = strength * np.stack([self._noise(0.7 if self.black else 1.0) for _ in range(n)])[..., None]
        pictures = np.clip(pictures * (1 + noise) if self.black else pictures + noise, 0, 1)
        pictures **= np.exp(dice.normal(n, 1, 1, 1, scale=0.25))
        if not self.black:
            contrast, light = np.exp(dice.normal(n, 1, 1, 1, scale=0.2)), dice.normal(n, 1, 1, 1, scale=0.08)
            pictures = 0.5 + (pictures - 0.5) * contrast + light
        return np.clip(pictures, 0, 1)

    def _ground(self) -> Floats:
        """Smooth or rough, brighter on one side, sometimes with things on it."""
        dice, (y, x) = self.dice, self.places
        grounds = []
        for _ in range(self.variants):
            light = np.array([self.light + float(dice.normal(1, scale=0.15)[0])])
            rough = float(dice.uniform(1, high=0.25)[0]) * self._noise(self.roughness)
            ground = _colours(dice, light)[0] + (rough + float(dice.normal(1, scale=0.3)[0]) * y[0])[..., None]
            if dice.below(0.5):
                things = _Parts.random(dice, dice.whole(2, 12), spread=1.0, sizes=(0.05, 0.4), tail=1.5)
                things.painted(ground[None], y, x)
            grounds.append(ground)
        return np.stack(grounds)

    def _seen(self) -> tuple[Floats, Floats]:
        """Where each variant's pixels lie in the thing: it is moved, turned, sheared and scaled a little."""
        dice, n, (y, x) = self.dice, self.variants, self.places
        size, stretch = (np.exp(dice.normal(n, 1, 1, scale=scale)) for scale in (0.1, 0.08))
        angle, shear = (dice.normal(n, 1, 1, scale=scale) for scale in (0.1, 0.08))
        dy, dx = (dice.normal(n, 1, 1, scale=0.04) for _ in range(2))
        seen_x = np.cos(angle) * size * stretch * x + (shear - np.sin(angle)) * size * y + dx
        seen_y = np.sin(angle) * size * x + np.cos(angle) * size / stretch * y + dy
        return seen_y, seen_x

    def _noise(self, slope: float) -> Floats:
        """Noise of variance 1 whose amplitude falls with its frequency to the power of the slope."""
        rows, columns = (np.fft.fftfreq(side) for side in self.shape)
        frequency = np.hypot(rows[:, None], columns)
        frequency[0, 0] = 1 / max(self.shape)
        noise = np.fft.ifft2(np.fft.fft2(self.dice.normal(*self.shape)) / frequency**slope).real
        found: Floats = noise / (noise.std() + 1e-9)
        return found


def _colours(dice: _Dice, light: Floats) -> Floats:
    """Colours [n, 3] of this brightness, more different in red and blue than in green."""
    n = len(light)
    warm, green = dice.normal(n, 1, scale=0.12), dice.normal(n, 1, scale=0.06)
    return light[:, None] + warm * [1, 0, -1] + green * [-0.5, 1, -0.5]
