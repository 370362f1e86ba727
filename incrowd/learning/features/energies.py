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
class OrientedEnergies(Named):
    """The strength of Morlet waves of several orientations, blurred and taken every `stride` pixels: 392 features of L2
    norm 1 for 28 x 28 pixels. An image and its negative give the same.

    A wave fits strokes about 2^(octave + 1) pixels thick: octave 1, stride 4 suit 28 pixels, octave 0, stride 2 suit 8.
    At each place the energies are divided by their norm over the orientations plus `floor`: the direction counts, and
    not the contrast.
    """

    shape: Shape | None = None
    octave: int = 1
    stride: int = 4
    orientations: int = 8
    floor: float = 0.02

    def __post_init__(self) -> None:
        _check(self.shape, self.stride, self.orientations, self.floor)
        _validate.natural(octave=self.octave)

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        images = as_images(values, self.shape)
        spectrum = torch.fft.fft2(_with_margin(images))
        energies = _energies(spectrum, morlet_bank(*spectrum.shape[-2:], self.octave, self.orientations))
        local = _contrast(_blurred(energies, images.shape, self.stride), self.floor)
        features: Values = unit(local.flatten(1)).numpy()
        return features


@dataclass(frozen=True, kw_only=True)
class SecondOrderEnergies(Named):
    """Blurred pixels, oriented energies of octaves 0 and 1, and the oriented energies of those of octave 0, which tell
    corners and crossings from strokes: 3969 features of L2 norm 1 for 28 x 28 pixels.
    """

    shape: Shape | None = None
    stride: int = 4
    orientations: int = 8
    floor: float = 0.02

    def __post_init__(self) -> None:
        _check(self.shape, self.stride, self.orientations, self.floor)
        if self.stride % 2:
            remedy = "give an even number: half of the pixels are used"
            raise ConfigError(field="stride", value=self.stride, remedy=remedy)

    def __call__(self, values: Values) -> Values:
        """See `FeatureMap.__call__`."""
        images = as_images(values, self.shape)
        padded = _with_margin(images)
        spectrum = torch.fft.fft2(padded)
        fine, coarse = (
            _energies(spectrum, morlet_bank(*padded.shape[-2:], octave, self.orientations)) for octave in (0, 1)
        )
        halved = avg_pool2d(fine, 2)
        bank = morlet_bank(*halved.shape[-2:], 0, self.orientations)
        second = _energies(torch.fft.fft2(halved), bank).flatten(1, 2)
        groups = [
            _BRIGHTNESS * _blurred(padded[:, None], images.shape, self.stride),
            _contrast(_blurred(fine, images.shape, self.stride), self.floor),
            _contrast(_blurred(coarse, images.shape, self.stride), self.floor),
            _contrast(_blurred(second, images.shape, self.stride, halved=True), self.floor / 2),
        ]
        features: Values = unit(torch.cat(groups, dim=1).flatten(1)).numpy()
        return features


def _check(shape: Shape | None, stride: int, orientations: int, floor: float) -> None:
    if shape is not None:
        if len(shape) != 2:
            raise ConfigError(field="shape", value=shape, remedy="give the height and the width of an image")
        _validate.count(height=shape[0], width=shape[1])
    _validate.count(stride=stride, orientations=orientations)
    _validate.positive(floor=floor)


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
    """Fourier transforms [orientations, height, width] of Morlet waves, which are real.

    Each is a wave of frequency 3 pi / 4 / 2^octave, pi / orientations apart in direction, under a Gaussian that is
    0.8 * 2^octave pixels wide along the wave and orientations / 4 times that across, less its mean.
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
