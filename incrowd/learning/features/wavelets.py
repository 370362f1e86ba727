"""Oriented waves and Gaussian blurs, as matrices that act on pictures."""

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from incrowd._random import Floats

_FOLDS = 2 * math.pi * np.arange(-3, 4)  # a Gaussian of width 1.25 or less has nothing beyond three periods
_TAIL = 1e-12


@cache
def morlet_bank(height: int, width: int, octave: int, orientations: int) -> Tensor:
    """Fourier transforms [orientations, height, width] of Morlet waves, which are real.

    Each is a wave of frequency 3 pi / 4 / 2^octave, pi / orientations apart in direction, under a Gaussian that is
    0.8 * 2^octave pixels wide along the wave and orientations / 4 times that across, with its mean taken away.
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
def blur_matrix(points: int, *, first: float, step: float, places: int) -> Tensor:
    """A matrix [places, points] of Gaussian means, 0.4 steps wide, around first, first + step, and so on."""
    centres = first + step * np.arange(places)
    weights = np.exp(-0.5 * ((np.arange(points) - centres[:, None]) / (0.4 * step)) ** 2)
    return _matrix(weights / weights.sum(axis=1, keepdims=True))


def _matrix(values: Floats) -> Tensor:
    """In float32, without invisible tails: the subnormal numbers that they cause would make products twice as slow."""
    return torch.from_numpy(np.where(np.abs(values) < _TAIL, 0, values).astype(np.float32))


def _folded_gaussian(height: int, width: int, covariance: Floats, centre: Floats) -> Floats:
    """The transform of a sampled Gaussian that is shifted to a frequency: sampling adds up copies 2 pi apart."""
    y = (2 * math.pi * np.fft.fftfreq(height) - centre[0])[:, None] + _FOLDS  # [height, folds]
    x = (2 * math.pi * np.fft.fftfreq(width) - centre[1])[:, None] + _FOLDS
    y, x = y[:, None, :, None], x[None, :, None, :]
    exponent = covariance[0, 0] * y * y + 2 * covariance[0, 1] * y * x + covariance[1, 1] * x * x
    total: Floats = np.exp(-0.5 * exponent).sum(axis=(2, 3))
    return total
