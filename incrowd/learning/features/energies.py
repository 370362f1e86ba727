"""Oriented energies: how much of each direction of stroke there is around each place of an image."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.learning.features.feature_map import Named, Shape, Values, as_images, unit

_MARGIN = 4  # blank pixels around the image, so that its edges hardly meet
_BRIGHTNESS = 0.3  # the weight of plain blurred pixels beside the energies
_FOLDS = 2 * math.pi * np.arange(-3, 4)  # a Gaussian of width 1.25 or less has nothing beyond three periods
_TAIL = 1e-12


@dataclass(frozen=True, kw_only=True)
class _Energies(Named):
    """Groups of energies every `stride` pixels, over their norm there plus `floor`: features of L2 norm 1."""

    shape: Shape | None = None
    stride: int = 4
    orientations: int = 8
    floor: float = 0.02

    def __post_init__(self) -> None:
        if self.shape is not None:
            if len(self.shape) != 2:
                raise ConfigError(field="shape", value=self.shape, remedy="give the height and the width of an image")
            _validate.count(height=self.shape[0], width=self.shape[1])
        _validate.count(stride=self.stride, orientations=self.orientations)
        _validate.positive(floor=self.floor)

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        images = as_images(values, self.shape)
        features: Values = unit(torch.cat(self._groups(_with_margin(images), images.shape), dim=1).flatten(1)).numpy()
        return features

    def _groups(self, padded: Tensor, shape: torch.Size) -> list[Tensor]:
        """The groups [n, c, a, b] of padded images of this shape."""
        raise NotImplementedError

    def _bank(self, images: Tensor, octave: int) -> Tensor:
        return morlet_bank(*images.shape[-2:], octave, self.orientations)


@dataclass(frozen=True, kw_only=True)
class OrientedEnergies(_Energies):
    """The strength of Morlet waves of several orientations, blurred and taken every `stride` pixels: 392 features for
    28 x 28 pixels. An image and its negative give the same.

    A wave fits strokes about 2^(octave + 1) pixels thick: octave 1, stride 4 suit 28 pixels, octave 0, stride 2 suit 8.
    """

    octave: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.natural(octave=self.octave)

    def _groups(self, padded: Tensor, shape: torch.Size) -> list[Tensor]:
        energies = _energies(torch.fft.fft2(padded), self._bank(padded, self.octave))
        return [_contrast(_blurred(energies, shape, self.stride), self.floor)]


@dataclass(frozen=True, kw_only=True)
class SecondOrderEnergies(_Energies):
    """Blurred pixels, oriented energies of octaves 0 and 1, and the oriented energies of those of octave 0, which tell
    corners and crossings from strokes: 3969 features for 28 x 28 pixels.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride % 2:
            remedy = "give an even number: half of the pixels are used"
            raise ConfigError(field="stride", value=self.stride, remedy=remedy)

    def _groups(self, padded: Tensor, shape: torch.Size) -> list[Tensor]:
        spectrum = torch.fft.fft2(padded)
        fine, coarse = (_energies(spectrum, self._bank(padded, octave)) for octave in (0, 1))
        halved = avg_pool2d(fine, 2)
        second = _energies(torch.fft.fft2(halved), self._bank(halved, 0)).flatten(1, 2)
        return [
            _BRIGHTNESS * _blurred(padded[:, None], shape, self.stride),
            _contrast(_blurred(fine, shape, self.stride), self.floor),
            _contrast(_blurred(coarse, shape, self.stride), self.floor),
            _contrast(_blurred(second, shape, self.stride, halved=True), self.floor / 2),
        ]


def _with_margin(images: Tensor) -> Tensor:
    """The images with blank pixels around; both sides become even."""
    height, width = images.shape[1:]
    return pad(images, (_MARGIN, _MARGIN + width % 2, _MARGIN, _MARGIN + height % 2))


def _energies(spectrum: Tensor, bank: Tensor) -> Tensor:
    """The magnitude of each convolution: [..., h, w] and [orientations, h, w] give [..., orientations, h, w]."""
    waves = torch.fft.ifft2(spectrum.unsqueeze(-3) * bank)
    # Several times faster than waves.abs(), which guards against overflow that pixels cannot cause.
    energies: Tensor = waves.real.square().addcmul_(waves.imag, waves.imag).sqrt_()
    return energies


def _blurred(energies: Tensor, shape: torch.Size, stride: int, *, halved: bool = False) -> Tensor:
    """Gaussian means around places that are `stride` apart and centred in the image: [n, c, h, w] to [n, c, a, b]."""
    pixel = 2 if halved else 1  # in pixels of the image
    rows, columns = (
        _blur(
            points,
            first=(_MARGIN + (side - 1 - (places - 1) * stride) / 2 - (pixel - 1) / 2) / pixel,
            step=stride / pixel,
            places=places,
        )
        for points, side, places in (
            (points, side, math.ceil(side / stride))
            for points, side in zip(energies.shape[-2:], shape[1:], strict=True)
        )
    )
    return rows @ energies @ columns.T


def _contrast(energies: Tensor, floor: float) -> Tensor:
    """Energies [n, c, a, b] over their norm at each place."""
    local: Tensor = energies / (energies.norm(dim=1, keepdim=True) + floor)
    return local


@cache
def morlet_bank(height: int, width: int, octave: int, orientations: int) -> Tensor:
    """Fourier transforms [orientations, height, width] of Morlet waves, which are real, less their means.

    A wave has frequency 3 pi / 4 / 2^octave under a Gaussian, 0.8 * 2^octave pixels wide along it and orientations / 4
    times that across.
    """
    sigma, frequency = 0.8 * 2**octave, 0.75 * math.pi / 2**octave
    bank = np.empty((orientations, height, width))
    for number in range(orientations):
        angle = number * math.pi / orientations
        along = np.array([math.cos(angle), math.sin(angle)])
        across = np.array([-math.sin(angle), math.cos(angle)])
        covariance = sigma**2 * np.outer(along, along) + (sigma * orientations / 4) ** 2 * np.outer(across, across)
        wave, mean = (_folded_gaussian(height, width, covariance, centre) for centre in (frequency * along, 0 * along))
        bank[number] = wave - wave[0, 0] / mean[0, 0] * mean
    return _matrix(bank)


@cache
def _blur(points: int, *, first: float, step: float, places: int) -> Tensor:
    """A matrix [places, points] of Gaussian means, 0.4 steps wide, around first, first + step, and so on."""
    centres = first + step * np.arange(places)
    weights = np.exp(-0.5 * ((np.arange(points) - centres[:, None]) / (0.4 * step)) ** 2)
    return _matrix(weights / weights.sum(axis=1, keepdims=True))


def _matrix(values: Floats) -> Tensor:
    """In float32, without subnormal tails, which would make products twice as slow."""
    return torch.from_numpy(np.where(np.abs(values) < _TAIL, 0, values).astype(np.float32))


def _folded_gaussian(height: int, width: int, covariance: Floats, centre: Floats) -> Floats:
    """The transform of a sampled Gaussian that is shifted to a frequency: sampling adds up copies 2 pi apart."""
    y = (2 * math.pi * np.fft.fftfreq(height) - centre[0])[:, None] + _FOLDS  # [height, folds]
    x = (2 * math.pi * np.fft.fftfreq(width) - centre[1])[:, None] + _FOLDS
    y, x = y[:, None, :, None], x[None, :, None, :]
    exponent = covariance[0, 0] * y * y + 2 * covariance[0, 1] * y * x + covariance[1, 1] * x * x
    total: Floats = np.exp(-0.5 * exponent).sum(axis=(2, 3))
    return total
